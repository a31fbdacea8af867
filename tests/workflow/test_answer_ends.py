"""The ends of a model's answers on the real server: what is continued, and what the API says of each end."""

from typing import Any

import pytest

from perdure.contracts.agents import FallbackModel, OnLength
from perdure.contracts.errors import UpstreamRejected
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.calls.endings import CONTINUE
from perdure.store.turns import views
from perdure.store.turns.conversations import list_messages
from tests.doubles.desk_variants import as_desk
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.eventually import until
from tests.harness import publish_app
from tests.served_turns import Served

FAIL = OnLength.FAIL
LOOK: tuple[str, dict[str, Any]] = ("look", {})


@pytest.fixture(scope="module", autouse=True)
async def short_answer_agents(served: Served) -> None:
    away = UpstreamRejected("model_not_found", "The provider does not know this model.")
    served.harness.model.broken["m_formatted"] = away
    formatted = FallbackModel(model="other", params={"response_format": {"type": "json_object"}})
    changes: list[dict[str, Any]] = [
        *({"id": f"desk_{rule}", "on_length": rule, "model": f"m_{rule}"} for rule in (OnLength.TRUNCATE, FAIL)),
        {"id": "desk_formatted", "model": "m_formatted", "fallback": formatted},
    ]
    made = [("desk", as_desk(**changed)) for changed in changes]
    await publish_app(served.harness.owner_url, [*app_agents()[0], *made])


def cut(text: str, *calls: tuple[str, dict[str, Any]]) -> Line:
    return Line(text, calls, ends="length")


ENDS = {
    "whole": ("desk", [Line("all of it")], "all of it", "stop", False, ""),
    "continued": ("desk", [cut("one two"), cut(" three"), Line(" four")], "one two three four", "stop", False, ""),
    "cut at a space": ("desk", [cut("one \n"), Line("two")], "one \ntwo", "stop", False, ""),
    "cut after two": ("desk", [cut("one"), cut(" two"), cut(" three")], "one two three", "length", True, ""),
    "cut at its end": ("desk", [cut("one two"), *[Line(ends="stop")] * 2], "one two", "length", True, ""),
    "cut and filtered": ("desk", [cut("one"), Line(ends="content_filter")], "one", "content_filter", True, ""),
    "a cut call": ("desk", [cut("I", LOOK), Line(" say")], "I say", "stop", False, ""),
    "a cut call alone": ("desk", [cut("", LOOK), Line("short")], "short", "stop", False, ""),
    "truncated": ("desk_truncate", [cut("one two", LOOK)], "one two", "length", True, ""),
    "failed": ("desk_fail", [cut("one two")], "one two", "length", True, "output_limit"),
    "failed without a text": ("desk_fail", [cut("", LOOK)], None, "length", True, "output_limit"),
    "formatted": ("desk_formatted", [cut('{"a":')], '{"a":', "length", True, "output_limit"),
    "filtered": ("desk", [Line("one", ends="content_filter")], "one", "content_filter", True, ""),
    "refused": ("desk", [Line("I will not", ends="refusal")], "I will not", "refusal", False, ""),
    "paused before it began": ("desk_fail", [Line(ends="pause_turn"), Line("b")], "b", "stop", False, ""),
    "paused by its provider": ("desk_fail", [Line("a", ends="pause_turn"), Line(" b")], "a b", "stop", False, ""),
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
        try:
            row = await served.until(address)
        finally:
            del served.harness.model.broken["scripted"]
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
