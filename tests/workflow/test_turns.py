"""Whole turns of the shipped demo agent, on the real server."""

import pytest

from perdure.contracts.turns import TurnStatus
from perdure.core.approvals.decisions import Decision
from tests.workflow.conftest import Engine


async def test_a_plain_turn_completes_and_its_nodes_are_traced_in_order(engine: Engine) -> None:
    started = await engine.begin("/echo one two three")
    row = await engine.until(started.turn_id)
    assert (row["status"], row["answer"]) == ("completed", "one two three")
    assert await engine.nodes(started.turn_id) == [
        "system_prompt_node",
        "memory_node",
        "resume_guard",
        "initial_llm_call",
        "skill_select_node",
        "approval_node",
        "synthesis_llm_call",
        "output_format",
    ]
    assert (await engine.kinds(started.turn_id))[-1] == "done"


async def test_a_rejected_call_never_runs_and_the_model_acknowledges_the_reason(engine: Engine) -> None:
    started = await engine.begin("Refund order 1001")
    row = await engine.until(started.turn_id)
    await engine.decide(row["waiting"]["ids"][0], Decision.REJECT, comment="not in policy")
    row = await engine.until(started.turn_id, TurnStatus.COMPLETED)
    assert "not in policy" in row["answer"]
    calls = await engine.rows("SELECT state FROM tool_calls WHERE turn_id = $1", started.turn_id)
    assert [call["state"] for call in calls] == ["planned"]


@pytest.mark.parametrize("decision", [Decision.APPROVE])
async def test_an_approved_call_without_its_credential_fails_as_data_and_the_turn_completes(
    engine: Engine, decision: Decision
) -> None:
    started = await engine.begin("Refund order 1001")
    row = await engine.until(started.turn_id)
    await engine.decide(row["waiting"]["ids"][0], decision)
    row = await engine.until(started.turn_id, TurnStatus.COMPLETED)
    calls = await engine.rows("SELECT state FROM tool_calls WHERE turn_id = $1", started.turn_id)
    assert [call["state"] for call in calls] == ["failed"]
