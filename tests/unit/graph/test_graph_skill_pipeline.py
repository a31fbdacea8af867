"""The routers of `skill_pipeline` one by one, and what its state starts as."""

from typing import Any

import pytest

from perdure.graph.spec import Outcome, Router
from perdure.graph.topologies.skill_pipeline import spec
from perdure.graph.topologies.skill_pipeline.spec import STATE, skill_pipeline
from tests.topologies.specs.skill_pipeline import IDS, topology
from tests.topologies.stand_ins import stand_ins

CALLS = [{"call_id": "t1.0"}]
ERROR = {"code": "x", "message": "x"}


@pytest.mark.parametrize(
    ("router", "state", "label"),
    [
        (spec.after_resume_guard, {}, "proceed"),
        (spec.after_resume_guard, {"pending_tool_calls": CALLS}, "replay"),
        (spec.after_resume_guard, {"status": "awaiting_hitl"}, "paused"),
        (spec.after_resume_guard, {"status": "awaiting_hitl", "pending_tool_calls": CALLS}, "paused"),
        (spec.after_model_call, {}, "text"),
        (spec.after_model_call, {"pending_tool_calls": CALLS}, "tools"),
        (spec.after_model_call, {"error": ERROR}, "error"),
        (spec.after_model_call, {"error": ERROR, "pending_tool_calls": CALLS}, "error"),
        (spec.after_tool_node, {}, "initial"),
        (spec.after_tool_node, {"llm_phase": "synthesis"}, "synthesis"),
        (spec.after_tool_node, {"iteration": 19}, "initial"),
        (spec.after_tool_node, {"iteration": 20}, "limit"),
        (spec.after_tool_node, {"iteration": 21, "llm_phase": "synthesis"}, "limit"),
        (spec.after_tool_node, {"iteration": 3, "max_iterations": 3}, "limit"),
        (spec.after_tool_node, {"iteration": 20, "status": "awaiting_hitl"}, "paused"),
        (spec.after_skill_select, {}, "none"),
        (spec.after_skill_select, {"selected_skill_ids": ["s1"]}, "selected"),
        (spec.after_approval, {}, "proceed"),
        (spec.after_approval, {"status": "awaiting_hitl"}, "paused"),
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
