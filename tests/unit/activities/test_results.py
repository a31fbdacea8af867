"""What a settled call tells the rules."""

import json

from perdure.activities.tool_execution import settled_answer
from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import EffectClass, ToolAsk, ToolCall
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.validity import Covering
from perdure.sdk.tools import ToolResult

ADDRESS = TurnAddress(tenant_id="t", conversation_id="c", turn_id="0197f000-0000-7000-8000-000000000001")
CARD = ToolCard(
    name="assess", description="assess", parameters={}, effect=EffectClass.READ, needs_approval=True, version="v"
)
CALL = ToolCall(
    address=ADDRESS,
    agent_id="a",
    agent_version="v",
    ask=ToolAsk(call_id="t1.0", tool="assess", paths=("status", "result.total")),
)


def test_rules_are_asked_of_a_tools_own_answer_where_a_reviewer_changed_the_call_too() -> None:
    edited = Covering("a1", "reserved", "v", {"well": "A"}, intact=True, comment="", edited=True)
    result = ToolResult({"status": "ok", "result": {"total": 7}})
    answer = settled_answer(CALL, CARD, edited, result)
    assert (
        answer.outcome.facts
        == {"status": "ok", "result.total": 7}
        == settled_answer(CALL, CARD, None, result).outcome.facts
    )
    told = json.loads(answer.message.content)
    assert told["arguments"] == {"well": "A"} and told["result"] == result.output, "the model is told of the change"
