"""Vendor exceptions in, our families out, to Temporal and back."""

import asyncio
import errno
import importlib
import inspect
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import httpx
import pytest
from asyncpg.exceptions import _base
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from temporalio import exceptions as temporal
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter
from temporalio.testing import ActivityEnvironment

from perdure.activities.guard import activity_guard, to_temporal
from perdure.activities.providers.errors import PROVIDER, UNEXPECTED, provider_error, store_error
from perdure.api.errors import outage_code
from perdure.contracts import errors
from perdure.contracts.errors import InvariantBroken, LimitReached, PerdureError, UpstreamRejected, UpstreamUnavailable
from perdure.workflows.activity_calls import problem_of

Door = Callable[[Exception], PerdureError]
REQUEST = httpx.Request("POST", "http://target.example/orders")
SOMETHING = st.one_of(st.text(max_size=3000), st.integers(0, 10**9), st.binary(), st.booleans())


def raised_classes(module: object) -> Iterator[type[Exception]]:
    """Every exception class that a module shows, without its warnings."""
    for _, member in inspect.getmembers(module, inspect.isclass):
        if issubclass(member, Exception) and not issubclass(member, Warning):
            yield member


DOORS: list[tuple[Door, type[Exception]]] = [(provider_error, kind) for kind in raised_classes(httpx)]
DOORS += [(store_error, kind) for kind in raised_classes(asyncpg.exceptions)]


@pytest.mark.parametrize(("door", "kind"), DOORS, ids=lambda value: getattr(value, "__name__", None))
def test_every_exception_class_of_a_vendor_is_mapped(door: Door, kind: type[Exception]) -> None:
    error = door(kind.__new__(kind))  # bare, so also without the attributes that its constructor sets
    assert error.code != UNEXPECTED.code
    assert error.message.endswith(".") and type(error) is not PerdureError


def test_every_row_names_an_existing_class() -> None:
    for name in (name for name in PROVIDER if name.startswith("httpx")):
        module, _, attribute = name.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), attribute), BaseException)


def status_error(status: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    answer = httpx.Response(status, headers=headers, request=REQUEST)
    return httpx.HTTPStatusError("x", request=REQUEST, response=answer)


AWAY = [
    *(asyncpg.ConnectionDoesNotExistError, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError),
    *(asyncpg.DiskFullError, asyncpg.AdminShutdownError, asyncpg.QueryCanceledError, ConnectionRefusedError),
    *(asyncpg.ReadOnlySQLTransactionError, asyncpg.InternalClientError, TimeoutError),
]
AWAY_ERRORS = [
    *(asyncpg.InterfaceError(f"cannot do it: {reason}") for reason in (
        "connection is closed", "pool is closing", "pool is closed", "the underlying connection is closed",
        "the underlying connection has been released back to the pool",
    )),
    *(OSError(number, "x") for number in (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EMFILE, errno.EHOSTUNREACH)),
    *(socket.gaierror("x"), ssl.SSLEOFError(8, "x")),
]  # fmt: skip
CONFLICTS = [asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError]
UNREADABLE = [
    *(asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError),
    *(asyncpg.InsufficientPrivilegeError, asyncpg.InvalidPasswordError, asyncpg.InvalidCatalogNameError),
    *(asyncpg.InvalidSchemaNameError, asyncpg.DataCorruptedError),
]
WRONG = [
    *(asyncpg.UniqueViolationError, asyncpg.PostgresSyntaxError, asyncpg.InFailedSQLTransactionError),
    *(asyncpg.DataError, _base.DataError, asyncpg.InterfaceError),
]


@pytest.mark.parametrize(("error", "family", "code"), [
    *((kind("x"), UpstreamUnavailable, "store_unavailable") for kind in (*AWAY, *UNREADABLE)),
    *((error, UpstreamUnavailable, "store_unavailable") for error in AWAY_ERRORS),
    *((kind("x"), UpstreamUnavailable, "store_conflict") for kind in CONFLICTS),
    *((kind("x"), InvariantBroken, "store_refused") for kind in WRONG),
    *((kind("x"), InvariantBroken, UNEXPECTED.code) for kind in (KeyError, OSError, FileNotFoundError)),
], ids=repr)  # fmt: skip
def test_an_unavailable_postgres_is_retried_and_a_wrong_statement_is_not(
    error: Exception, family: type, code: str
) -> None:
    ours = store_error(error)
    assert (type(ours), ours.code) == (family, code)
    assert outage_code(error) == ("store_unavailable" if family is UpstreamUnavailable else ""), "503, or 500"


async def test_a_postgres_that_nobody_can_connect_to_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError("Multiple exceptions: [Errno 111] ::1, [Errno 111] 127.0.0.1")  # as asyncio words it

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", refuse)
    for host in ("localhost", "/nowhere"):
        with pytest.raises(OSError) as caught:
            await asyncpg.connect(user="u", database="d", host=host)
        assert outage_code(caught.value) == "store_unavailable"


def test_a_billing_error_in_the_body_takes_precedence_over_its_status() -> None:
    for body in ({"error": {"code": "insufficient_quota"}}, {"type": "billing_error"}):
        error = status_error(429)
        error.body = body  # type: ignore[attr-defined]  # as openai's exceptions have it
        assert provider_error(error).code == "model_billing"
    outer = RuntimeError("stream broke")
    outer.original_exception = status_error(401)  # type: ignore[attr-defined]  # as LiteLLM wraps
    assert provider_error(outer).code == "model_auth"
    assert type(provider_error(ZeroDivisionError())) is InvariantBroken, "an unforeseen error"
    ours = LimitReached("cap", "Enough.")
    assert provider_error(ours) is store_error(ours) is ours


def test_no_text_of_a_vendors_error_is_passed_on() -> None:
    secret = "sk-canary-8842"
    for ours in (provider_error(httpx.ConnectError(secret)), store_error(asyncpg.UniqueViolationError(secret))):
        assert secret not in f"{ours} {ours.details} {to_temporal(ours)!r} {to_temporal(ours).details}"


async def through_temporal(error: BaseException) -> BaseException:
    """`error` as a workflow would read it from a history."""
    failure = Failure()
    await DataConverter.default.encode_failure(error, failure)
    return await DataConverter.default.decode_failure(Failure.FromString(failure.SerializeToString()))


@pytest.mark.parametrize("kind", [temporal.ApplicationError, UpstreamUnavailable, ValueError])
async def test_an_error_raised_while_another_is_handled_does_not_take_it_to_temporal(kind: Any) -> None:
    async def work() -> None:
        async with activity_guard():
            try:
                breaks(KeyError)
            except KeyError:
                raise kind("code", "message")  # noqa: B904  # as a handler that another function has

    with pytest.raises(temporal.ApplicationError) as raised:
        await ActivityEnvironment().run(work)
    assert (await through_temporal(raised.value)).__cause__ is None


def failed(cause: BaseException) -> temporal.ActivityError:
    """An activity that failed so, as its workflow hears of it."""
    told: dict[str, Any] = {"identity": "w", "activity_type": "tools.run", "activity_id": "1", "retry_state": None}
    error = temporal.ActivityError("activity failed", scheduled_event_id=1, started_event_id=2, **told)
    error.__cause__ = cause
    return error


async def test_an_error_crosses_temporal_as_the_same_problem() -> None:
    ours = provider_error(status_error(429, {"retry-after": "9"}))
    back = await through_temporal(to_temporal(ours))
    assert problem_of(failed(back)) == ours.as_problem() and ours.as_problem().retry_after_seconds == 9.0
    assert isinstance(back, temporal.ApplicationError) and back.type == "model_rate_limited" and not back.non_retryable


@pytest.mark.parametrize(
    "kind", [UpstreamUnavailable, UpstreamRejected, LimitReached, InvariantBroken, errors.CallerError]
)
def test_only_unavailability_is_retried(kind: type[PerdureError]) -> None:
    failure = to_temporal(kind("c", "m"))
    assert failure.non_retryable is (kind is not UpstreamUnavailable)
    assert failure.type == "c" and failure.next_retry_delay is None


@pytest.mark.parametrize(("asked", "delay"), [(0.0, None), (0.25, 0.25), (59.0, 59.0), (61.0, 60.0), (1e300, 60.0)])
def test_a_requested_wait_is_the_next_delay_up_to_a_minute(asked: float, delay: float | None) -> None:
    failure = to_temporal(UpstreamUnavailable("c", "m", retry_after_seconds=asked))
    assert failure.next_retry_delay == (None if delay is None else timedelta(seconds=delay))


@given(message=st.text(max_size=5000), details=st.dictionaries(st.text(max_size=30), SOMETHING, max_size=40))
def test_a_failure_is_far_smaller_than_temporals_limit(message: str, details: dict[str, object]) -> None:
    failure = to_temporal(UpstreamRejected("code", message, details))
    (detail,) = failure.details
    assert len(failure.message) <= 300
    assert sum(len(name) + len(str(value)) for name, value in detail.items()) < 2048


@pytest.mark.parametrize(("error", "code"), [
    (to_temporal(LimitReached("cap", "Enough.")), "cap"),
    (temporal.ApplicationError("somebody else's", type="theirs"), "theirs"),
    (temporal.ApplicationError("details of another form", {"x": 1}), "activity_failed"),
    (temporal.TimeoutError("t", type=temporal.TimeoutType.HEARTBEAT, last_heartbeat_details=[]), "activity_timeout"),
    (temporal.CancelledError(), "stopped"),
])  # fmt: skip
def test_every_failure_of_an_activity_reads_as_a_problem(error: BaseException, code: str) -> None:
    problem = problem_of(failed(error))
    assert problem.code == code and len(problem.message) <= 300


def breaks(kind: type[Exception]) -> None:
    raise kind("sk-canary-8842")


@pytest.mark.parametrize(("door", "kind", "code"), [
    *((provider_error, ZeroDivisionError, "unexpected_error"), (store_error, KeyError, "unexpected_error")),
    (store_error, asyncpg.PostgresSyntaxError, "store_refused"),
])  # fmt: skip
def test_an_internal_error_is_logged_by_class_and_place_without_its_text(door: Door, kind: Any, code: str) -> None:
    with pytest.raises(kind) as raised:
        breaks(kind)
    with capture_logs() as logged:
        door(raised.value)
        store_error(asyncpg.ConnectionDoesNotExistError("x"))
        provider_error(status_error(429))
    (line,) = logged  # what is foreseen is not logged
    assert (line["event"], line["log_level"]) == (code, "error")
    assert line["error"].rpartition(".")[2] == kind.__qualname__
    assert line["frames"][-1].endswith(" breaks") and "test_boundary.py:" in line["frames"][-1]
    assert "canary" not in str(line)
