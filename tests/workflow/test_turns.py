"""Whole turns of the shipped demo agent, on the real server."""

import pytest

from perdure.contracts.turns import TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.core.turns import OnBusy
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


async def test_a_gated_call_pauses_the_turn_with_nothing_dispatched(engine: Engine) -> None:
    started = await engine.begin("Refund order 1001")
    row = await engine.until(started.turn_id)
    assert row["status"] == "awaiting_approval"
    calls = await engine.rows("SELECT state FROM tool_calls WHERE turn_id = $1", started.turn_id)
    assert [call["state"] for call in calls] == ["planned"]
    assert (await engine.nodes(started.turn_id))[-2:] == ["tool_node", "output_format"]


async def test_a_rejected_call_never_runs_and_the_model_acknowledges_the_reason(engine: Engine) -> None:
    started = await engine.begin("Refund order 1001")
    row = await engine.until(started.turn_id)
    await engine.decide(row["waiting"]["ids"][0], Decision.REJECT, comment="not in policy")
    row = await engine.until(started.turn_id, TurnStatus.COMPLETED)
    assert "not in policy" in row["answer"]
    calls = await engine.rows("SELECT state FROM tool_calls WHERE turn_id = $1", started.turn_id)
    assert [call["state"] for call in calls] == ["planned"]


async def test_a_stop_ends_a_paused_turn_and_cancels_its_approval(engine: Engine) -> None:
    started = await engine.begin("Refund order 1001")
    await engine.until(started.turn_id)
    await engine.stop(started.turn_id)
    await engine.until(started.turn_id, TurnStatus.STOPPED)
    approvals = await engine.rows("SELECT status FROM approvals WHERE turn_id = $1", started.turn_id)
    assert [approval["status"] for approval in approvals] == ["cancelled"]


async def test_a_stop_ends_a_running_model_call_and_keeps_its_partial_text(engine: Engine) -> None:
    started = await engine.begin("/echo " + "word " * 1_600)
    await engine.until(started.turn_id, TurnStatus.RUNNING)
    await engine.stop(started.turn_id)
    row = await engine.until(started.turn_id, TurnStatus.STOPPED, TurnStatus.COMPLETED)
    assert row["status"] == "stopped", (row["answer"], row["problem"], await engine.kinds(started.turn_id))
    assert len(row["answer"] or "") < 5 * 1_600


async def test_a_queued_turn_starts_when_the_one_before_it_ends(engine: Engine) -> None:
    conversation_id = await engine.conversation("refunds")
    first = await engine.begin("Refund order 1001", conversation_id=conversation_id)
    await engine.until(first.turn_id)
    second = await engine.begin("/echo after", conversation_id=conversation_id, on_busy=OnBusy.QUEUE)
    assert second.status is TurnStatus.QUEUED
    await engine.stop(first.turn_id)
    row = await engine.until(second.turn_id, TurnStatus.COMPLETED)
    assert row["answer"] == "after"


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
