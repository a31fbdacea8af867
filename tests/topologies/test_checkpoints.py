"""Checkpoints, rules and skills in `skill_pipeline`, really run, warm and cold; what cannot be read fails closed."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.contracts.activities import Verdicts
from perdure.contracts.calls import CallState
from perdure.contracts.errors import Problem
from perdure.contracts.messages import Role
from perdure.contracts.skills import PlanSkill, Rule
from perdure.contracts.turns import Limits
from perdure.core.agents.rules import PLATFORM_RULES
from perdure.graph.spec import Outcome
from tests.doubles.fake_turn import Says
from tests.topologies.played import (
    LOOK,
    PAY,
    Call,
    Played,
    V,
    Way,
    again_from_the_store,
    begin,
    decided,
    each_way,
    play,
    ran,
    resume,
    roles,
    settled,
    turn,
)

START = "system_prompt_node memory_node resume_guard"
FINISH = "skill_select_node approval_node synthesis_llm_call output_format"
SHOUT = ("shout", {"text": "a"})
SHOUTS, PAYS, SELECTS = Says("", (SHOUT,)), Says("", (("pay", {"amount": 5}),)), Says("I plan. SKILL_SELECT:plan")
FORCED: dict[str, JsonValue] = {"hitl_checkpoint_type": "pre_answer"}
decisions = st.sampled_from([V.PENDING, V.APPROVED, V.EDITED, V.REJECTED, V.RESPONDED, V.EXPIRED, V.WITHDRAWN])
calls = st.lists(st.sampled_from(["look", "pay", "post", "shout", "nobody"]), min_size=1, max_size=5)


def rule(rule_id: str, on: str, do: str = "require_hitl", **given: object) -> Rule:
    return Rule.model_validate({"id": rule_id, "on": on, "do": do, "app": "desk", "skill_id": "plan", **given})


SEEN = rule("desk/plan:seen", "after_tool_call", when={"tool": "shout"}, checkpoint="before_sending", message="why")
NO_LOOK = rule("desk/plan:blind", "before_tool_call", "abort", when={"tool": "look"}, message="Nobody looks.")
ASK_LOOK = rule("desk/plan:ask", "before_tool_call", when={"tool": "look"})
NO_SEEN = rule("desk/plan:seen", "after_tool_call", "abort", when={"tool": "shout"}, message="That was too loud.")
PAID = rule("desk/plan:paid", "after_tool_call", when={"tool": "pay"}, checkpoint="paid")


async def checked(*script: Says, **given: object) -> Played:
    """A turn of an agent with a checkpoint after `shout`."""
    return await play(*script, **{"rules": (SEEN,), **given})


def notes(played: Played) -> list[str]:
    return [message.text for message in played.messages if message.role.value == "system"]


async def test_a_checkpoint_pauses_with_the_round_answered_and_skips_everything_after() -> None:
    played = await checked(Says("", (SHOUT, LOOK)), Says("done"))
    assert played.traces() == [f"{START} initial_llm_call tool_node output_format"]
    assert (played.outcome(), played.asked_for()) == (Outcome.AWAITING, ["c1.0"])
    assert roles(played) == ["user", "assistantt1.0,t1.1", "toolt1.0", "toolt1.1"], "every call has its answer"
    assert (played.state["hitl_required"], played.state["hitl_checkpoint_type"]) == (True, "before_sending")
    stored = [{"id": message.id, "role": message.role.value} for message in played.messages]
    assert played.run.snapshot["messages"] == stored
    assert played.fires() == ["desk/plan:seen"]


@each_way
async def test_an_approved_checkpoint_continues_with_the_model_that_asked_and_is_not_opened_again(way: Way) -> None:
    played = await checked(SHOUTS, Says("done"))
    await way(played)
    assert played.outcome() is Outcome.AWAITING, "no decision was made"
    assert await decided(played, "c1.0", V.APPROVED, "fine", way=way) is Outcome.COMPLETED
    assert played.traces()[-1].endswith(f"resume_guard initial_llm_call {FINISH}")
    assert ran(played.turn) == ["t1.0"], "the call ran once"
    assert roles(played) == ["user", "assistantt1.0", "toolt1.0", "assistant"]
    assert played.fires() == ["desk/plan:seen"]
    assert played.state["hitl_required"] is False


@each_way
@pytest.mark.parametrize("state", [V.REJECTED, V.EXPIRED, V.RESPONDED, V.WITHDRAWN])
async def test_the_model_receives_a_rejected_checkpoint_with_its_reason(way: Way, state: V) -> None:
    played = await checked(SHOUTS, Says("I was told no"))
    assert await decided(played, "c1.0", state, "too loud", way=way) is Outcome.COMPLETED
    assert roles(played) == ["user", "assistantt1.0", "toolt1.0", "system", "assistant"]
    assert "too loud" in notes(played)[0]
    assert ran(played.turn) == ["t1.0"]


@each_way
async def test_an_edited_checkpoint_makes_the_call_again_once_as_a_call_of_its_own(way: Way) -> None:
    played = await checked(Says("", (SHOUT, LOOK)), Says("done"))
    assert await decided(played, "c1.0", V.EDITED, args={"text": "b"}, way=way) is Outcome.COMPLETED
    assert played.traces()[-1].endswith(f"resume_guard tool_node initial_llm_call {FINISH}")
    assert played.turn.ran == [("t1.0", {"text": "a"}), ("t1.1", {"what": "x"}), ("c1.0", {"text": "b"})]
    assert roles(played)[4:] == ["assistantc1.0", "toolc1.0", "assistant"]
    assert played.fires() == ["desk/plan:seen"], "what a reviewer made is not put before a reviewer again"


@each_way
async def test_checkpoints_wait_for_all_and_are_passed_once_though_an_edited_call_has_to_be_settled(way: Way) -> None:
    played = await checked(Says("", (SHOUT, SHOUT, SHOUT)), Says("done"))
    assert played.asked_for() == ["c1.0", "c1.1", "c1.2"]
    assert await decided(played, "c1.2", V.REJECTED, "no", way=way) is Outcome.AWAITING
    played.turn.decide("c1.0", V.EDITED, args={"breaks": True})
    assert await decided(played, "c1.1", V.EDITED, args={"text": "b"}, way=way) is Outcome.AWAITING
    assert played.asked_for() == ["|c1.0"]
    assert await settled(played, "c1.0", happened=True, way=way) is Outcome.COMPLETED
    assert roles(played)[5:] == ["system", "assistantc1.0", "assistantc1.1", "toolc1.0", "toolc1.1", "assistant"]
    assert ran(played.turn) == ["t1.0", "t1.1", "t1.2", "c1.0", "c1.1"], "each ran once"


@each_way
@pytest.mark.parametrize(("asks", "call_id", "first"), [(SHOUTS, "c2.0", ""), (PAYS, "t2.0", "tool_node ")])
async def test_the_synthesis_continues_there_with_its_skill(way: Way, asks: Says, call_id: str, first: str) -> None:
    played = await checked(SELECTS, asks, Says("done"), skill_ids=("plan",), skills=(PlanSkill(id="plan"),))
    assert played.asked_for() == [call_id]
    assert await decided(played, call_id, V.APPROVED, way=way) is Outcome.COMPLETED
    assert played.traces()[-1].endswith(f"resume_guard {first}synthesis_llm_call output_format")
    assert roles(played) == ["user", "assistant", "systemplan", "assistantt2.0", "toolt2.0", "assistant"]
    assert [message.skill_id for message in played.turn.asks[-1].messages][2] == "plan"


@each_way
async def test_a_gate_and_a_checkpoint_on_one_call_are_two_pauses_and_the_call_runs_once(way: Way) -> None:
    played = await play(PAYS, Says("done"), rules=(PAID,))
    assert await decided(played, "t1.0", V.APPROVED, way=way) is Outcome.AWAITING
    assert played.asked_for() == ["c1.0"]
    assert await decided(played, "c1.0", V.EDITED, args={"amount": 1}, way=way) is Outcome.COMPLETED
    assert played.turn.ran == [("t1.0", {"amount": 5}), ("c1.0", {"amount": 1})]


async def test_a_rule_may_gate_a_call_that_changes_nothing_and_its_fire_is_reported_once() -> None:
    played = await play(Says("", (LOOK,)), Says("done"), rules=(ASK_LOOK,))
    assert (played.asked_for(), played.turn.ran) == (["t1.0"], [])
    await decided(played, "t1.0", V.APPROVED)
    assert (ran(played.turn), played.fires()) == (["t1.0"], ["desk/plan:ask"])


@pytest.mark.parametrize(
    ("rule", "call", "dispatched"), [(NO_LOOK, LOOK, []), (NO_SEEN, SHOUT, ["t1.0"])], ids=["before", "after"]
)
async def test_a_rule_that_aborts_ends_the_turn_with_its_message(rule: Rule, call: Call, dispatched: list[str]) -> None:
    played = await play(Says("", (call,)), rules=(rule,))
    assert played.outcome() is Outcome.FAILED
    assert played.state["error"] == {"code": "rule_abort", "message": rule.message, "retry_after_seconds": None}
    assert ran(played.turn) == dispatched
    assert played.fires() == [rule.id]


@each_way
async def test_three_failed_resolves_ask_the_user_and_an_answer_resets_the_count(way: Way) -> None:
    find: Call = ("find", {})
    once = Says("", (find,))
    twice = Says("", (find, find))
    played = await play(twice, twice, once, Says("done"), rules=tuple(PLATFORM_RULES))
    assert (played.outcome(), played.asked_for()) == (Outcome.AWAITING, ["c2.0"]), "at three, and not at four again"
    assert len(played.fires()) == 1
    assert played.state["hitl_checkpoint_type"] == "force_clarify_after_failed_resolves"
    outcome = await decided(played, "c2.0", V.RESPONDED, "the one on Main Street", way=way)
    assert outcome is Outcome.COMPLETED, "one failure after the answer is only the first"
    assert "the one on Main Street" in notes(played)[0]
    assert played.state["consecutive_failed_resolves"] == 1


async def test_a_checkpoint_at_the_limit_is_asked_first_and_the_turn_ends_at_the_limit() -> None:
    played = await checked(SHOUTS, limits=Limits(max_iterations=1))
    assert played.outcome() is Outcome.AWAITING
    assert await decided(played, "c1.0", V.APPROVED) is Outcome.LIMITED
    assert len(played.turn.asks) == 1


async def test_a_checkpoint_that_cannot_be_opened_continues_with_a_warning() -> None:
    played = await checked(SHOUTS, Says("unseen"))
    assert await decided(played, "c1.0", V.UNAVAILABLE) is Outcome.COMPLETED
    assert notes(played)[0].startswith("HITL_WARNING: ")
    warned = [data for run in played.runs for kind, data in run.events if kind == "hitl.warning"]
    assert [each["tool"] for each in warned] == ["shout"]


@each_way
async def test_a_forced_checkpoint_skips_the_synthesis_until_it_is_approved_and_is_asked_once(way: Way) -> None:
    played = await play(SELECTS, Says("as planned"), skill_ids=("plan",), metadata=FORCED)
    paused = "initial_llm_call skill_select_node skill_inject_node approval_node output_format"
    assert played.traces() == [f"{START} {paused}"]
    assert (played.outcome(), played.asked_for()) == (Outcome.AWAITING, ["c1"])
    assert await decided(played, "c1", V.APPROVED, way=way) is Outcome.COMPLETED
    assert played.traces()[-1].endswith("resume_guard synthesis_llm_call output_format")
    assert roles(played) == ["user", "assistant", "systemplan", "assistant"]


@each_way
async def test_a_forced_checkpoint_that_is_rejected_is_acknowledged_and_nothing_is_synthesised(way: Way) -> None:
    played = await play(SELECTS, Says("I was told no"), skill_ids=("plan",), metadata=FORCED)
    assert await decided(played, "c1", V.REJECTED, "not yet", way=way) is Outcome.COMPLETED
    assert played.traces()[-1].endswith(f"resume_guard initial_llm_call {FINISH}")
    assert "not yet" in played.turn.asks[-1].messages[-1].text
    assert len(played.turn.asks) == 2, "the synthesis is skipped"


@pytest.mark.parametrize("name", ["No Name", "x" * 99, "pre_answer\n", 7, ["pre_answer"]])
async def test_a_forced_checkpoint_without_a_proper_name_fails_closed(name: JsonValue) -> None:
    played = await play(Says("hi"), metadata={"hitl_checkpoint_type": name})
    assert (played.outcome(), played.code) == (Outcome.FAILED, "bad_checkpoint")


async def test_a_skill_brings_its_dependencies_first_its_tier_and_its_tools() -> None:
    played = await play(
        SELECTS,
        Says("done"),
        skill_ids=("plan", "sums"),
        skills=(PlanSkill(id="plan", dependencies=("sums",), tools=("shout",), artifacts=2), PlanSkill(id="sums")),
        working={"recent_entity_context": ["e1", "e2"], "desk_no": "D-7"},
        entity_fields={"desk_no": "number"},
        injected=("sums",),
    )
    assert ["shout" in ask.tools for ask in played.turn.asks] == [False, True]
    assert played.state["injected_skill_ids"] == ["sums", "plan"]
    assert played.state["active_skills"] == {"sums": 2, "plan": 3}
    refs = [(message.skill_id, message.entities) for message in played.messages if message.skill_id]
    assert refs == [("sums", ()), ("plan", ("number=D-7", "id=e2"))]
    assert played.state["injected_entity_ids"] == ["number=D-7", "id=e2"]
    told_of = [data for kind, data in played.run.events if kind == "skill.injected"]
    assert told_of == [{"skill_id": "sums", "tier": 2, "again": True}, {"skill_id": "plan", "tier": 3}]


LOADED: dict[str, object] = {
    "skill_ids": ("plan", "sums"),
    "skills": (PlanSkill(id="plan", dependencies=("sums",), tools=("shout",), artifacts=2), PlanSkill(id="sums")),
    "injected": ("plan", "sums"),
    "loaded_skills": ("sums", "plan"),
}


async def test_a_turn_starts_with_the_skills_of_its_conversation_and_selects_none() -> None:
    played = await play(Says("done"), **LOADED)
    (ask,) = played.turn.asks
    assert [(each.skill_id, each.carried) for each in ask.messages] == [("sums", True), ("plan", True), ("", False)]
    assert "shout" in ask.tools and played.state["active_skills"] == {"sums": 2, "plan": 3}
    assert not [kind for kind, _ in played.run.events if kind.startswith("skill.")]


async def test_a_loaded_skill_that_is_selected_anyway_moves_to_the_end_with_one_copy() -> None:
    played = await play(SELECTS, Says("done"), **LOADED)
    refs = [[(each.skill_id, each.carried) for each in ask.messages if each.skill_id] for ask in played.turn.asks]
    assert refs == [[("sums", True), ("plan", True)], [("sums", True), ("plan", False)]]
    assert played.turn.asks[1].messages[-1].skill_id == "plan"
    assert played.state["injected_skill_ids"] == ["sums", "plan"]
    told_of = [data for kind, data in played.run.events if kind == "skill.injected"]
    assert told_of == [{"skill_id": "plan", "tier": 3, "again": True}]


@each_way
async def test_a_paused_turn_keeps_the_skills_that_it_began_with(way: Way) -> None:
    played = await play(PAYS, Says("done"), **LOADED)
    assert await decided(played, "t1.0", V.APPROVED, way=way) is Outcome.COMPLETED
    skills = [[each.skill_id for each in ask.messages if each.skill_id] for ask in played.turn.asks]
    assert skills == [["sums", "plan"]] * 2


UNLOADED: dict[str, object] = {**LOADED, "injected": (), "loaded_skills": ()}
LOADS: Call = ("load_skill", {"skill": "plan"})
LOADING: dict[str, tuple[str, list[Says], list[list[str]]]] = {
    "first": ("skill_pipeline", [Says("", (LOADS, LOOK))], [[], ["sums", "plan"]]),
    "alone": ("skill_pipeline", [Says("", (LOADS,))], [[], ["sums", "plan"]]),
    "in the synthesis": ("skill_pipeline", [Says("SKILL_SELECT:sums"), Says("", (LOADS, LOOK))],
        [[], ["sums"], ["plan", "sums"]]),
    "loaded already": ("skill_pipeline", [Says("", (LOADS, LOADS)), Says("", (LOADS,))],
        [[], ["sums", "plan"], ["sums", "plan"]]),
    "no such skill": ("skill_pipeline", [Says("", (("load_skill", {"skill": "gone"}),))], [[], []]),
    "a marker beside calls": ("skill_pipeline", [Says("SKILL_SELECT:plan", (LOOK,))], [[], ["sums", "plan"]]),
    "in a loop": ("tool_loop", [Says("", (LOADS, LOOK))], [[], ["sums", "plan"]]),
    "by a marker in a loop": ("tool_loop", [Says("SKILL_SELECT:plan")], [[], ["sums", "plan"]]),
    "a marker of nothing in a loop": ("tool_loop", [Says("SKILL_SELECT:gone")], [[], []]),
    "a marker of a loaded skill in a loop": ("tool_loop", [Says("SKILL_SELECT:plan")] * 2,
        [[], *[["sums", "plan"]] * 2]),
}  # fmt: skip


@pytest.mark.parametrize(("says", "known", "ending", "asks"), [
    ("SKILL_SELECT:gone", LOADED, "failed model_empty_answer", 2),
    ("SKILL_SELECT:plan", LOADED, "failed model_empty_answer", 2),
    ("SKILL_SELECT:", LOADED, "failed model_empty_answer", 2),
    ("well SKILL_SELECT:gone", LOADED, "completed", 1),
    ("SKILL_SELECT:gone", {}, "completed", 1),
])  # fmt: skip
async def test_a_loop_whose_answer_is_only_a_marker_asks_once_more_and_then_fails(
    says: str, known: dict[str, object], ending: str, asks: int
) -> None:
    played = await begin(turn(*[Says(says)] * asks, **known), "tool_loop")
    assert (f"{played.outcome().value} {played.code}".strip(), len(played.turn.asks)) == (ending, asks)
    assert (played.messages[-1].role is Role.ASSISTANT) == (ending == "completed")


@pytest.mark.parametrize(("topology", "says", "skills"), LOADING.values(), ids=list(LOADING))
async def test_a_skill_is_loaded_from_the_next_call_on(
    topology: str, says: list[Says], skills: list[list[str]]
) -> None:
    played = await begin(turn(*says, Says("done"), **UNLOADED), topology)
    assert played.outcome() is Outcome.COMPLETED
    assert [[each.skill_id for each in ask.messages if each.skill_id] for ask in played.turn.asks] == skills
    assert all(("load_skill" in ask.tools, "shout" in ask.tools) == (True, "plan" in loaded)
        for ask, loaded in zip(played.turn.asks, skills, strict=True))  # fmt: skip
    assert sorted(played.state["injected_skill_ids"]) == sorted(skills[-1])  # type: ignore[type-var, arg-type]


@each_way
async def test_a_skill_that_is_loaded_beside_a_gated_call_stays(way: Way) -> None:
    played = await play(Says("", (LOADS, PAY)), Says("done"), **UNLOADED)
    assert await decided(played, "t1.1", V.REJECTED, way=way) is Outcome.COMPLETED
    assert [each.skill_id for each in played.turn.asks[-1].messages if each.skill_id] == ["sums", "plan"]


Reading = Callable[[Verdicts], Verdicts]
AWAY = Verdicts(problem=Problem(code="activity_timeout", message="no answer"))
HALF_READ = Problem(code="unexpected_error", message="half read")
CLOSED: dict[str, tuple[V, Reading]] = {
    "pending": (V.PENDING, lambda read: read),
    "service error": (V.APPROVED, lambda read: AWAY),
    "error beside approvals": (V.APPROVED, lambda read: read.model_copy(update={"problem": HALF_READ})),
    "missing record": (V.APPROVED, lambda read: Verdicts()),
    "one record missing": (V.APPROVED, lambda read: Verdicts(verdicts=read.verdicts[1:])),
    "unreadable": (V.UNREADABLE, lambda read: read),
    "service error over a rejection": (V.REJECTED, lambda read: AWAY),
}
REFUSED = [V.REJECTED, V.RESPONDED, V.EXPIRED, V.CANCELLED, V.WITHDRAWN, V.UNAVAILABLE]


async def paused_turn(state: V, reading: Reading = lambda read: read) -> Played:
    """A turn that waits for two approvals, both of which are decided like this, and read so."""

    async def read(found: Verdicts) -> Verdicts:
        return reading(found)

    played = await play(Says("asking", (PAY, PAY)), Says("well"))
    for call_id in ("t1.0", "t1.1"):
        played.turn.decide(call_id, state, args={"amount": 1} if state is V.EDITED else None)
    played.turn.reading = read
    return played


@each_way
@pytest.mark.parametrize(("state", "reading"), CLOSED.values(), ids=list(CLOSED))
async def test_an_open_or_unreadable_gate_pauses_again_with_no_dispatch(way: Way, state: V, reading: Reading) -> None:
    played = await paused_turn(state, reading)
    await way(played)
    assert (played.outcome(), played.turn.ran) == (Outcome.AWAITING, [])
    assert len(played.turn.asks) == 1, "no model call either"
    assert played.run.trace()[-2:] == ["resume_guard", "output_format"]
    assert played.run.asked is None or way is again_from_the_store, "nothing is opened twice"
    assert played.state["pending_tool_calls"] == []
    waits_for = played.state["pending_requests"]
    assert isinstance(waits_for, list) and len(waits_for) == 2
    assert all(message.role is Role.USER for message in played.messages), "the round stays stripped"


@each_way
@pytest.mark.parametrize(("state", "amount"), [(V.APPROVED, 5), (V.EDITED, 1), *((state, 0) for state in REFUSED)])
async def test_a_readable_verdict_counts_alike_after_a_resume_and_a_restart(way: Way, state: V, amount: int) -> None:
    """An amount of 0 is not paid."""
    played = await paused_turn(state)
    await way(played)
    assert (played.outcome(), len(played.turn.asks)) == (Outcome.COMPLETED, 2)
    assert played.turn.ran == ([("t1.0", {"amount": amount}), ("t1.1", {"amount": amount})] if amount else [])
    roles = [message.role.value for message in played.messages]
    assert roles == ["user", *(["assistant", "tool", "tool"] if amount else ["system"]), "assistant"]


@each_way
async def test_an_unreadable_verdict_that_becomes_readable_lets_the_call_run_once(way: Way) -> None:
    played = await paused_turn(V.APPROVED, lambda read: AWAY)
    for _ in range(2):
        await way(played)
        assert played.outcome() is Outcome.AWAITING
    played.turn.reading = None
    await way(played)
    assert (played.outcome(), ran(played.turn)) == (Outcome.COMPLETED, ["t1.0", "t1.1"])


@each_way
async def test_a_stop_while_verdicts_are_read_ends_the_turn_as_stopped(way: Way) -> None:
    stopped = Verdicts(problem=Problem(code="stopped", message="stopped"))
    played = await paused_turn(V.APPROVED, lambda read: stopped)
    await way(played)
    assert (played.outcome(), played.turn.ran) == (Outcome.STOPPED, [])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls, st.data())
async def test_each_call_of_a_round_runs_at_most_once(tools: list[str], data: st.DataObject) -> None:
    breaks = {f"t1.{index}" for index in range(len(tools)) if data.draw(st.booleans())}
    script = tuple((tool, {"breaks": True} if f"t1.{index}" in breaks else {}) for index, tool in enumerate(tools))
    played = await play(Says("asking", script), Says("well"))
    made = played.turn
    allowed = {f"t1.{index}" for index, tool in enumerate(tools) if tool in ("look", "shout")}
    free = set(allowed)
    gated = {f"t1.{index}" for index, tool in enumerate(tools) if tool in ("pay", "post")}
    if gated:
        assert made.ran == [], "nothing of a gated round runs before it is decided"
    for _ in range(12):
        if played.outcome() is not Outcome.AWAITING:
            break
        for call_id in sorted(gated):
            state = data.draw(decisions)
            made.decide(call_id, state, args={} if state is V.EDITED else None)
            allowed |= {call_id} if state in (V.APPROVED, V.EDITED) else set()
            gated -= {call_id} if state is not V.PENDING else set()
        for row in made.rows.values():
            if row.state is CallState.OUTCOME_UNKNOWN and data.draw(st.booleans()):
                made.settle(row.call_id, data.draw(st.booleans()))
        await data.draw(st.sampled_from([resume, again_from_the_store]))(played)
        dispatched = ran(made)
        assert len(dispatched) == len(set(dispatched))
        assert set(dispatched) <= allowed
        assert not dispatched or not (made.book or gated) or allowed - free, "a verdict has freed the round"
        assert all(message.role is not Role.TOOL for message in played.messages) or not gated, "it stays stripped"
    answered = {message.call_id for message in played.messages if message.role is Role.TOOL}
    asked = {call.call_id for message in played.messages for call in message.calls}
    assert answered == asked, "no call without its answer, no answer without its call"
