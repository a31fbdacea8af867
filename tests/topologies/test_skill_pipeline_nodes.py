"""The nodes of `skill_pipeline`, really run: routes, dispatches and what they leave; order of labels, the state."""

from copy import deepcopy
from typing import Any

import pytest

from perdure.contracts.errors import Problem
from perdure.contracts.messages import CallRef
from perdure.contracts.turns import Limits, OnSpent, Usage
from perdure.graph.spec import Outcome, Router
from perdure.graph.topologies.skill_pipeline import spec
from perdure.graph.topologies.skill_pipeline.spec import STATE
from tests.doubles.fake_turn import FakeTurn, Says
from tests.topologies.played import LOOK, PAY, POST, Call, V, begin, decided, play, ran, resume, roles, turn

START = "system_prompt_node memory_node resume_guard"
NOBODY: Call = ("nobody", {})
FINISH = "skill_select_node approval_node synthesis_llm_call output_format"
ANSWER = f"initial_llm_call {FINISH}"
SKILL = "initial_llm_call skill_select_node skill_inject_node approval_node synthesis_llm_call"
NO_ANSWER = "initial_llm_call output_format"
AFTER_TOOLS = "initial_llm_call tool_node initial_llm_call output_format"
LOOKS, DONE, SELECTS = Says(calls=(LOOK,)), Says("done"), Says("I plan. SKILL_SELECT:plan")
CALLS = [{"call_id": "t1.0"}]
ERROR = {"code": "x", "message": "x"}


def fails(code: str) -> Says:
    return Says(problem=Problem(code=code, message="no"))


def skilled(*script: Says, **given: Any) -> FakeTurn:
    return turn(*script, skill_ids=("plan",), **given)


def limited(*script: Says, **limits: int) -> FakeTurn:
    return turn(*script, limits=Limits(**limits))


def unloaded(code: str) -> FakeTurn:
    return turn(load_problem=Problem(code=code, message="gone"))


PLAIN = {
    "an answer": (turn(DONE), ANSWER, "completed"),
    "a failing model ends the turn": (turn(fails("model_auth")), NO_ANSWER, "failed model_auth"),
    "a stop is no failure": (turn(fails("stopped")), NO_ANSWER, "stopped stopped"),
    "tools in two rounds": (turn(LOOKS, Says(calls=(LOOK, LOOK)), DONE),
        f"initial_llm_call tool_node initial_llm_call tool_node {ANSWER}", "completed"),
    "a skill is injected and synthesised": (skilled(SELECTS, DONE), f"{SKILL} output_format", "completed"),
    "a skill that the agent has not is no skill": (skilled(Says("SKILL_SELECT:other"), DONE), ANSWER, "completed"),
    "the synthesis names no other skill": (skilled(SELECTS, Says("SKILL_SELECT:plan"), DONE),
        f"{SKILL} synthesis_llm_call output_format", "completed"),
    "it does so again": (skilled(SELECTS, *[Says("SKILL_SELECT:plan")] * 2),
        f"{SKILL} synthesis_llm_call output_format", "failed model_empty_answer"),
    "an answer that is only markers of no skill, twice": (skilled(Says("SKILL_SELECT:gone"), Says("SKILL_SELECT:lost")),
        ANSWER, "failed model_empty_answer"),
    "half a marker is no answer": (skilled(Says("SKILL_SELECT:"), DONE), ANSWER, "completed"),
    "a skill after the note": (skilled(Says("SKILL_SELECT:gone"), SELECTS, DONE),
        "initial_llm_call skill_select_node approval_node synthesis_llm_call skill_inject_node approval_node "
        "synthesis_llm_call output_format", "completed"),
    "an agent without skills has no markers": (turn(Says("SKILL_SELECT:gone")), ANSWER, "completed"),
    "a skill that the synthesis selects": (turn(SELECTS, Says("SKILL_SELECT:more"), DONE, skill_ids=("plan", "more")),
        f"{SKILL} skill_inject_node approval_node synthesis_llm_call output_format", "completed"),
    "tools in the synthesis come back to the synthesis": (skilled(SELECTS, LOOKS, DONE),
        f"{SKILL} tool_node synthesis_llm_call output_format", "completed"),
    "a synthesis that fails": (skilled(SELECTS, fails("model_cut_off")), f"{SKILL} output_format",
        "failed model_cut_off"),
    "the iteration limit comes before the model": (limited(LOOKS, LOOKS, max_iterations=2),
        "initial_llm_call tool_node initial_llm_call tool_node output_format", "limited iteration_limit"),
    "a budget that is just spent": (limited(LOOKS, max_tokens=15), AFTER_TOOLS, "limited token_budget_spent"),
    "one token is left": (limited(LOOKS, DONE, max_tokens=16), f"initial_llm_call tool_node {ANSWER}", "completed"),
    "no money is left": (limited(LOOKS, max_cost_microusd=100), AFTER_TOOLS, "limited cost_budget_spent"),
    "no budget, no call": (limited(max_tokens=0), NO_ANSWER, "limited token_budget_spent"),
    "the budget is checked before the synthesis too": (skilled(SELECTS, limits=Limits(max_tokens=15)),
        f"{SKILL} output_format", "limited token_budget_spent"),
    "a turn that could not be loaded": (unloaded("no_version"), NO_ANSWER, "failed no_version"),
    "a turn that was stopped before it loaded": (unloaded("stopped"), NO_ANSWER, "stopped stopped"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "trace", "ending"), PLAIN.values(), ids=list(PLAIN))
async def test_a_turn_without_people_takes_its_route(made: FakeTurn, trace: str, ending: str) -> None:
    played = await begin(deepcopy(made))  # the table's own turn stays as it was
    assert played.traces() == [f"{START} {trace}"]
    assert f"{played.outcome().value} {played.code}".strip() == ending
    assert (len(played.turn.asks), played.turn.script) == (len(made.script), [])


@pytest.mark.parametrize(("calls", "called"), [((NOBODY, LOOK), ["t1.1"]), ((NOBODY, ("none", {})), [])])
async def test_a_call_to_an_unknown_tool_is_an_error_and_never_gated(calls: tuple[Call, ...], called: Any) -> None:
    played = await play(Says("", calls), DONE)
    assert played.outcome() is Outcome.COMPLETED
    assert roles(played) == ["user", "assistantt1.0,t1.1", "toolt1.0", "toolt1.1", "assistant"]
    assert ran(played.turn) == played.turn.called == called, "no approval is opened for what cannot run"
    assert played.messages[2].id == played.messages[1].calls[0].answer_id != ""


async def test_a_call_settled_before_its_answer_had_a_name_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model call that was settled by the release before says nothing of answers."""
    plan_call = FakeTurn.plan_call

    def nameless(self: FakeTurn, *given: Any) -> CallRef:
        return plan_call(self, *given).model_copy(update={"answer_id": ""})

    monkeypatch.setattr(FakeTurn, "plan_call", nameless)
    played = await play(Says("", (NOBODY, LOOK)), DONE)
    assert played.turn.called == ["t1.0", "t1.1"]
    assert roles(played) == ["user", "assistantt1.0,t1.1", "toolt1.0", "toolt1.1", "assistant"]


async def test_tokens_and_cost_add_up_over_calls_and_attempts_that_broke_off_count_against_the_limits() -> None:
    usages = [Usage(input_tokens=10, output_tokens=1, cost_microusd=7), Usage(input_tokens=20, cost_microusd=4)]
    played = await play(Says(calls=(LOOK,), usage=usages[0]), Says("done", usage=usages[1]))
    assert (played.state["tokens_used"], played.state["cost_microusd"]) == (31, 11)
    used = Usage(input_tokens=90, output_tokens=10, cost_microusd=70)
    says = Says(calls=(LOOK,), usage=Usage(input_tokens=10, cost_microusd=7), turn_used=used)
    played = await play(says, Says("never asked for"), limits=Limits(max_tokens=100))
    assert (played.state["tokens_used"], played.state["cost_microusd"]) == (100, 70)
    assert (played.state["status"], played.code) == ("limited", "token_budget_spent")


@pytest.mark.parametrize("skills", [(), ("plan",)])
@pytest.mark.parametrize("code", ["token_budget_spent", "cost_budget_spent", "answer_over_budget"])
async def test_a_limit_that_the_call_itself_reaches_opens_a_request(code: str, skills: tuple[str, ...]) -> None:
    over = Says(problem=Problem(code=code, message="too much"), usage=Usage(input_tokens=40, cost_microusd=9))
    before = [SELECTS] if skills else []
    played = await play(*before, over, Says("well"), limits=Limits(on_spent=OnSpent.ASK), skill_ids=skills)
    phase = "synthesis" if skills else "initial"
    assert (played.outcome(), played.asked_for()) == (Outcome.AWAITING, [f"l{len(before) + 1}"])
    assert (played.state["llm_phase"], played.run.snapshot["llm_phase"]) == (phase, phase)
    assert played.state["tokens_used"] == 40 + 15 * len(before) and played.state["error"] is None
    ended = await play(*before, over, skill_ids=skills)
    assert (ended.outcome(), ended.state["status"]) == (Outcome.LIMITED, "limited")


@pytest.mark.parametrize("code", ["day_token_budget_spent", "day_cost_budget_spent"])
async def test_a_daily_budget_cannot_be_raised_by_a_reviewer(code: str) -> None:
    played = await play(fails(code), limits=Limits(on_spent=OnSpent.ASK))
    assert played.outcome() is Outcome.LIMITED and not played.asked_for()


async def test_a_fresh_turn_knows_its_user_and_state_aware_tools_update_only_known_fields() -> None:
    says = Says("", (("resolve", {}), ("resolve", {"entity": "e2"})))
    played = await play(says, DONE, user_name="", working={"recent_entity_context": ["e0"]})
    assert played.state["recent_entity_context"] == ["e1", "e2"] and "nobodys" not in played.state
    assert played.state["user"] == {"name": "user", "role": "clerk"}
    assert (played.state["agent_id"], played.state["model"]) == ("desk", "openai/small")
    assert (played.state["status"], played.state["llm_phase"]) == ("completed", "synthesis")
    assert played.state["skill_injection_done"] is False


async def test_an_injected_skill_follows_the_answer_that_chose_it_and_is_injected_once() -> None:
    played = await play(Says("SKILL_SELECT:plan SKILL_SELECT:plan"), SELECTS, skill_ids=("plan",))
    assert [message.skill_id for message in played.messages] == ["", "plan", ""]
    assert played.state["injected_skill_ids"] == ["plan"]
    assert played.state["active_skills"] == {"plan": 2}
    assert [message.skill_id for message in played.turn.asks[1].messages] == ["", "plan"]


async def test_a_gate_opens_every_approval_strips_the_round_and_dispatches_nothing() -> None:
    played = await play(Says("first", (LOOK,)), Says("then", (LOOK, PAY, POST)))
    assert played.traces() == [f"{START} initial_llm_call tool_node initial_llm_call tool_node output_format"]
    assert (played.outcome(), played.asked_for()) == (Outcome.AWAITING, ["t2.1", "t2.2"])
    assert ran(played.turn) == ["t1.0"], "nothing of the gated round, its free call neither"
    assert roles(played) == ["user", "assistantt1.0", "toolt1.0"], "no dangling call crosses the pause"
    assert played.run.snapshot["tokens_used"] == 30
    calls: Any = next(data["calls"] for kind, data in reversed(played.run.events) if kind == "tools.pending")
    gated = {call["call_id"]: call["requires_approval"] for call in calls}
    assert gated == {"t2.0": False, "t2.1": True, "t2.2": True}


@pytest.mark.parametrize(("reviewers", "strategy", "reviewer"), [
    ((), "role_based", None), (("ann",), "named_individual", "ann"), (("ann", "bob"), "named_individual", None),
])  # fmt: skip
async def test_a_pause_names_its_reviewers(reviewers: tuple[str, ...], strategy: str, reviewer: str | None) -> None:
    played = await play(Says("", (PAY,)), Says("paid"), reviewers=reviewers)
    assert (played.state["hitl_reviewer_strategy"], played.state["hitl_reviewer_id"]) == (strategy, reviewer)
    assert await decided(played, "t1.0", V.APPROVED) is Outcome.COMPLETED
    assert played.state["hitl_reviewer_id"] is None


DECIDED = {
    # round, verdicts by call, dispatched in order (none: it is acknowledged)
    "approved": ((PAY,), {"t1.0": V.APPROVED}, ["t1.0"]),
    "rejected": ((PAY,), {"t1.0": V.REJECTED}, []),
    "both approved": ((PAY, POST), {"t1.0": V.APPROVED, "t1.1": V.APPROVED}, ["t1.0", "t1.1"]),
    "one of two": ((PAY, POST), {"t1.0": V.REJECTED, "t1.1": V.APPROVED}, ["t1.1"]),
    "the other of two": ((PAY, POST), {"t1.0": V.EDITED, "t1.1": V.EXPIRED}, ["t1.0"]),
    "none of two": ((PAY, POST), {"t1.0": V.REJECTED, "t1.1": V.EXPIRED}, []),
    "free calls beside an approved one": ((LOOK, PAY, LOOK), {"t1.1": V.APPROVED}, ["t1.0", "t1.1", "t1.2"]),
    "free calls beside a rejected one": ((LOOK, PAY), {"t1.1": V.REJECTED}, []),
    "nobody's tool beside an approved one": ((NOBODY, PAY), {"t1.1": V.APPROVED}, ["t1.1"]),
}


@pytest.mark.parametrize(("calls", "verdicts", "dispatched"), DECIDED.values(), ids=list(DECIDED))
async def test_decided_rounds_run_whole(calls: tuple[Call, ...], verdicts: dict[str, V], dispatched: list[str]) -> None:
    played = await play(Says("asking", calls), Says("well"))
    for call_id, state in verdicts.items():
        played.turn.decide(call_id, state, f"because {call_id}", {"amount": 1} if state is V.EDITED else None)
    await resume(played)
    assert (played.outcome(), ran(played.turn)) == (Outcome.COMPLETED, dispatched)
    if dispatched:
        ids = [f"t1.{index}" for index in range(len(calls))]
        assert played.traces()[1] == f"resume_guard tool_node {ANSWER}"
        assert roles(played) == ["user", "assistant" + ",".join(ids), *(f"tool{each}" for each in ids), "assistant"]
        return
    assert played.traces()[1] == f"resume_guard {ANSWER}"
    assert roles(played) == ["user", "system", "assistant"]
    assert played.messages[1].refused == ((1, 1),)
    assert played.state["pending_mutation"] is None


async def test_a_rejection_in_the_synthesis_is_acknowledged_once_and_only_a_new_skill_is_synthesised_after_it() -> None:
    asks = Says("asking", (PAY,))
    played = await play(SELECTS, asks, Says("it was refused"), skill_ids=("plan",))
    assert await decided(played, "t2.0", V.REJECTED, "no") is Outcome.COMPLETED
    assert (played.traces()[1], len(played.turn.asks)) == (f"resume_guard {ANSWER}", 3)
    played = await play(SELECTS, asks, Says("SKILL_SELECT:more"), Says(), skill_ids=("plan", "more"))
    await decided(played, "t2.0", V.REJECTED, "no")
    assert len(played.turn.asks) == 4, "a skill that is injected after it is synthesised"


@pytest.mark.parametrize(("limits", "trace"), [
    (Limits(max_tokens=15), "resume_guard tool_node initial_llm_call output_format"),
    (Limits(max_iterations=1), "resume_guard tool_node output_format"),
])  # fmt: skip
async def test_budget_and_limit_also_apply_after_a_resume(limits: Limits, trace: str) -> None:
    played = await play(Says("asking", (PAY,)), limits=limits)
    assert await decided(played, "t1.0", V.APPROVED) is Outcome.LIMITED
    assert played.traces()[1] == trace
    assert ran(played.turn) == ["t1.0"], "what was approved has run"


@pytest.mark.parametrize(("router", "state", "label"), [
    (spec.after_resume_guard, {"status": "awaiting_hitl", "pending_tool_calls": CALLS}, "paused"),
    (spec.after_model_call, {"error": ERROR, "pending_tool_calls": CALLS}, "error"),
    (spec.after_tool_node, {"iteration": 21, "llm_phase": "synthesis"}, "limit"),
    (spec.after_tool_node, {"iteration": 3, "max_iterations": 3}, "limit"),
    (spec.after_tool_node, {"iteration": 20, "status": "awaiting_hitl"}, "paused"),
])  # fmt: skip
async def test_a_router_takes_the_first_label_that_fits(router: Router, state: dict[str, Any], label: str) -> None:
    assert await router(STATE.initial(**{"status": "running", **state})) == label


def test_the_state_starts_with_the_defaults_of_the_requirements() -> None:
    limits = {"max_tokens": 100_000, "max_cost_microusd": 5_000_000, "max_iterations": 20}
    used = {"tokens_used": 0, "cost_microusd": 0, "iteration": 0}
    strategy = {"pending_mutation": None, "hitl_reviewer_strategy": "role_based"}
    started = {"status": "pending", "model": "gpt-4o", "llm_phase": "initial", **limits, **used, **strategy}
    assert started.items() <= STATE.initial().items()
