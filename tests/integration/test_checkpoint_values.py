"""A checkpoint covers what its call came to, whatever JSON that is: jsonb gives numbers back in another form."""

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.activities import OpenRequest, VerdictsRequest
from perdure.contracts.approvals import GatedCall, RequestKind, VerdictState
from perdure.core.turns import Caps
from tests.doubles.target import app_agents
from tests.harness import Harness
from tests.scale import sized

BOOK = ("desk", "book")
MANY = Caps(turns_a_user=100_000)
DEEP: JsonValue = json.loads("[" * 60 + "1e16" + "]" * 60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@dataclass(slots=True)
class Answering:
    """A desk whose bookings answer with `value`."""

    harness: Harness
    value: JsonValue = None


@pytest.fixture(scope="module")
def answering(harness: Harness) -> Answering:
    made = Answering(harness)

    async def answers(*_: Any, **__: Any) -> Any:
        return {"net": made.value}

    tools = [
        (agent_id, replace(tool, function=answers) if (agent_id, tool.card.name) == BOOK else tool)
        for agent_id, tool in app_agents()[1]
    ]
    toolbox = Toolbox(tools, lambda name: None, harness.deps.toolbox.http)
    made.harness = replace(harness, deps=replace(harness.deps, toolbox=toolbox))
    return made


@pytest.mark.sized
@settings(deadline=None, max_examples=sized(30, 4), suppress_health_check=[HealthCheck.too_slow])
@given(JSON)
@example([-0.0, 1e16, 1e22, {"net": 1.0}, 0.1, 1e-9, 5e-324, 1.7976931348623157e308])
@example(10**400)
@example(DEEP)
async def test_an_approved_checkpoint_reads_as_approved_whatever_its_call_came_to(
    answering: Answering, value: JsonValue
) -> None:
    harness, answering.value = answering.harness, value
    address = await harness.plan(("book", {"what": "x"}), caps=MANY)
    await harness.run_tool(address)
    seen = GatedCall(call_id="c1.0", tool="book", rule="test", kind=RequestKind.CHECKPOINT, checkpoint="before_sending")
    ask = OpenRequest(address=address, agent_id="desk", agent_version=await harness.version(), gated=(seen,))
    opened = await harness.activity(ApprovalActivities(harness.deps).open, ask)
    await harness.decide(opened.requests[0].request_id)
    look = VerdictsRequest(address=address, requests=opened.requests)
    found = await harness.activity(ApprovalActivities(harness.deps).read, look)
    assert [verdict.state for verdict in found.verdicts] == [VerdictState.APPROVED]
