"""The priority of labels in `skill_pipeline`, what its state starts as and what a round makes of it."""

from typing import Any

import pytest
from pydantic import JsonValue

from perdure.contracts.agents import PlanCard, TurnPlan
from perdure.contracts.calls import CallState, EffectClass, ToolOutcome
from perdure.contracts.messages import CallRef
from perdure.contracts.turns import Limits
from perdure.graph.nodes.run_tools import settle_round
from perdure.graph.spec import Router
from perdure.graph.topologies.skill_pipeline import spec
from perdure.graph.topologies.skill_pipeline.spec import STATE

CALLS = [{"call_id": "t1.0"}]
ERROR = {"code": "x", "message": "x"}


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


RECENT = "recent_entity_context"
CARD = PlanCard(name="find", effect=EffectClass.LOCAL, needs_approval=False, wants_state=(RECENT,))
PLAN = TurnPlan(agent_id="a", agent_version="1", persona_key="agent", limits=Limits(), cards=(CARD,))
TEN: list[JsonValue] = [f"e{number}" for number in range(10)]


@pytest.mark.parametrize(("before", "patches", "after"), [
    ([], [["e1"]], ["e1"]),
    (["e1"], [["e1", "e2"], ["e1", "e3"]], ["e1", "e2", "e3"]),
    (["e1", "e2"], [["e1", "e2", "e3"], ["e2", "e1"]], ["e2", "e3", "e1"]),
    (["e1"], [["e1", "e2"], ["e1", "e2"]], ["e1", "e2"]),
    (["e1"], [["e2"]], ["e2"]),
    (TEN, [[*TEN[1:], "x"], [*TEN[1:], "y"]], [*TEN[2:], "x", "y"]),
    (["e1"], [["e1", "e2"], []], ["e2"]),
])  # fmt: skip
def test_what_calls_add_stays(before: list[JsonValue], patches: list[list[JsonValue]], after: list[JsonValue]) -> None:
    calls = [CallRef(call_id=f"t1.{number}", tool="find", digest="d") for number in range(len(patches))]
    outcomes = [
        ToolOutcome(call_id=call.call_id, state=CallState.DONE, patch={RECENT: [*each]})
        for call, each in zip(calls, patches, strict=True)
    ]
    assert settle_round(STATE.initial(**{RECENT: [*before]}), PLAN, calls, outcomes, ()).patch[RECENT] == after
