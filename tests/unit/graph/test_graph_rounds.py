"""What several calls of one round make of the state that each of them saw as it was before."""

import pytest
from pydantic import JsonValue

from perdure.contracts.agents import PlanCard, TurnPlan
from perdure.contracts.calls import CallState, EffectClass, ToolOutcome
from perdure.contracts.messages import CallRef
from perdure.contracts.turns import Limits
from perdure.graph.nodes.run_tools import settled
from perdure.graph.topologies.skill_pipeline.spec import STATE

RECENT = "recent_entity_context"
CARD = PlanCard(name="find", effect=EffectClass.LOCAL, needs_approval=False, wants_state=(RECENT,))
PLAN = TurnPlan(agent_id="a", agent_version="1", persona_key="agent", limits=Limits(), cards=(CARD,))
TEN: list[JsonValue] = [f"e{number}" for number in range(10)]


@pytest.mark.parametrize(
    ("before", "said", "after"),
    [
        ([], [["e1"]], ["e1"]),
        (["e1"], [["e1", "e2"], ["e1", "e3"]], ["e1", "e2", "e3"]),
        (["e1", "e2"], [["e1", "e2", "e3"], ["e2", "e1"]], ["e2", "e3", "e1"]),
        (["e1"], [["e1", "e2"], ["e1", "e2"]], ["e1", "e2"]),
        (["e1"], [["e2"]], ["e2"]),
        (TEN, [[*TEN[1:], "x"], [*TEN[1:], "y"]], [*TEN[2:], "x", "y"]),
        (["e1"], [["e1", "e2"], []], ["e2"]),
    ],
)
def test_what_each_call_has_added_to_a_list_stays(
    before: list[JsonValue], said: list[list[JsonValue]], after: list[JsonValue]
) -> None:
    calls = [CallRef(call_id=f"t1.{number}", tool="find", digest="d") for number in range(len(said))]
    outcomes = [
        ToolOutcome(call_id=call.call_id, state=CallState.DONE, patch={RECENT: [*each]})
        for call, each in zip(calls, said, strict=True)
    ]
    state = STATE.initial(**{RECENT: [*before]})
    assert settled(state, PLAN, calls, outcomes, ()).patch[RECENT] == after
