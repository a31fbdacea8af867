"""A model's answers on the real server: their ends, what is continued, and the fallback model."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.activities.model import ModelActivities
from perdure.contracts.agents import FallbackModel, OnLength
from perdure.contracts.errors import UpstreamRejected, UpstreamUnavailable
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.calls.endings import CONTINUE
from perdure.core.calls.retries import PROVIDER_ERRORS
from perdure.store.turns import views
from perdure.store.turns.conversations import list_messages
from tests.doubles.desk_variants import KEEPER, as_desk, keeper
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.eventually import until
from tests.harness import Harness, publish_app
from tests.served_turns import Served

FAIL = OnLength.FAIL
LOOK: tuple[str, dict[str, Any]] = ("look", {})

OWN, OTHER, TWO, APART, KEYLESS = "openai/own", "openai/other", "two_models", "apart_models", "keyless_models"
DOWN = UpstreamUnavailable("model_unavailable", "The model's provider is away.", retry_after_seconds=0.05)
UNKNOWN = "The provider does not know this model."
GONE = UpstreamRejected("model_not_found", UNKNOWN)


@pytest.fixture(scope="module", autouse=True)
async def own_agents(served: Served) -> None:
    formatted = FallbackModel(model="other", params={"response_format": {"type": "json_object"}})
    apart = FallbackModel(model=OTHER, params={"temperature": 1})
    own: dict[str, Any] = {"model": OWN, "model_params": {"api_base": "http://own", "temperature": 0}}
    changes: list[dict[str, Any]] = [
        {"id": f"desk_{FAIL}", "on_length": FAIL, "model": f"m_{FAIL}"},
        {"id": "desk_formatted", "model": "m_formatted", "fallback": formatted},
        {"id": TWO, "model": OWN, "fallback_model": OTHER},
        {"id": APART, **own, "fallback": apart},
        {"id": KEYLESS, **own, "fallback": apart.model_copy(update={"credential": "none"})},
    ]
    hubs = keeper(), keeper("two", model=OWN, fallback_model=OTHER)
    ours = [*hubs, *(as_desk(**each) for each in changes)]
    await publish_app(served.harness.owner_url, [*app_agents()[0], *(("desk", each) for each in ours)])


@pytest.fixture(autouse=True)
def model_failures(harness: Harness) -> Iterator[None]:
    harness.model.broken["m_formatted"] = GONE
    yield
    harness.model.broken.clear()


def cut(text: str, *calls: tuple[str, dict[str, Any]]) -> Line:
    return Line(text, calls, ends="length")


ENDS = {
    "continued": ("desk", [cut("one two"), cut(" three"), Line(" four")], "one two three four", "stop", False, ""),
    "cut at a space": ("desk", [cut("one \n"), Line("two")], "one \ntwo", "stop", False, ""),
    "cut at its end": ("desk", [cut("one two"), *[Line(ends="stop")] * 2], "one two", "length", True, ""),
    "cut and filtered": ("desk", [cut("one"), Line(ends="content_filter")], "one", "content_filter", True, ""),
    "failed without a text": ("desk_fail", [cut("", LOOK)], None, "length", True, "output_limit"),
    "formatted": ("desk_formatted", [cut('{"a":')], '{"a":', "length", True, "output_limit"),
    "filtered": ("desk", [Line("one", ends="content_filter")], "one", "content_filter", True, ""),
    "refused": ("desk", [Line("I will not", ends="refusal")], "I will not", "refusal", False, ""),
}


@pytest.mark.parametrize(("agent", "lines", "answer", "reason", "truncated", "code"), ENDS.values(), ids=list(ENDS))
async def test_every_end_is_told_apart_and_the_parts_are_one_answer(
    served: Served, agent: str, lines: list[Line], answer: str | None, reason: str, truncated: bool, code: str
) -> None:
    address, _ = await served.run_to_end(*lines, agent_id=agent)
    async with served.harness.db.transaction(address.tenant_id) as tx:
        turn: Any = await views.get_turn(tx, address.turn_id, None)
        messages: Any = (await list_messages(tx, address.conversation_id, 50, 0))[0]
        calls: Any = await views.calls_of(tx, address.turn_id, None)
        segments: Any = await views.turn_segments(tx, address.turn_id, None)
    assert (turn["answer"], turn["finish_reason"], turn["truncated"]) == (answer, reason, truncated)
    assert (turn["status"], (turn["error"] or {}).get("code", "")) == ("failed" if code else "completed", code)
    answers = [(each["content"], each["finish_reason"]) for each in messages if each["role"] == "assistant"]
    texts = [answer] if answer else []
    assert answers == [(text, reason) for text in texts]
    assert [each["text"] for each in segments] == texts, "the reader sees one text"
    stated = [line.ends if line.text or line.ends != "stop" else "length" for line in lines]  # nothing: still cut
    assert [(each["call_id"], each["finish_reason"]) for each in calls] == [
        (f"m{step}", ending) for step, ending in enumerate(stated, 1)
    ], "each continuation is a call of its own, and no tool ran"
    ends = await served.harness.event_data(address.turn_id, "generation.complete")
    parts = [str(answer)[each.get("start", 0) :][: each["characters"]] for each in ends if each["characters"]]
    assert parts == [line.text for line in lines if line.text], "a reader who missed tokens is sent each call's part"
    assert [each["finish_reason"] for each in ends] == stated
    for sent in served.sent_to_model(address)[1:]:
        assert sent[-1]["role"] == "user", "no vendor is asked to go on from a message of its own"


async def test_a_continuation_sees_the_cut_text_and_no_later_turn_sees_its_instruction(served: Served) -> None:
    address, _ = await served.run_to_end(cut("one"), Line(" two", [LOOK]), Line("seen"))
    first, second, third = served.sent_to_model(address)
    assert [each["content"] for each in second[-2:]] == ["one", CONTINUE]
    assert CONTINUE not in [each["content"] for each in [*first, *third]]
    assert [(each["role"], each["content"]) for each in third[-2:-1]] == [("assistant", "one two")]
    again, _ = await served.run_to_end(Line("well"), conversation_id=address.conversation_id)
    assert [each["content"] for each in served.sent_to_model(again)[0] if each["role"] == "assistant"] == [
        "one two",
        "seen",
    ]


async def test_a_continuation_whose_model_fails_keeps_the_text_of_the_failed_turn(served: Served) -> None:
    away = UpstreamRejected("model_auth", "The provider refused the key.")
    with served.harness.model.held("cut") as gate:
        address = await served.begin(Line("one", ends="length", waits="cut"), Line(" two"), agent_id="desk")
        await until(lambda: served.harness.model.said[f"{address.turn_id}.m1"])
        served.harness.model.broken["scripted"] = away
        gate.release()
        row = await served.until(address)
    assert (row["status"], row["problem"]["code"], row["answer"]) == ("failed", "model_auth", "one")
    await assert_cut(served, address, "one")


async def assert_cut(served: Served, address: TurnAddress, answer: str) -> None:
    """The turn has one message, its answer, and both have the end of the cut part."""
    async with served.harness.db.transaction(address.tenant_id) as tx:
        turn: Any = await views.get_turn(tx, address.turn_id, None)
        messages: Any = (await list_messages(tx, address.conversation_id, 50, 0))[0]
        segments: Any = await views.turn_segments(tx, address.turn_id, None)
    assert (turn["answer"], turn["finish_reason"], turn["truncated"]) == (answer, "length", True)
    answers = [(each["content"], each["finish_reason"], each["partial"]) for each in messages[1:]]
    assert answers == [(answer, "length", True)]
    assert [(each["text"], each["state"]) for each in segments] == [(answer, "partial")]


async def test_a_stop_while_a_continuation_waits_or_streams_keeps_one_message(served: Served) -> None:
    waiting = await served.begin(cut("one"), Line(" two", fails=99, again_seconds=60))
    await served.fails_once(waiting)
    await served.stop(waiting)
    await served.until(waiting, TurnStatus.STOPPED)
    await assert_cut(served, waiting, "one two")
    with served.harness.model.held("rest"):
        streaming = await served.begin(cut("one"), Line(" two", waits="rest"))
        await until(lambda: served.harness.model.said[f"{streaming.turn_id}.m2"])
        await served.stop(streaming)
        await served.until(streaming, TurnStatus.STOPPED)
    await assert_cut(served, streaming, "one two")


def asked_models(harness: Harness, address: TurnAddress) -> list[str]:
    return [each.model for each in harness.model.seen if each.idempotency_key.startswith(address.turn_id)]


async def test_the_fallback_model_answers_if_the_first_is_unavailable(served: Served) -> None:
    served.harness.model.broken[OWN] = DOWN
    address, row = await served.run_to_end(Line("here I am"), agent_id=TWO)
    assert (row["status"], row["answer"]) == ("completed", "here I am")
    assert asked_models(served.harness, address) == [OWN] * PROVIDER_ERRORS + [OTHER]
    (call,) = await served.harness.rows("SELECT model, errors, call_id FROM model_calls WHERE turn_id = $1", row["id"])
    assert tuple(call) == (OTHER, PROVIDER_ERRORS, "m1"), "one call, one ledger row, paid to the model that answered"
    told = await served.harness.event_data(address.turn_id, "transient_error")
    assert told[-1]["fallback_model"] == OTHER and "fallback_model" not in told[0]
    begun = await served.harness.event_data(address.turn_id, "generation.start")
    assert [each["model"] for each in begun] == [OWN] * PROVIDER_ERRORS + [OTHER]


@pytest.mark.parametrize("code", ["model_not_found", "model_setup", "model_timeout"])
async def test_an_unavailable_model_is_left_immediately_and_tried_first_by_the_next_call(
    served: Served, code: str
) -> None:
    served.harness.model.broken[OWN] = UpstreamRejected(code, "The provider does not serve this model, or too slowly.")
    address, _ = await served.run_to_end(Line("from the other"), agent_id=TWO)
    assert asked_models(served.harness, address) == [OWN, OTHER]
    served.harness.model.broken.clear()
    again, row = await served.run_to_end(Line("back"), agent_id=TWO, conversation_id=address.conversation_id)
    assert row["answer"] == "back" and asked_models(served.harness, again) == [OWN]


@pytest.mark.parametrize("code", ["model_not_found", "model_auth"])
async def test_a_fallback_model_has_its_own_settings_and_key(served: Served, code: str) -> None:
    served.harness.model.broken[OWN] = UpstreamRejected(code, "The provider refused it.")
    address, row = await served.run_to_end(Line("mine"), agent_id=APART)
    assert row["answer"] == "mine"
    sent = [each.params for each in served.harness.model.seen if each.idempotency_key.startswith(address.turn_id)]
    assert sent == [{"api_base": "http://own", "temperature": 0}, {"temperature": 1}]
    _, row = await served.run_to_end(Line("never said"), agent_id=KEYLESS)
    assert (row["status"], row["problem"]["code"]) == ("failed", "model_setup")
    assert row["problem"]["details"]["first"]["code"] == code


@pytest.mark.parametrize("code", ["model_bad_request", "model_auth", "output_limit"])
async def test_a_refused_key_is_not_sent_to_a_fallback_that_shares_it(served: Served, code: str) -> None:
    served.harness.model.broken[OWN] = UpstreamRejected(code, "The provider refused it.")
    address, row = await served.run_to_end(Line("never said"), agent_id=TWO)
    assert (row["status"], row["problem"]["code"]) == ("failed", code)
    assert asked_models(served.harness, address) == [OWN]


async def test_the_fallback_model_is_called_once(served: Served) -> None:
    refusal: dict[str, object] = {"refusal": {"status": 404}}
    gone = UpstreamRejected("model_not_found", UNKNOWN, refusal)
    served.harness.model.broken |= {OWN: gone, OTHER: DOWN}
    address, row = await served.run_to_end(Line("never said"), agent_id=TWO)
    assert (row["status"], row["problem"]["code"]) == ("failed", "model_unavailable")
    assert row["problem"]["details"] == {
        "model": OTHER,
        "first": {"model": OWN, "status": 404, "code": gone.code, "message": gone.message},
    }
    assert gone.message in row["problem"]["message"] and DOWN.message in row["problem"]["message"]
    assert asked_models(served.harness, address) == [OWN, OTHER]


async def test_a_conversation_too_long_for_the_fallback_model_is_halved_once(served: Served) -> None:
    long = Line("a long answer " * 20)
    address, _ = await served.run_to_end(long, agent_id=TWO)
    await served.run_to_end(long, agent_id=TWO, conversation_id=address.conversation_id)
    served.harness.model.broken |= {OWN: GONE, OTHER: UpstreamRejected("context_overflow", "It is too long.")}
    again, row = await served.run_to_end(Line("never said"), agent_id=TWO, conversation_id=address.conversation_id)
    assert asked_models(served.harness, again) == [OWN, OTHER, OTHER]
    assert (row["problem"]["code"], row["problem"]["details"]["first"]["code"]) == ("context_overflow", GONE.code)
    sizes = [len(messages) for messages in served.sent_to_model(again)]
    assert sizes[0] == sizes[1] > sizes[2]


async def test_a_call_of_a_dead_worker_is_repeated_with_its_first_model(harness: Harness) -> None:
    address, _ = await harness.start(Line("well"), agent_id=KEEPER)
    call = (await harness.model_call(address, agent_id=KEEPER)).model_copy(update={"strict": True})
    complete, asked = ModelActivities(harness.deps).complete, call.agent_id
    harness.model.broken[keeper(asked).definition.model] = asyncio.CancelledError()  # type: ignore[assignment]
    with pytest.raises(asyncio.CancelledError):
        await harness.activity(complete, call, attempt=1)
    harness.model.broken.clear()
    reply = await harness.activity(complete, call, attempt=2)
    assert reply.problem is None and reply.message is not None and reply.message.text == "well"
