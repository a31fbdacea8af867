"""Every way in which a provider goes wrong has its typed end, for one request, and nothing half is an answer."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from structlog.testing import capture_logs

from activities.clients.draft import REFUSAL_TEXT
from activities.clients.provider import Chunk, Complete, DraftCall, ProviderRequest, TextDelta, ThinkingDelta
from contracts.errors import PerdureError, UpstreamRejected, UpstreamUnavailable
from contracts.turns import Usage
from tests.doubles.provider import ProviderDouble
from tests.doubles.provider_steps import CONTENT_POLICY, CONTEXT_OVERFLOW, OUT_OF_CREDIT, Call, Fault, Step

# Warnings inside LiteLLM must not become errors there: it would take them for a broken stream.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
]

AFTER_TEXT: dict[Fault, tuple[type[PerdureError], str]] = {
    Fault.RESET: (UpstreamUnavailable, "model_unavailable"),
    Fault.RESET_AT_ONCE: (UpstreamUnavailable, "model_unavailable"),
    Fault.CUT: (UpstreamUnavailable, "model_cut_off"),
    Fault.NO_FINISH: (UpstreamUnavailable, "model_cut_off"),
    Fault.GARBAGE: (UpstreamUnavailable, "model_unavailable"),
    Fault.TRUNCATED_JSON: (UpstreamUnavailable, "model_cut_off"),
    Fault.DEEP_JSON: (UpstreamUnavailable, "model_unavailable"),
    Fault.HTML: (UpstreamUnavailable, "model_cut_off"),
    Fault.EMPTY_BODY: (UpstreamUnavailable, "model_cut_off"),
    Fault.WRONG_TYPES: (UpstreamUnavailable, "model_unavailable"),
    Fault.UNKNOWN_FINISH: (UpstreamUnavailable, "model_unreadable"),
    Fault.NO_CALLS: (UpstreamUnavailable, "model_unreadable"),
    Fault.NAMELESS_CALL: (UpstreamUnavailable, "model_unreadable"),
    Fault.ERROR_IN_STREAM: (UpstreamUnavailable, "model_unavailable"),
    Fault.HANG: (UpstreamUnavailable, "model_timeout"),
    Fault.HANG_AT_ONCE: (UpstreamUnavailable, "model_timeout"),
    Fault.ENDLESS: (UpstreamRejected, "answer_too_large"),
    Fault.HUGE_ARGUMENTS: (UpstreamRejected, "answer_too_large"),
}
WITHOUT_TEXT: dict[Fault, tuple[type[PerdureError], str]] = {
    **AFTER_TEXT,
    Fault.EMPTY: (UpstreamUnavailable, "model_empty_answer"),
}
STATUSES: dict[int, tuple[type[PerdureError], str]] = {
    400: (UpstreamRejected, "model_bad_request"),
    401: (UpstreamRejected, "model_auth"),
    402: (UpstreamRejected, "model_billing"),
    403: (UpstreamRejected, "model_auth"),
    404: (UpstreamRejected, "model_not_found"),
    408: (UpstreamUnavailable, "model_timeout"),
    409: (UpstreamUnavailable, "model_unavailable"),
    413: (UpstreamRejected, "context_overflow"),
    418: (UpstreamRejected, "model_bad_request"),
    422: (UpstreamRejected, "model_bad_request"),
    429: (UpstreamUnavailable, "model_rate_limited"),
    500: (UpstreamUnavailable, "model_unavailable"),
    502: (UpstreamUnavailable, "model_unavailable"),
    503: (UpstreamUnavailable, "model_unavailable"),
    504: (UpstreamUnavailable, "model_timeout"),
    529: (UpstreamUnavailable, "model_overloaded"),
}


@pytest.fixture(scope="module")
def double() -> Iterator[ProviderDouble]:
    with ProviderDouble() as running:
        yield running


@pytest.fixture(scope="module")
async def provider() -> AsyncIterator[Any]:
    from activities.clients.litellm_provider import LiteLLMProvider  # 5 s, once a session

    made = LiteLLMProvider()
    yield made
    await made.aclose()


class Listener:
    """Asks the double through LiteLLM and keeps what came, also before an error."""

    def __init__(self, provider: Any, double: ProviderDouble) -> None:
        self._provider = provider
        self.double = double
        self.chunks: list[Chunk] = []

    async def ask(self, *steps: Step, model: str = "openai/gpt-4o-mini", seconds: float = 10.0, **params: Any) -> None:
        self.double.script(*steps)
        self.chunks = []
        where = {"api_base": self.double.api_base, "api_key": "k"}
        request = ProviderRequest(
            model, ({"role": "user", "content": "hello"},), (), {**where, **params}, seconds, "turn-1.m1"
        )
        async with aclosing(self._provider.stream(request)) as stream:
            async for chunk in stream:
                self.chunks.append(chunk)

    async def fail(self, step: Step, seconds: float = 10.0) -> PerdureError:
        with pytest.raises(PerdureError) as raised:
            await self.ask(step, seconds=seconds)
        return raised.value

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks if isinstance(chunk, TextDelta))

    @property
    def complete(self) -> Complete:
        last = self.chunks[-1]
        assert isinstance(last, Complete)
        return last


@pytest.fixture
def listener(provider: Any, double: ProviderDouble) -> Listener:
    return Listener(provider, double)


def test_no_fault_of_the_double_is_left_out() -> None:
    assert set(Fault) == set(WITHOUT_TEXT) | {Fault.LONE_SURROGATES}


@pytest.mark.parametrize("fault", AFTER_TEXT, ids=str)
async def test_a_fault_after_partial_text_is_a_typed_error_and_no_answer(listener: Listener, fault: Fault) -> None:
    family, code = AFTER_TEXT[fault]
    error = await listener.fail(Step(text="one two ", fault=fault), seconds=1.0 if "hang" in fault else 10.0)
    assert (type(error), error.code) == (family, code)
    assert not any(isinstance(chunk, Complete) for chunk in listener.chunks)
    assert len(listener.double.requests) == 1


@pytest.mark.parametrize("fault", WITHOUT_TEXT, ids=str)
async def test_a_fault_before_any_text_is_a_typed_error(listener: Listener, fault: Fault) -> None:
    family, code = WITHOUT_TEXT[fault]
    error = await listener.fail(Step(fault=fault), seconds=1.0 if "hang" in fault else 10.0)
    assert (type(error), error.code) == (family, code)
    assert len(listener.double.requests) == 1


@pytest.mark.parametrize("status", STATUSES)
async def test_an_error_status_is_asked_once_and_has_its_code(listener: Listener, status: int) -> None:
    error = await listener.fail(Step(status=status, times=None))
    assert (type(error), error.code) == STATUSES[status]
    assert len(listener.double.requests) == 1
    assert "told to say" not in str(error) + str(error.details), "the provider's own words may quote the payload"


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_handed_on(listener: Listener, status: int) -> None:
    error = await listener.fail(Step(status=status, retry_after="7"))
    assert isinstance(error, UpstreamUnavailable) and error.retry_after_seconds == 7.0


async def test_a_server_that_is_gone_is_unavailable(provider: Any) -> None:
    with ProviderDouble() as closed:
        params = {"api_base": closed.api_base, "api_key": "k"}
    request = ProviderRequest("openai/gpt-4o-mini", ({"role": "user", "content": "hello"},), (), params)
    with pytest.raises(UpstreamUnavailable, match="model_unavailable"):
        await anext(provider.stream(request))


async def test_a_conversation_too_long_has_a_code_of_its_own(listener: Listener) -> None:
    assert (await listener.fail(CONTEXT_OVERFLOW)).code == "context_overflow"


async def test_an_empty_account_stops_at_once_although_its_status_is_429(listener: Listener) -> None:
    error = await listener.fail(OUT_OF_CREDIT)
    assert error.code == "model_billing" and not error.retryable


async def test_a_refusal_for_content_is_an_answer_that_costs_nothing(listener: Listener) -> None:
    await listener.ask(CONTENT_POLICY)
    assert listener.text == REFUSAL_TEXT
    assert listener.complete.finish_reason == "content_filter" and listener.complete.usage == Usage()


async def test_a_refusal_in_the_stream_is_the_text_of_the_answer(listener: Listener) -> None:
    await listener.ask(Step(refusal="I will not say."))
    assert listener.text == "I will not say." and listener.complete.finish_reason == "stop"


async def test_a_content_filter_leaves_no_calls_behind(listener: Listener) -> None:
    await listener.ask(Step(calls=(Call(name="pay"),), finish_reason="content_filter"))
    assert listener.text == REFUSAL_TEXT and listener.complete.tool_calls == ()


async def test_text_cut_at_the_output_limit_is_an_answer_that_says_so(listener: Listener) -> None:
    await listener.ask(Step(text="And then", finish_reason="length"))
    assert listener.text == "And then" and listener.complete.finish_reason == "length"


async def test_arguments_cut_at_the_output_limit_never_look_like_arguments(listener: Listener) -> None:
    error = await listener.fail(Step(calls=(Call(name="pay", arguments='{"amount": 1'),), finish_reason="length"))
    assert error.code == "output_limit" and listener.chunks == []


async def test_calls_that_end_with_stop_are_calls(listener: Listener) -> None:
    await listener.ask(Step(calls=(Call(name="look_up", arguments={"a": 1}),), finish_reason="stop"))
    assert listener.complete.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "calls",
    [
        (Call(name="a", id="same"), Call(name="b", id="same"), Call(name="c", id="same")),
        (Call(name="a", id=""), Call(name="b", id=""), Call(name="c", id="call_1")),
        (Call(name="a", id="x", index=0), Call(name="b", id="y", index=0), Call(name="c", id="z", index=0)),
        (Call(name="a", index=7), Call(name="b", index=3), Call(name="c", index=5)),
    ],
    ids=["repeated ids", "missing ids", "one index for all", "indices out of order"],
)
async def test_odd_ids_and_indices_lose_no_call(listener: Listener, calls: tuple[Call, ...]) -> None:
    await listener.ask(Step(calls=calls))
    drafts = listener.complete.tool_calls
    assert [(draft.name, draft.raw_arguments) for draft in drafts] == [("a", "{}"), ("b", "{}"), ("c", "{}")]
    assert len({draft.provider_id for draft in drafts} - {""}) == 3


async def test_broken_arguments_are_handed_on_as_they_are(listener: Listener) -> None:
    await listener.ask(Step(calls=(Call(name="a", arguments="{'x': 1,", id="i"),)))
    assert listener.complete.tool_calls == (DraftCall("i", "a", "{'x': 1,"),)


async def test_thinking_is_told_apart_from_text(listener: Listener) -> None:
    await listener.ask(Step(thinking="Let me see.", text="Yes."))
    thought = "".join(chunk.text for chunk in listener.chunks if isinstance(chunk, ThinkingDelta))
    assert (thought, listener.text) == ("Let me see.", "Yes.")


async def test_text_that_postgres_cannot_hold_is_mended(listener: Listener) -> None:
    await listener.ask(Step(fault=Fault.LONE_SURROGATES))
    assert listener.text == "half a \ufffd face and a \ufffd."
    listener.text.encode()


async def test_reported_usage_is_taken_with_its_cached_tokens_and_priced(listener: Listener) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    await listener.ask(Step(text="hi", usage={**usage, "prompt_tokens_details": {"cached_tokens": 60}}))
    # 40 at 0.15, 60 cached at 0.075 and 5 at 0.60 dollars a million are 13.5 micro-dollars.
    assert listener.complete.usage == Usage(input_tokens=100, output_tokens=5, cached_tokens=60, cost_microusd=14)


@pytest.mark.parametrize(
    "usage",
    [{}, {"prompt_tokens": -5, "completion_tokens": "many"}, {"prompt_tokens": 10**12, "completion_tokens": None}],
    ids=["missing", "nonsense", "absurd"],
)
async def test_usage_that_cannot_be_true_is_estimated_and_the_answer_is_kept(listener: Listener, usage: Any) -> None:
    await listener.ask(Step(text="hello to you all", usage=usage))
    counted = listener.complete.usage
    assert listener.text == "hello to you all" and len(listener.double.requests) == 1
    assert 0 < counted.input_tokens < 100 and 0 < counted.output_tokens < 100 and 0 < counted.cost_microusd < 1000


async def test_a_model_without_a_price_costs_nothing_and_is_flagged_once(listener: Listener) -> None:
    with capture_logs() as lines:
        for _ in range(3):
            await listener.ask(Step(text="hi"), model="openai/made-in-the-shed")
    assert listener.complete.usage.cost_microusd == 0 and listener.complete.usage.output_tokens > 0
    assert [line["model"] for line in lines if line["event"] == "model_without_price"] == ["openai/made-in-the-shed"]


async def test_the_idempotency_key_and_the_credentials_are_sent(listener: Listener) -> None:
    await listener.ask(Step(text="hi"), temperature=0.2, extra_headers={"X-Team": "blue"})
    (seen,) = listener.double.requests
    assert seen.idempotency_key == "turn-1.m1" and seen.authorized and seen.body["temperature"] == 0.2


@pytest.mark.parametrize("name", ["num_retries", "max_retries", "stream", "fallbacks", "timeout"])
async def test_an_agent_cannot_set_what_is_ours(listener: Listener, name: str) -> None:
    with pytest.raises(UpstreamRejected, match=name):
        params: dict[str, Any] = {name: 3}
        await listener.ask(Step(text="hi"), **params)
    assert listener.double.requests == []


async def test_a_model_name_without_a_provider_is_a_setup_error(listener: Listener) -> None:
    with pytest.raises(UpstreamRejected, match="model_setup"):
        await listener.ask(Step(text="hi"), model="no-such-thing")


async def test_a_word_repeated_for_ever_is_ended(listener: Listener) -> None:
    error = await listener.fail(Step(text="again " * 5000))
    assert error.code == "model_unavailable" and error.retryable


async def test_calls_at_the_same_time_do_not_mix(provider: Any, double: ProviderDouble) -> None:
    double.script(*(Step(match=f"^{n}$", text=f"{n} " * 20, token_seconds=0.005) for n in range(8)))

    async def ask(number: int) -> str:
        params = {"api_base": double.api_base, "api_key": "k"}
        request = ProviderRequest("openai/gpt-4o-mini", ({"role": "user", "content": str(number)},), (), params)
        return "".join([chunk.text async for chunk in provider.stream(request) if isinstance(chunk, TextDelta)])

    assert await asyncio.gather(*map(ask, range(8))) == [f"{n} " * 20 for n in range(8)]
