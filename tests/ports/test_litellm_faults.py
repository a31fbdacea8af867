"""Every way in which a provider goes wrong has its typed end, for one request, and nothing half is an answer."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.activities.providers.errors import PROVIDER, UNEXPECTED, provider_error
from perdure.activities.providers.provider import Complete, Provider, TextDelta
from perdure.contracts.errors import PerdureError, UpstreamRejected, UpstreamUnavailable
from tests.doubles.providers.client import UNWARNED, RecordingClient
from tests.doubles.providers.script import CONTEXT_OVERFLOW, OUT_OF_CREDIT, Fault, Step
from tests.doubles.providers.server import ProviderDouble

pytestmark = UNWARNED
CUT_OFF = (Fault.CUT, Fault.NO_FINISH, Fault.TRUNCATED_JSON, Fault.HTML, Fault.EMPTY_BODY)
DOWN = (Fault.RESET, Fault.RESET_AT_ONCE, Fault.GARBAGE, Fault.DEEP_JSON, Fault.WRONG_TYPES, Fault.ERROR_IN_STREAM)
AFTER_TEXT: dict[Fault, tuple[type[PerdureError], str]] = {
    **dict.fromkeys(DOWN, (UpstreamUnavailable, "model_unavailable")),
    **dict.fromkeys(CUT_OFF, (UpstreamUnavailable, "model_cut_off")),
    Fault.UNKNOWN_FINISH: (UpstreamUnavailable, "model_unreadable"),
    Fault.NO_CALLS: (UpstreamUnavailable, "model_unreadable"),
    Fault.NAMELESS_CALL: (UpstreamUnavailable, "model_unreadable"),
    Fault.HANG: (UpstreamUnavailable, "model_timeout"),
    Fault.HANG_AT_ONCE: (UpstreamUnavailable, "model_timeout"),
    Fault.ENDLESS: (UpstreamRejected, "answer_too_large"),
    Fault.HUGE_ARGUMENTS: (UpstreamRejected, "answer_too_large"),
}
FAULTS = {**AFTER_TEXT, Fault.EMPTY: (UpstreamUnavailable, "model_empty_answer")}
FIRST = (Fault.RESET_AT_ONCE, Fault.CUT, Fault.HTML)
"""Of those before any text; `make soak` has them all."""
STATUSES: dict[int, tuple[type[PerdureError], str]] = {
    **dict.fromkeys((400, 418, 422), (UpstreamRejected, "model_bad_request")),
    **dict.fromkeys((401, 403), (UpstreamRejected, "model_auth")),
    **dict.fromkeys((409, 500, 502, 503), (UpstreamUnavailable, "model_unavailable")),
    **dict.fromkeys((301, 307), (UpstreamRejected, "model_setup")),
    **dict.fromkeys((408, 504), (UpstreamUnavailable, "model_timeout")),
    402: (UpstreamRejected, "model_billing"),
    404: (UpstreamRejected, "model_not_found"),
    413: (UpstreamRejected, "context_overflow"),
    429: (UpstreamUnavailable, "model_rate_limited"),
    529: (UpstreamUnavailable, "model_overloaded"),
}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        *(("one two ", fault) for fault in AFTER_TEXT),
        ("", Fault.EMPTY),
        *(pytest.param("", fault, marks=() if fault in FIRST else pytest.mark.soak) for fault in AFTER_TEXT),
    ],
)
async def test_a_fault_raises_a_typed_error_without_an_answer(client: RecordingClient, text: str, fault: Fault) -> None:
    family, code = FAULTS[fault]
    error = await client.fail(Step(text=text, fault=fault), seconds=1.0 if "hang" in fault else 10.0)
    assert (type(error), error.code) == (family, code)
    assert not any(isinstance(chunk, Complete) for chunk in client.chunks)
    assert len(client.double.requests) == 1


@pytest.mark.parametrize("status", STATUSES)
async def test_an_error_status_is_not_retried_and_has_its_code(client: RecordingClient, status: int) -> None:
    error = await client.fail(Step(status=status, times=None))
    assert (type(error), error.code) == STATUSES[status]
    assert len(client.double.requests) == 1
    assert "told to say" not in str(error), "the provider's own words may quote the payload"


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_passed_on(client: RecordingClient, status: int) -> None:
    error = await client.fail(Step(status=status, retry_after="7"))
    assert isinstance(error, UpstreamUnavailable) and error.retry_after_seconds == 7.0


async def test_an_unreachable_server_is_unavailable(litellm_provider: Provider) -> None:
    with ProviderDouble() as closed:
        gone = RecordingClient(litellm_provider, closed)
    error = await gone.fail(Step(text="hi"))
    assert (type(error), error.code, closed.requests) == (UpstreamUnavailable, "model_unavailable", [])


@pytest.mark.parametrize(
    ("step", "code", "retryable"),
    [
        (CONTEXT_OVERFLOW, "context_overflow", False),
        (OUT_OF_CREDIT, "model_billing", False),  # although its status is 429
        (Step(text="again " * 5000), "model_unavailable", True),
    ],
    ids=["a long conversation", "an empty account", "a word repeated for ever"],
)
async def test_an_invalid_answer_has_its_own_code(
    client: RecordingClient, step: Step, code: str, retryable: bool
) -> None:
    error = await client.fail(step)
    assert (error.code, error.retryable) == (code, retryable)
    assert all(isinstance(chunk, TextDelta) for chunk in client.chunks)


@pytest.mark.parametrize("name", ["num_retries", "max_retries", "stream", "fallbacks", "timeout", "model"])
async def test_an_agent_cannot_set_reserved_parameters_and_must_name_a_provider(
    client: RecordingClient, name: str
) -> None:
    params: dict[str, Any] = {name: "no-such-thing" if name == "model" else 3}
    with pytest.raises(UpstreamRejected) as raised:
        await client.ask(Step(text="hi"), **params)
    assert raised.value.code == "model_setup" and client.double.requests == []


def _raised() -> Iterator[type[Exception]]:
    for name in ("openai", "litellm.exceptions"):
        for _, member in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if issubclass(member, Exception) and not issubclass(member, Warning):
                yield member


def test_every_exception_class_of_litellm_and_openai_is_mapped(litellm_provider: Provider) -> None:
    unknown = [kind for kind in _raised() if provider_error(kind.__new__(kind)).code == UNEXPECTED.code]
    assert unknown == []
    assert len(list(_raised())) > 40
    for name in PROVIDER:  # each row names a class that exists
        module, _, attribute = name.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), attribute), Exception), name


def test_litellm_is_configured_to_send_once_and_report_nothing(litellm_provider: Provider) -> None:
    import litellm

    importlib.import_module("litellm.llms.vertex_ai.context_caching.vertex_ai_context_caching")
    assert litellm.num_retries is None and litellm.disable_aiohttp_transport is True
    assert litellm.failure_callback == litellm.callbacks == []
    # The import above, which a call to Vertex makes too, adds LiteLLM's own cache, which is off.
    assert litellm.success_callback == ["cache"] and litellm.cache is None
