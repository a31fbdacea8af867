"""What surrounds every activity: heartbeats while it runs, and errors made fit for a history when it fails."""

import asyncio
import traceback
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog
from temporalio import activity
from temporalio import exceptions as temporal
from temporalio.exceptions import FailureError

from perdure.activities.providers.errors import (
    MODEL_BILLING,
    MODEL_DOWN,
    MODEL_OVERFLOW,
    MODEL_REQUEST,
    OUT_OF_CREDIT,
    PROVIDER,
    PROVIDER_STATUS,
    STORE,
    UNEXPECTED,
    ByStatus,
    Meaning,
    Table,
)
from perdure.contracts.errors import InvariantBroken, PerdureError, UpstreamRejected, UpstreamUnavailable
from perdure.core.calls.retries import next_delay, retry_after_seconds
from perdure.egress import EgressRefused, refusal_in

T = TypeVar("T")
BEAT_SECONDS = 0.8
"""Under a second, so that a cancellation reaches the activity about as fast; a short activity never beats."""


@asynccontextmanager
async def edge() -> AsyncIterator[None]:
    """Beat for as long as the block runs; a killed worker is noticed when the beats stop.

    Our own errors and the database's leave as Temporal's, without the vendor's text: it may quote rows, and Temporal
    would store it.
    """
    beat = _Beat()
    try:
        yield
    except PerdureError as error:
        raise to_temporal(error) from None
    except FailureError:
        raise
    except Exception as error:  # whatever it is, its text may quote a row or a payload
        raise to_temporal(store_error(error)) from None
    finally:
        beat.end()


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which a cancellation that arrives meanwhile does not break off."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    return task.result()


class _Beat:
    """A timer and no task: most activities end before it fires. A call inside a workflow task has no heartbeat."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        if not activity.info().is_local:
            self._wait()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        activity.heartbeat()
        self._wait()


def stop_asked() -> bool:
    """Whether a cancellation that just arrived is the turn's stop, and not this worker's own shutdown."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


def this_attempt() -> tuple[str, int]:
    """(run id, attempt number) of the activity that runs here."""
    info = activity.info()
    return info.workflow_run_id or "", info.attempt


# --- Errors at the edge: a vendor's exception becomes one of ours, ours becomes Temporal's.
# Two doors in a row. `provider_error` and `store_error` read the tables of perdure/activities/providers/errors.py.
# `to_temporal` is the last thing an activity does with an error; perdure/workflows/activity_calls.py makes data of it
# again. What a tool raises is read by perdure/activities/tool_execution.py, and what Valkey raises where it is used
# (perdure/store/): losing it fails nothing.
#
# Nothing of a vendor's text passes: it may quote the payload, and Temporal stores failures unencrypted and cuts them
# at 4 KiB. What passes is code, sentence, wait, class name and status.

MESSAGE_CHARACTERS = 300
"""A problem's sentence is cut here on its way into a history."""
MOST_FRAMES = 12
"""So many of an unforeseen exception's innermost frames are logged."""

_log = structlog.get_logger(__name__)


def provider_error(error: Exception) -> PerdureError:
    """What an exception of LiteLLM, openai or their HTTP client means for a model call."""
    if isinstance(error, PerdureError):
        return error
    ours = refusal_in(error)  # LiteLLM wraps it, in several layers
    if isinstance(ours, EgressRefused):
        return UpstreamRejected("egress_refused", f"The model's provider may not be reached: {ours}.")
    if ours is not None:
        return UpstreamRejected(ours.code, f"The model's answer was not read: {ours}.")
    # LiteLLM wraps what breaks a running stream; the inner exception has the truth.
    inner = getattr(error, "original_exception", None)
    error = inner if isinstance(inner, Exception) else error
    body_code = _body_code(error)
    if body_code in OUT_OF_CREDIT or "credit balance is too low" in str(getattr(error, "message", "")):
        return _ours(MODEL_BILLING, error)  # the sentence is Anthropic's, with a plain 400
    if body_code == "context_length_exceeded":
        return _ours(MODEL_OVERFLOW, error)
    return _read(PROVIDER, error, PROVIDER_STATUS, MODEL_REQUEST, MODEL_DOWN)


def store_error(error: Exception) -> PerdureError:
    """What an exception of asyncpg means."""
    return _read(STORE, error, {}, UNEXPECTED, UNEXPECTED)


def to_temporal(error: PerdureError) -> temporal.ApplicationError:
    """`error` as an activity raises it: type is the code, a wait that was asked for is the next delay (60 s at most).

    The chain of causes is left out: Temporal would store the vendor's text with it.
    """
    problem = error.as_problem()
    detail = problem.model_copy(update={"message": problem.message[:MESSAGE_CHARACTERS]}).model_dump(mode="json")
    failure = temporal.ApplicationError(
        detail["message"],
        {**detail, "family": type(error).__name__, **_small(error.details)},
        type=error.code,
        non_retryable=not error.retryable,
        next_retry_delay=next_delay(problem.retry_after_seconds),
    )
    failure.__suppress_context__ = True
    return failure


def _read(
    table: Table, error: Exception, statuses: Mapping[int, Meaning], client: Meaning, server: Meaning
) -> PerdureError:
    """The nearest row among the bases of `error`, or its HTTP status where the row says so."""
    if isinstance(error, PerdureError):
        return error
    for kind in type(error).__mro__:
        row = table.get(f"{kind.__module__}.{kind.__qualname__}")
        if isinstance(row, Meaning):
            return _ours(row, error)
        if isinstance(row, ByStatus):
            status = _status(error)
            other = client if status is not None and 400 <= status < 500 else server
            return _ours(statuses.get(status or 0, other), error)
    return _ours(UNEXPECTED, error)


def _ours(meaning: Meaning, error: Exception) -> PerdureError:
    details: dict[str, object] = {"vendor": f"{type(error).__module__}.{type(error).__qualname__}"[:120]}
    if meaning.family is InvariantBroken:
        _log.error(meaning.code, error=details["vendor"], frames=_frames(error))
    status = _status(error)
    if status is not None:
        details["status"] = status
    if meaning.family is UpstreamUnavailable:
        wait = retry_after_seconds(_headers(error), datetime.now(UTC))
        return UpstreamUnavailable(meaning.code, meaning.message, details, retry_after_seconds=wait)
    return meaning.family(meaning.code, meaning.message, details)


def _frames(error: Exception) -> list[str]:
    """Where it was raised, the innermost last. Not its message nor its values: they may quote a row or a payload."""
    frames = traceback.extract_tb(error.__traceback__)[-MOST_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def _status(error: Exception) -> int | None:
    """The HTTP status; the exception's own before its response's, which LiteLLM sometimes makes up."""
    for holder in (error, getattr(error, "response", None)):
        status = getattr(holder, "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _headers(error: Exception) -> Mapping[str, str]:
    """The headers of the answer; LiteLLM keeps them beside the response that it makes up."""
    own = getattr(error, "litellm_response_headers", None)
    headers = own if own is not None else getattr(getattr(error, "response", None), "headers", None)
    return headers if isinstance(headers, Mapping) else {}


def _body_code(error: Exception) -> str:
    """`code`, else `type`, of an error body in OpenAI's form."""
    body = getattr(error, "body", None)
    if not isinstance(body, Mapping):
        return ""
    inner = body.get("error", body)
    return str(inner.get("code") or inner.get("type") or "") if isinstance(inner, Mapping) else ""


def _small(details: Mapping[str, object]) -> dict[str, object]:
    """Details that are surely small: numbers, flags, short strings; eight of them at most."""
    small = {
        name: value
        for name, value in details.items()
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 120)
    }
    return dict(list(small.items())[:8])
