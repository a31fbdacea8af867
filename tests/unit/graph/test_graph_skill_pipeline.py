"""The routers of `skill_pipeline` one by one, and what its state starts as."""

from typing import Any

import pytest

from graph.spec import Outcome, Router
from graph.topologies.skill_pipeline import routes
from graph.topologies.skill_pipeline.spec import skill_pipeline
from graph.topologies.skill_pipeline.state import STATE
from tests.topologies.specs.skill_pipeline import IDS, topology
from tests.topologies.stand_ins import stand_ins

CALLS = [{"call_id": "t1.0"}]
ERROR = {"code": "x", "message": "x"}


@pytest.mark.parametrize(
    ("router", "state", "label"),
    [
        (routes.after_resume_guard, {}, "proceed"),
        (routes.after_resume_guard, {"pending_tool_calls": CALLS}, "replay"),
        (routes.after_resume_guard, {"status": "awaiting_hitl"}, "paused"),
        (routes.after_resume_guard, {"status": "awaiting_hitl", "pending_tool_calls": CALLS}, "paused"),
        (routes.after_model_call, {}, "text"),
        (routes.after_model_call, {"pending_tool_calls": CALLS}, "tools"),
        (routes.after_model_call, {"error": ERROR}, "error"),
        (routes.after_model_call, {"error": ERROR, "pending_tool_calls": CALLS}, "error"),
        (routes.after_tool_node, {}, "initial"),
        (routes.after_tool_node, {"llm_phase": "synthesis"}, "synthesis"),
        (routes.after_tool_node, {"iteration": 19}, "initial"),
        (routes.after_tool_node, {"iteration": 20}, "limit"),
        (routes.after_tool_node, {"iteration": 21, "llm_phase": "synthesis"}, "limit"),
        (routes.after_tool_node, {"iteration": 3, "max_iterations": 3}, "limit"),
        (routes.after_tool_node, {"iteration": 20, "status": "awaiting_hitl"}, "paused"),
        (routes.after_skill_select, {}, "none"),
        (routes.after_skill_select, {"selected_skill_ids": ["s1"]}, "selected"),
        (routes.after_approval, {}, "proceed"),
        (routes.after_approval, {"status": "awaiting_hitl"}, "paused"),
    ],
)
async def test_a_router_takes_the_first_of_its_ways_that_the_state_allows(
    router: Router, state: dict[str, Any], label: str
) -> None:
    assert await router(STATE.initial(**{"status": "running", **state})) == label


def test_the_state_starts_with_the_defaults_of_the_requirements() -> None:
    state = STATE.initial()
    assert state["status"] == "pending"
    assert state["model"] == "gpt-4o"
    assert (state["max_tokens"], state["max_cost_microusd"]) == (100_000, 5_000_000)
    assert (state["tokens_used"], state["cost_microusd"], state["iteration"]) == (0, 0, 0)
    assert state["max_iterations"] == 20
    assert state["llm_phase"] == "initial"
    assert state["pending_mutation"] is None
    assert state["hitl_reviewer_strategy"] == "role_based"


def test_the_engine_reads_a_gate_as_waiting_and_a_pending_run_as_running() -> None:
    one = topology()
    meant = {status: one.outcome({"status": status}) for status in ("pending", "running", "awaiting_hitl", "failed")}
    assert meant == {
        "pending": Outcome.RUNNING,
        "running": Outcome.RUNNING,
        "awaiting_hitl": Outcome.AWAITING,
        "failed": Outcome.FAILED,
    }


@pytest.mark.parametrize("missing", IDS)
def test_the_topology_cannot_be_built_without_one_of_its_nodes(missing: str) -> None:
    nodes = stand_ins([node for node in IDS if node != missing])
    with pytest.raises(KeyError, match=missing):
        skill_pipeline(nodes)
