"""The ten nodes of `skill_pipeline`, really run: every route, what it dispatches and what it leaves behind."""

from copy import deepcopy
from typing import Any

import pytest

from perdure.contracts.errors import Problem
from perdure.contracts.messages import CallRef, Role
from perdure.contracts.turns import Limits, OnSpent, Usage
from perdure.graph.nodes.fields import error_of
from perdure.graph.spec import Outcome
from tests.doubles.fake_turn import FakeTurn, Says
from tests.topologies.played import BREAKS, LOOK, PAY, POST, Call, V, begin, ran, resume, roles, turn

START = "system_prompt_node memory_node resume_guard"
NOBODY: Call = ("nobody", {})
FINISH = "skill_select_node approval_node synthesis_llm_call output_format"


PLAIN = [
    ("an answer", turn(Says("hi")), f"{START} initial_llm_call {FINISH}", Outcome.COMPLETED, "", 1),
    (
        "a failing model ends the turn (S0-05)",
        turn(Says(problem=Problem(code="model_auth", message="no"))),
        f"{START} initial_llm_call output_format",
        Outcome.FAILED,
        "model_auth",
        1,
    ),
    (
        "a stop is no failure",
        turn(Says(problem=Problem(code="stopped", message="stopped"))),
        f"{START} initial_llm_call output_format",
        Outcome.STOPPED,
        "stopped",
        1,
    ),
    (
        "tools in two rounds (S0-06)",
        turn(Says(calls=(LOOK,)), Says(calls=(LOOK, LOOK)), Says("done")),
        f"{START} initial_llm_call tool_node initial_llm_call tool_node initial_llm_call {FINISH}",
        Outcome.COMPLETED,
        "",
        3,
    ),
    (
        "a skill is injected and synthesised (S0-07)",
        turn(Says("SKILL_SELECT:plan"), Says("as planned"), skill_ids=("plan",)),
        f"{START} initial_llm_call skill_select_node skill_inject_node approval_node synthesis_llm_call output_format",
        Outcome.COMPLETED,
        "",
        2,
    ),
    (
        "a skill that the agent has not is no skill",
        turn(Says("SKILL_SELECT:other"), skill_ids=("plan",)),
        f"{START} initial_llm_call {FINISH}",
        Outcome.COMPLETED,
        "",
        1,
    ),
    (
        "tools in the synthesis come back to the synthesis (S0-06, S0-09)",
        turn(Says("SKILL_SELECT:plan"), Says(calls=(LOOK,)), Says("done"), skill_ids=("plan",)),
        f"{START} initial_llm_call skill_select_node skill_inject_node approval_node synthesis_llm_call tool_node"
        " synthesis_llm_call output_format",
        Outcome.COMPLETED,
        "",
        3,
    ),
    (
        "a synthesis that fails (S0-09)",
        turn(
            Says("SKILL_SELECT:plan"), Says(problem=Problem(code="model_cut_off", message="cut")), skill_ids=("plan",)
        ),
        f"{START} initial_llm_call skill_select_node skill_inject_node approval_node synthesis_llm_call output_format",
        Outcome.FAILED,
        "model_cut_off",
        2,
    ),
    (
        "the iteration limit comes before the model (S0-06, S0-60)",
        turn(Says(calls=(LOOK,)), Says(calls=(LOOK,)), limits=Limits(max_iterations=2)),
        f"{START} initial_llm_call tool_node initial_llm_call tool_node output_format",
        Outcome.LIMITED,
        "iteration_limit",
        2,
    ),
    (
        "a budget of tokens that is just spent (S0-40)",
        turn(Says(calls=(LOOK,)), limits=Limits(max_tokens=15)),
        f"{START} initial_llm_call tool_node initial_llm_call output_format",
        Outcome.LIMITED,
        "token_budget_spent",
        1,
    ),
    (
        "a budget with one token left allows the call",
        turn(Says(calls=(LOOK,)), Says("done"), limits=Limits(max_tokens=16)),
        f"{START} initial_llm_call tool_node initial_llm_call {FINISH}",
        Outcome.COMPLETED,
        "",
        2,
    ),
    (
        "a budget of money that is just spent",
        turn(Says(calls=(LOOK,)), limits=Limits(max_cost_microusd=100)),
        f"{START} initial_llm_call tool_node initial_llm_call output_format",
        Outcome.LIMITED,
        "cost_budget_spent",
        1,
    ),
    (
        "no budget, no call",
        turn(limits=Limits(max_tokens=0)),
        f"{START} initial_llm_call output_format",
        Outcome.LIMITED,
        "token_budget_spent",
        0,
    ),
    (
        "the budget is checked before the synthesis too",
        turn(Says("SKILL_SELECT:plan"), skill_ids=("plan",), limits=Limits(max_tokens=15)),
        f"{START} initial_llm_call skill_select_node skill_inject_node approval_node synthesis_llm_call output_format",
        Outcome.LIMITED,
        "token_budget_spent",
        1,
    ),
    (
        "a turn that could not be loaded",
        turn(load_problem=Problem(code="agent_version_not_found", message="gone")),
        f"{START} initial_llm_call output_format",
        Outcome.FAILED,
        "agent_version_not_found",
        0,
    ),
    (
        "a turn that was stopped before it loaded",
        turn(load_problem=Problem(code="stopped", message="stopped")),
        f"{START} initial_llm_call output_format",
        Outcome.STOPPED,
        "stopped",
        0,
    ),
]


@pytest.mark.parametrize(
    ("made", "trace", "outcome", "code", "model_calls"), [row[1:] for row in PLAIN], ids=[row[0] for row in PLAIN]
)
async def test_a_turn_without_people_takes_its_route(
    made: FakeTurn, trace: str, outcome: Outcome, code: str, model_calls: int
) -> None:
    made = deepcopy(made)  # the table's own turn stays as it was
    played = await begin(made)
    assert played.traces() == [trace]
    assert played.outcome() is outcome
    error = played.state["error"]
    assert (error["code"] if isinstance(error, dict) else "") == code
    assert len(made.asks) == model_calls
    assert made.script == []


async def test_a_call_is_answered_in_its_round_and_an_iteration_counted() -> None:
    played = await begin(turn(Says("", (LOOK, ("look", {"broken": True}))), Says("done")))
    assert roles(played) == ["user", "assistantt1.0,t1.1", "toolt1.0", "toolt1.1", "assistant"]
    assert "no such thing" in played.messages[3].text
    assert played.state["pending_tool_calls"] == []
    assert played.state["iteration"] == 2, "one round of tools, and output_format (S0-73)"


@pytest.mark.parametrize(("calls", "called"), [((NOBODY, LOOK), ["t1.1"]), ((NOBODY, ("none", {})), [])])
async def test_a_call_to_nobody_is_answered_with_an_error_and_never_gated(calls: tuple[Call, ...], called: Any) -> None:
    made = turn(Says("", calls), Says("done"))
    played = await begin(made)
    assert played.outcome() is Outcome.COMPLETED
    assert roles(played) == ["user", "assistantt1.0,t1.1", "toolt1.0", "toolt1.1", "assistant"]
    assert ran(made) == made.called == called, "nobody is asked for what cannot run"
    assert played.messages[2].id == played.messages[1].calls[0].answer_id != ""


async def test_a_call_settled_before_its_answer_had_a_name_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model call that was settled by the release before says nothing of answers."""
    plan_call = FakeTurn.plan_call

    def nameless(self: FakeTurn, *given: Any) -> CallRef:
        return plan_call(self, *given).model_copy(update={"answer_id": ""})

    monkeypatch.setattr(FakeTurn, "plan_call", nameless)
    made = turn(Says("", (NOBODY, LOOK)), Says("done"))
    played = await begin(made)
    assert made.called == ["t1.0", "t1.1"]
    assert roles(played) == ["user", "assistantt1.0,t1.1", "toolt1.0", "toolt1.1", "assistant"]


async def test_tokens_and_cost_add_up_over_calls() -> None:
    usages = [Usage(input_tokens=10, output_tokens=1, cost_microusd=7), Usage(input_tokens=20, cost_microusd=4)]
    played = await begin(turn(Says(calls=(LOOK,), usage=usages[0]), Says("done", usage=usages[1])))
    assert (played.state["tokens_used"], played.state["cost_microusd"]) == (31, 11)


async def test_attempts_that_broke_off_count_against_the_limits_of_the_turn() -> None:
    used = Usage(input_tokens=90, output_tokens=10, cost_microusd=70)
    says = (Says(calls=(LOOK,), usage=Usage(input_tokens=10, cost_microusd=7), turn_used=used), Says("never asked for"))
    played = await begin(turn(*says, limits=Limits(max_tokens=100)))
    assert (played.state["tokens_used"], played.state["cost_microusd"]) == (100, 70)
    problem = error_of(played.state)
    assert played.state["status"] == "limited" and problem is not None and problem.code == "token_budget_spent"


@pytest.mark.parametrize("skills", [(), ("plan",)])
@pytest.mark.parametrize("code", ["token_budget_spent", "cost_budget_spent", "answer_over_budget"])
async def test_a_limit_that_the_call_itself_meets_is_asked_for_too(code: str, skills: tuple[str, ...]) -> None:
    over = Says(problem=Problem(code=code, message="too much"), usage=Usage(input_tokens=40, cost_microusd=9))
    before = [Says("SKILL_SELECT:plan")] if skills else []
    made = turn(*before, over, Says("well"), limits=Limits(on_spent=OnSpent.ASK), skill_ids=skills)
    played = await begin(made)
    phase = "synthesis" if skills else "initial"
    assert (played.outcome(), played.asked_for()) == (Outcome.AWAITING, [f"l{len(before) + 1}"])
    assert (played.state["llm_phase"], played.run.snapshot["llm_phase"]) == (phase, phase)
    assert played.state["tokens_used"] == 40 + 15 * len(before) and played.state["error"] is None
    ended = await begin(turn(*before, over, skill_ids=skills))
    assert (ended.outcome(), ended.state["status"]) == (Outcome.LIMITED, "limited")


@pytest.mark.parametrize("code", ["day_token_budget_spent", "day_cost_budget_spent"])
async def test_a_days_budget_is_no_reviewers_to_raise(code: str) -> None:
    over = Says(problem=Problem(code=code, message="the day's budget is spent"))
    played = await begin(turn(over, limits=Limits(on_spent=OnSpent.ASK)))
    assert played.outcome() is Outcome.LIMITED and not played.asked_for()


async def test_a_state_aware_tool_updates_known_fields_only() -> None:
    made = turn(Says("", (("resolve", {}),)), Says("done"), working={"recent_entity_context": ["e0"]})
    played = await begin(made)
    assert played.state["recent_entity_context"] == ["e1"]
    assert "nobodys" not in played.state


async def test_a_fresh_turn_is_initialised_and_knows_its_user() -> None:
    played = await begin(turn(Says("hi"), user_name=""))
    assert played.state["user"] == {"name": "user", "role": "clerk"}
    assert (played.state["agent_id"], played.state["model"]) == ("desk", "openai/small")
    assert (played.state["status"], played.state["llm_phase"]) == ("completed", "synthesis")
    assert played.state["skill_injection_done"] is False


async def test_an_injected_skill_stands_behind_the_answer_that_chose_it_and_is_injected_once() -> None:
    made = turn(Says("SKILL_SELECT:plan SKILL_SELECT:plan"), Says("SKILL_SELECT:plan"), skill_ids=("plan",))
    played = await begin(made)
    assert [message.skill_id for message in played.messages] == ["", "", "plan", ""]
    assert played.state["injected_skill_ids"] == ["plan"]
    assert played.state["active_skills"] == {"plan": 2}
    assert [message.skill_id for message in made.asks[1].messages] == ["", "", "plan"]


async def test_a_gate_opens_every_approval_strips_the_round_and_dispatches_nothing() -> None:
    made = turn(Says("first", (LOOK,)), Says("then", (LOOK, PAY, POST)))
    played = await begin(made)
    assert played.traces() == [f"{START} initial_llm_call tool_node initial_llm_call tool_node output_format"]
    assert played.outcome() is Outcome.AWAITING
    assert played.asked_for() == ["t2.1", "t2.2"]
    assert ran(made) == ["t1.0"], "nothing of the gated round, its free call neither"
    assert roles(played) == ["user", "assistantt1.0", "toolt1.0"], "no dangling call crosses the pause (S0-55)"
    assert played.run.snapshot["tokens_used"] == 30
    pending = next(data["calls"] for kind, data in reversed(played.run.events) if kind == "tools.pending")
    assert isinstance(pending, list)
    assert [(call["call_id"], call["requires_approval"]) for call in pending if isinstance(call, dict)] == [
        ("t2.0", False),
        ("t2.1", True),
        ("t2.2", True),
    ]


@pytest.mark.parametrize(
    ("reviewers", "strategy", "reviewer"),
    [((), "role_based", None), (("ann",), "named_individual", "ann"), (("ann", "bob"), "named_individual", None)],
)
async def test_a_pause_says_who_decides_as_long_as_it_lasts(
    reviewers: tuple[str, ...], strategy: str, reviewer: str | None
) -> None:
    made = turn(Says("", (PAY,)), Says("paid"), reviewers=reviewers)
    played = await begin(made)
    assert (played.state["hitl_reviewer_strategy"], played.state["hitl_reviewer_id"]) == (strategy, reviewer)
    made.decide("t1.0", V.APPROVED)
    await resume(played)
    assert (played.outcome(), played.state["hitl_reviewer_id"]) == (Outcome.COMPLETED, None)


DECIDED = [
    # name, round, verdicts by call, dispatched in order, tool messages, model calls
    ("approved", (PAY,), {"t1.0": V.APPROVED}, ["t1.0"], True),
    ("rejected", (PAY,), {"t1.0": V.REJECTED}, [], False),
    ("both approved", (PAY, POST), {"t1.0": V.APPROVED, "t1.1": V.APPROVED}, ["t1.0", "t1.1"], True),
    ("one of two", (PAY, POST), {"t1.0": V.REJECTED, "t1.1": V.APPROVED}, ["t1.1"], True),
    ("the other of two", (PAY, POST), {"t1.0": V.EDITED, "t1.1": V.EXPIRED}, ["t1.0"], True),
    ("none of two", (PAY, POST), {"t1.0": V.REJECTED, "t1.1": V.EXPIRED}, [], False),
    ("free calls beside an approved one", (LOOK, PAY, LOOK), {"t1.1": V.APPROVED}, ["t1.0", "t1.1", "t1.2"], True),
    ("free calls beside a rejected one", (LOOK, PAY), {"t1.1": V.REJECTED}, [], False),
    ("nobody's tool beside an approved one", (NOBODY, PAY), {"t1.1": V.APPROVED}, ["t1.1"], True),
]


@pytest.mark.parametrize(
    ("calls", "verdicts", "dispatched", "replayed"), [row[1:] for row in DECIDED], ids=[row[0] for row in DECIDED]
)
async def test_a_decided_round_runs_whole_or_is_acknowledged(
    calls: tuple[Call, ...], verdicts: dict[str, V], dispatched: list[str], replayed: bool
) -> None:
    made = turn(Says("asking", calls), Says("well"))
    played = await begin(made)
    for call_id, state in verdicts.items():
        made.decide(call_id, state, comment=f"because {call_id}", args={"amount": 1} if state is V.EDITED else None)
    await resume(played)
    assert played.outcome() is Outcome.COMPLETED
    assert ran(made) == dispatched
    if replayed:
        ids = [f"t1.{index}" for index in range(len(calls))]
        assert played.traces()[1] == f"resume_guard tool_node initial_llm_call {FINISH}"
        assert roles(played) == ["user", "assistant" + ",".join(ids), *(f"tool{each}" for each in ids), "assistant"]
        return
    assert played.traces()[1] == f"resume_guard initial_llm_call {FINISH}"
    assert roles(played) == ["user", "system", "assistant"]
    for call_id in verdicts:
        assert f"because {call_id}" in played.messages[1].text
    assert played.messages[1].role is Role.SYSTEM
    assert played.state["pending_mutation"] is None


async def test_a_rejection_in_the_synthesis_is_acknowledged_once_and_nothing_is_synthesised_after_it() -> None:
    made = turn(Says("SKILL_SELECT:plan"), Says("asking", (PAY,)), Says("it was refused"), skill_ids=("plan",))
    played = await begin(made)
    made.decide("t2.0", V.REJECTED, "no")
    await resume(played)
    assert played.traces()[1] == f"resume_guard initial_llm_call {FINISH}"
    assert (played.outcome(), len(made.asks)) == (Outcome.COMPLETED, 3)
    made = turn(
        Says("SKILL_SELECT:plan"), Says("asking", (PAY,)), Says("SKILL_SELECT:more"), Says(), skill_ids=("plan", "more")
    )
    played = await begin(made)
    made.decide("t2.0", V.REJECTED, "no")
    await resume(played)
    assert len(made.asks) == 4, "a skill that is injected after it is synthesised (S0-44)"


async def test_the_budget_and_the_limit_hold_after_a_resume_too() -> None:
    made = turn(Says("asking", (PAY,)), limits=Limits(max_tokens=15))
    played = await begin(made)
    made.decide("t1.0", V.APPROVED)
    await resume(played)
    assert played.outcome() is Outcome.LIMITED
    assert played.traces()[1] == "resume_guard tool_node initial_llm_call output_format"
    assert ran(made) == ["t1.0"], "what was approved has run"
    made = turn(Says("asking", (PAY,)), limits=Limits(max_iterations=1))
    played = await begin(made)
    made.decide("t1.0", V.APPROVED)
    await resume(played)
    assert (played.outcome(), played.traces()[1]) == (Outcome.LIMITED, "resume_guard tool_node output_format")


async def test_an_outcome_nobody_knows_pauses_the_turn_until_a_person_says_it() -> None:
    made = turn(Says("asking", (("shout", {"breaks": True}), LOOK)), Says("well"))
    played = await begin(made)
    assert (played.outcome(), played.asked_for()) == (Outcome.AWAITING, ["|t1.0"])
    assert roles(played) == ["user"]
    await resume(played)
    assert played.outcome() is Outcome.AWAITING, "not settled yet"
    made.settle("t1.0", happened=True)
    await resume(played)
    assert played.outcome() is Outcome.COMPLETED
    assert ran(made) == ["t1.0", "t1.1"], "each was dispatched once"
    assert roles(played) == ["user", "assistantt1.0,t1.1", "toolt1.0", "toolt1.1", "assistant"]


async def test_two_unknown_outcomes_are_settled_one_by_one() -> None:
    made = turn(Says("asking", (BREAKS, BREAKS)), Says("well"))
    played = await begin(made)
    made.decide("t1.0", V.APPROVED)
    made.decide("t1.1", V.APPROVED)
    await resume(played)
    assert played.asked_for() == ["|t1.0", "|t1.1"]
    made.settle("t1.1", happened=False)
    await resume(played)
    assert played.outcome() is Outcome.AWAITING
    made.settle("t1.0", happened=True)
    await resume(played)
    assert played.outcome() is Outcome.COMPLETED
    assert len(made.ran) == 2
