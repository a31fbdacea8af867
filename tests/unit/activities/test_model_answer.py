"""The events that a model call writes to the log of its turn, and the answer of a settled call that rules check."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from perdure.activities import model_answer
from perdure.activities.model_answer import MAX_THINKING_CHARACTERS, StreamAccumulator, events_of, plan_calls, reply_of
from perdure.activities.providers.provider import Complete, DraftCall
from perdure.activities.tool_answers import settled_answer
from perdure.contracts import calls as contracts
from perdure.contracts.agents import AgentDefinition, OnLength, PublishedAgent, ToolCard
from perdure.contracts.calls import EffectClass, ModelCall, ModelCallRequest, OutputAsk, OutputForm, ToolCall
from perdure.contracts.errors import Problem, UpstreamUnavailable
from perdure.contracts.skills import Skill
from perdure.contracts.turns import TurnAddress, Usage
from perdure.core.agents.skills import LOAD_SKILL
from perdure.core.agents.tool_schemas import sent_property
from perdure.core.agents.toolsets import LOAD_TOOLSET
from perdure.core.approvals.validity import ApprovalValidity
from perdure.core.calls.endings import FinishReason
from perdure.core.calls.retries import is_permanent
from perdure.core.transcript import SegmentEvent, segments_of
from perdure.sdk.tools import ToolResult
from perdure.store.events.event_log import NewEvent

ADDRESS = TurnAddress(tenant_id="t", conversation_id="c", turn_id="0197f000-0000-7000-8000-000000000001")
DEFINITION = AgentDefinition(id="a", title="A", topology="tool_loop")
YES, NO = '{"hijacked": true}', '{"hijacked": false}'


def card(name: str, effect: EffectClass = EffectClass.READ) -> ToolCard:
    fits = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
    made = {"name": name, "description": name, "parameters": fits, "effect": effect, "toolset": "rooms"}
    return ToolCard.model_validate({**made, "needs_approval": effect is not EffectClass.READ, "version": name})


OFFERED = (LOAD_TOOLSET, "look")
AGENT = PublishedAgent(definition=DEFINITION, cards=(card("look"), card("lock", EffectClass.KEYED)), version="v")


def asking(**given: object) -> ModelCall:
    """A call that offers what reads, and the loading of the rest."""
    asked = {"messages": (), "tools": OFFERED, "toolsets": {"rooms": False}, **given}
    ask = ModelCallRequest.model_validate(asked)
    return ModelCall(address=ADDRESS, call_id="m1", agent_id="a", agent_version="v", ask=ask)


def drafts_of(calls: Iterable[tuple[str, str]]) -> tuple[DraftCall, ...]:
    return tuple(DraftCall(f"p{n}", name, arguments) for n, (name, arguments) in enumerate(calls))


def answer_events(call: ModelCall, *drafts: tuple[str, str]) -> list[NewEvent]:
    heard, made = StreamAccumulator(text=["Let me see."], first_token_seconds=0.5), drafts_of(drafts)
    heard.add_thinking("Which? ", 0.2)
    heard.add_thinking("That one.", 0.25)
    heard.turn_seconds = 3.0
    heard.complete = Complete(made, Usage(input_tokens=5, output_tokens=2), "tool_calls", "m")
    plans = plan_calls(call, AGENT, made, call.ask.tools)
    reply, _ = reply_of(call, heard, None, plans.calls)
    return events_of(call, 1, heard, reply, plans.calls)


def test_the_end_of_thinking_and_the_runs_first_token_are_logged_before_the_answer() -> None:
    events = answer_events(asking())
    assert [event.kind for event in events] == ["thinking.complete", "ttft", "token.usage", "generation.complete"]
    assert events[0].data == {"duration": 0.25, "characters": 16, "text": "Which? That one."}
    assert events[1].data == {"seconds": 0.5, "turn_seconds": 3.5}, "an earlier call of the turn may have said nothing"
    assert "ttft" not in [event.kind for event in answer_events(asking(ttft_told=True))]


def test_the_start_of_long_reasoning_is_kept_and_all_of_it_counted() -> None:
    heard = StreamAccumulator(text=["Yes."])
    for piece in ("a" * MAX_THINKING_CHARACTERS, "bc", "d"):
        heard.add_thinking(piece, 1.0)
    reply, _ = reply_of(asking(), heard, None, ())
    thought = events_of(asking(), 1, heard, reply)[0].data
    assert (thought["characters"], thought["text"]) == (MAX_THINKING_CHARACTERS + 3, "a" * MAX_THINKING_CHARACTERS)
    assert reply.message is not None and reply.message.tokens == 1, "a later turn does not receive the reasoning"


@pytest.mark.parametrize("failed", [None, Problem(code="model_timeout", message="late")], ids=["read", "failed"])
def test_structured_output_is_not_shown_as_text(failed: Problem | None) -> None:
    wanted = OutputAsk(name="plan", fits={"type": "object"})
    heard = StreamAccumulator(text=['{"steps": []}'], first_token_seconds=0.5)
    usage, complete = events_of(asking(output=wanted), 1, heard, model_answer.structured_reply(wanted, heard, failed))
    assert usage.kind == "token.usage", "no first token was seen"
    assert (complete.kind, complete.data["characters"], complete.data["message_id"]) == ("generation.complete", 0, None)
    assert segments_of([SegmentEvent(complete.kind, complete.call_id, complete.data)]) == []


@pytest.mark.parametrize(("calls", "value"), [
    ([("verdict", NO)], {"hijacked": False}), ([("verdict", NO), ("verdict", NO)], {"hijacked": False}),
    ([("verdict", NO), ("verdict", YES)], None), ([("other", NO)], None),
    ([("other", NO), ("verdict", YES)], {"hijacked": True}), ([], None),
])  # fmt: skip
def test_an_answer_by_function_has_only_that_functions_output(calls: list[tuple[str, str]], value: Any) -> None:
    wanted = OutputAsk(name="verdict", fits={"type": "object"}, form=OutputForm.FUNCTION)
    heard = StreamAccumulator(text=["Let me see."], complete=Complete(drafts_of(calls), Usage(), "tool_calls", "m"))
    reply = model_answer.structured_reply(wanted, heard, None)
    assert (reply.value, bool(reply.fault)) == (value, value is None)


@pytest.mark.parametrize("end", ["refusal", "content_filter"])
@pytest.mark.parametrize("form", OutputForm)
def test_a_refused_object_is_a_permanent_problem(form: OutputForm, end: FinishReason) -> None:
    wanted = OutputAsk(name="verdict", fits={"type": "object"}, form=form)
    heard = StreamAccumulator(text=[YES], complete=Complete((), Usage(), end, "m", truncated=True))
    reply = model_answer.structured_reply(wanted, heard, None)
    assert (reply.value, reply.fault, reply.finish_reason, reply.truncated) == (None, "", end, True)
    assert reply.problem is not None and is_permanent(reply.problem) and "structured output" in reply.problem.message


def test_reasoning_text_is_not_the_answer_nor_its_first_token() -> None:
    heard = StreamAccumulator(text=["Hm."], first_token_seconds=0.5)
    heard.void_text("Hm.", 1.0)
    assert (heard.full_text, heard.first_token_seconds, heard.stored_thinking) == ("", None, ["Hm."])
    assert heard.thinking_characters == 3


def test_a_call_settled_at_planning_has_its_end_in_the_log() -> None:
    load, what = (LOAD_TOOLSET, '{"toolset": "rooms", "include_write_tools": true}'), '{"what": "a"}'
    again = (LOAD_TOOLSET, '{"toolset": "rooms"}')
    events = answer_events(asking(), load, again, ("lock", what), ("look", "{}"), ("look", what))[-4:]
    assert [event.kind for event in events] == ["tool.result", *["tool.error"] * 3]
    assert [event.call_id for event in events] == ["t1.0", "t1.1", "t1.2", "t1.3"]
    said = [str(event.data["result"]) for event in events]
    assert '"new_tools":["lock"]' in said[0] and not any("new_tools" in each for each in said[1:])
    assert "rooms" in said[2], "what is loaded holds from the next step on"
    assert "what" in said[3]
    plans = plan_calls(asking(), AGENT, [DraftCall("p", LOAD_TOOLSET, '{"toolset": "rooms", "include_wr')], OFFERED)
    (made,) = plans.calls
    assert (plans.loaded, made.ref.settled, made.ref.args) == (None, True, {})
    assert made.message is not None


def test_every_call_beyond_the_limit_is_answered_and_does_not_run() -> None:
    plans = plan_calls(asking(), AGENT, drafts_of([("look", '{"what": "a"}')] * 79 + [(LOAD_TOOLSET, "{")]), OFFERED)
    assert [made.ref.settled for made in plans.calls] == [False] * 64 + [True] * 16 and plans.loaded is None
    assert len({made.row.provider_call_id for made in plans.calls}) == 80
    assert [made.event.kind for made in plans.calls if made.event] == ["tool.error"] * 16
    assert {made.entry["arguments"] for made in plans.calls[:79]} == {'{"what":"a"}'}, "the model sees what it asked"
    assert len({made.ref.answer_id for made in plans.calls[64:]} - {""}) == 16
    more = plan_calls(asking(), AGENT, drafts_of([("look", '{"what": "a"}')] * 66), OFFERED, has_unread=True)
    said = [made.message.content for made in more.calls if made.message]
    assert ["not read" in each for each in said] == [False, True], "the model hears of calls that nobody has read"


def test_a_call_that_does_not_run_has_the_propertys_own_name() -> None:
    odd = card("look").model_copy(update={"parameters": {"type": "object", "properties": {"$top": {}}}})
    drafts = drafts_of([("look", f'{{"{sent_property("$top")}": 1}}')] * 65)
    assert plan_calls(asking(), AGENT.model_copy(update={"cards": (odd,)}), drafts, OFFERED).calls[64].row.args == {
        "$top": 1
    }


@pytest.mark.parametrize(("name", "written", "sent"), [
    ("look", '{"what": "a"}', None), ("look", '{"wha": "a"}', '{"wha": "a"}'),
    ("look", '{"what": "a', r'{"_invalid_arguments":"{\"what\": \"a"}'), ("look", "", None),
    ("gone", '{"what": "a"}', '{"what": "a"}'), (LOAD_TOOLSET, "rooms", '{"_invalid_arguments":"rooms"}'),
])  # fmt: skip
def test_a_call_whose_arguments_were_not_accepted_keeps_the_models_own(name: str, written: str, sent: Any) -> None:
    (plan,) = plan_calls(asking(), AGENT, drafts_of([(name, written)]), OFFERED).calls
    assert plan.entry.get("sent_arguments") == sent
    assert (plan.row.args == {}) == (plan.entry["arguments"] == "{}") == (plan.row.outcome is not None)


def test_rules_are_asked_of_a_tools_own_answer_where_a_reviewer_changed_the_call_too() -> None:
    ask = contracts.ToolCallRequest(call_id="t1.0", tool="look", paths=("status", "result.total"))
    call = ToolCall(address=ADDRESS, agent_id="a", agent_version="v", ask=ask)
    edited = ApprovalValidity("a1", "reserved", "v", {"well": "A"}, intact=True, comment="", edited=True)
    result = ToolResult({"status": "ok", "result": {"total": 7}})
    answers = [settled_answer(call, card("look"), each, result) for each in (edited, None)]
    assert [each.outcome.facts for each in answers] == [{"status": "ok", "result.total": 7}] * 2
    said = json.loads(answers[0].message.content)
    assert said["arguments"] == {"well": "A"} and said["result"] == result.output, "the model is told of the change"


def test_an_interrupted_answer_is_charged_for_its_received_part() -> None:
    heard = StreamAccumulator(
        text=["12345678"], request_tokens=9, price=lambda used: used.input_tokens + 10 * used.output_tokens
    )
    assert heard.usage == Usage(input_tokens=9, output_tokens=2, cost_microusd=29)
    assert StreamAccumulator(request_tokens=9, stopped=True).usage == Usage(input_tokens=9), (
        "stopped before its first token"
    )


@pytest.mark.parametrize(("reported", "known"), [(0, 3), (2, 2)])
def test_reasoning_is_counted_by_the_provider_or_by_its_length(reported: int, known: int) -> None:
    usage = Usage(input_tokens=5, output_tokens=20, thinking_tokens=reported)
    heard = StreamAccumulator(thinking_characters=12, complete=Complete((), usage, "stop", "m"))
    assert heard.usage == usage.model_copy(update={"thinking_tokens": known})
    assert StreamAccumulator(thinking_characters=12, request_tokens=1).usage.thinking_tokens == 3, (
        "of a call that broke off, too"
    )


@pytest.mark.parametrize(("code", "asked"), [
    ("model_unavailable", 0), ("model_rate_limited", 0), ("model_timeout", 9), ("model_empty_answer", 9),
])  # fmt: skip
def test_an_accepted_request_is_charged_even_without_an_answer(code: str, asked: int) -> None:
    heard = StreamAccumulator(request_tokens=9)
    heard.note_error(UpstreamUnavailable(code, "no answer", {"output_tokens": 0}))
    assert heard.usage == Usage(input_tokens=asked)


@pytest.mark.parametrize("sent", [(LOAD_TOOLSET,), ()])
def test_a_tool_that_its_request_did_not_have_does_not_run(sent: tuple[str, ...]) -> None:
    (made,) = plan_calls(asking(), AGENT, drafts_of([("look", '{"what": "a"}')]), sent).calls
    assert made.ref.settled and made.event is not None and made.event.kind == "tool.error"
    assert made.row.tool_version == "", "it is not a tool of the agent here"


@pytest.mark.parametrize(("text", "reason", "expected"), [
    ("", "stop", ("length", True, True)),
    (" ", "stop", ("length", True, True)),
    ("end", "stop", ("stop", False, False)),
    ("I refuse", "refusal", ("refusal", True, False)),
])  # fmt: skip
def test_an_answer_without_the_rest_stays_cut(text: str, reason: Any, expected: tuple[str, bool, bool]) -> None:
    call = asking(continues="0197f000-0000-7000-8000-000000000009", may_continue=True)
    heard = StreamAccumulator(text=[text], before="One ", complete=Complete((), Usage(), reason, "m"))
    reply, _ = reply_of(call, heard, None, (), heard.ending(call, OnLength.CONTINUE))
    assert (reply.finish_reason, reply.truncated, reply.goes_on) == expected


def test_an_empty_answer_after_reasoning_says_so() -> None:
    heard, error = StreamAccumulator(), UpstreamUnavailable("model_empty_answer", "Empty.")
    heard.explain(error)
    assert error.message == "Empty."
    heard.add_thinking("Hm.", 1.0)
    heard.explain(error)
    assert "reasoning" in error.message and "max_tokens" in error.message


def test_calls_that_were_not_run_keep_their_place() -> None:
    asked: Any = {"calls": [{"call_id": "t1.0", "tool": "a"}, {"call_id": "t1.2", "tool": "a"}]}
    events = [*(SegmentEvent("tool.error", f"t1.{n}", {"tool": "a"}) for n in (1, 10)),
              SegmentEvent("tools.pending", None, asked)]  # fmt: skip
    assert [each.call_id for each in segments_of(events)] == ["t1.0", "t1.1", "t1.2", "t1.10"]


BLOCK = {"name": "weigh", "description": "d", "source": "s", "llm_visible": True, "input": {}, "output": {}}
SKILLED = AGENT.model_copy(update={
    "cards": (*AGENT.cards, card("weigh").model_copy(update={"toolset": ""})),
    "definition": DEFINITION.model_copy(update={"skills": (
        Skill.model_validate({"id": "post", "name": "P", "description": "d", "body": "b", "blocks": [BLOCK]}),)}),
})  # fmt: skip


def test_a_call_that_loads_a_skill_is_answered_at_once_and_a_block_of_another_names_it() -> None:
    drafts = drafts_of([
        ("weigh", '{"what": "a"}'), (LOAD_SKILL, '{"skill": "gone"}'), (LOAD_SKILL, '{"skill"'),
        (LOAD_SKILL, '{"skill": "post", "why": "x"}'), (LOAD_SKILL, '{"skill": "post"}'),
    ])  # fmt: skip
    plans = plan_calls(asking(tools=(LOAD_SKILL, "look")), SKILLED, drafts, (LOAD_SKILL, "look"))
    answers = [json.loads(plan.message.content) for plan in plans.calls if plan.message]
    assert [answer["status"] for answer in answers] == ["error", "error", "error", "loaded", "already_loaded"]
    assert "post" in answers[0]["message"] and answers[3]["new_tools"] == ["weigh"]
    assert [plan.ref.args for plan in plans.calls] == [{}, {}, {}, {"skill": "post"}, {"skill": "post"}]
    assert plans.skill_ids == ("post",)
    (plan,) = plan_calls(asking(tools=("look",)), SKILLED, drafts[1:2], ("look",)).calls
    assert plan.row.effect == "opaque", "it is not offered"
