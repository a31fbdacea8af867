"""Turns of the care navigator on the real server: the check, the phases, what is skipped, the fixed text."""

import json
from typing import Any

from perdure.contracts.turns import TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.core.turns import Caps, OnBusy
from perdure.store.turns.start import StartedTurn
from tests.workflow.conftest import Engine

GATHER = ["preflight", "assembly_gate"]
FIRST_PHASE = ["client_signal", "provider_genome", "patient_context", "session_narrative"]
AT_ONCE = ["ready", "stage", "stage", "generation.complete", "completed", "done"]
FIXED = "I am glad that you wrote this."
"""How the text of the navigator's page begins."""
BOOK = "Book p1 at Monday 11:00"


async def stages(engine: Engine, turn_id: str) -> list[dict[str, Any]]:
    return [data for data in await engine.event_data(turn_id, "stage") if data.get("stage") == "context_assembly"]


async def turn(engine: Engine, text: str, conversation_id: str) -> str:
    started = await engine.begin(text, agent_id="care_navigator", conversation_id=conversation_id)
    row = await engine.until(started.turn_id)
    assert (row["status"], row["problem"]) == ("completed", None)
    return started.turn_id


async def test_a_first_turn_runs_two_phases_and_stores_their_outputs(engine: Engine) -> None:
    conversation_id = await engine.conversation("care_navigator")
    first = await turn(engine, "I am anxious and cannot sleep", conversation_id)
    nodes = await engine.nodes(first)
    assert nodes[:2] == GATHER and set(nodes[2:4]) == {"context_assembly", "empathy"}
    assert nodes[4:] == ["context_format", "navigator", "finalize"]
    assert [each["ran"] for each in await stages(engine, first)] == [FIRST_PHASE, ["therapeutic_fit"]]
    rows = await engine.rows("SELECT tool, output, outcome FROM bundles WHERE turn_id = $1 ORDER BY tool", first)
    complete = [row["outcome"]["bundle"]["completeness"] for row in rows]
    assert [row["tool"] for row in rows] == sorted([*FIRST_PHASE, "therapeutic_fit"])
    assert complete == [0.8, 0.7, 0.9, 0.5, 0.9]
    fit = next(row["output"] for row in rows if row["tool"] == "therapeutic_fit")
    assert fit["candidates"][0]["shared"] == ["anxiety", "sleep"], "the first phase's outputs were injected"
    messages = await engine.rows("SELECT role FROM messages WHERE turn_id = $1 ORDER BY seq", first)
    assert [row["role"] for row in messages] == ["user", "assistant"], "verdicts are never shown"
    replies = await engine.rows("SELECT reply FROM model_calls WHERE turn_id = $1 ORDER BY call_id", first)
    verdicts = [json.loads(json.dumps(row["reply"]))["value"] for row in replies[:2]]
    assert verdicts == [{"hijacked": False, "category": "none"}, {"intent": "support"}]


async def test_a_message_sent_into_an_open_turn_is_checked_and_not_answered_by_it(engine: Engine) -> None:
    conversation_id = await engine.conversation("care_navigator")
    started = await engine.begin(BOOK, agent_id="care_navigator", conversation_id=conversation_id)
    assert (await engine.until(started.turn_id))["status"] == TurnStatus.AWAITING_APPROVAL.value
    joined = await engine.begin(
        "Somebody hits me", agent_id="care_navigator", conversation_id=conversation_id, on_busy=OnBusy.STEER
    )
    assert (joined.turn_id, joined.joined) == (started.turn_id, True)
    (approval,) = await engine.rows("SELECT id FROM approvals WHERE turn_id = $1", started.turn_id)
    await engine.decide_and_wake(str(approval["id"]), Decision.REJECT, comment="not now", reason_code="not_now")
    await engine.until(started.turn_id, TurnStatus.COMPLETED)
    (done,) = await engine.event_data(started.turn_id, "done")
    after = done["left_over"]
    row = await engine.until(after, TurnStatus.COMPLETED)
    assert await engine.nodes(after) == ["preflight", "safety_intervention", "finalize"]
    assert row["answer"].startswith(FIXED)


async def test_a_safety_keyword_is_answered_beside_a_pending_booking(engine: Engine) -> None:
    conversation_id = await engine.conversation("care_navigator")

    async def say(text: str, way: OnBusy = OnBusy.REJECT, caps: Caps | None = None) -> StartedTurn:
        where = {"agent_id": "care_navigator", "conversation_id": conversation_id}
        return await engine.begin(text, on_busy=way, caps=caps, **where)

    started = await say(BOOK)
    await engine.until(started.turn_id)
    half = await say("I want to kill", OnBusy.QUEUE)
    assert half.status is TurnStatus.QUEUED
    own = (("myself", OnBusy.QUEUE), ("I want to  d\u0456e", OnBusy.STEER), ("x" * 20_000 + " suicidal", OnBusy.REJECT))
    at_once = [await say(text, way, Caps(turns_a_user=0)) for text, way in own]
    for said in at_once:
        row = await engine.turn(said.turn_id)
        assert (said.status, row["status"], said.joined) == (TurnStatus.COMPLETED, "completed", False)
        assert row["answer"].startswith(FIXED)
        assert await engine.rows("SELECT 1 FROM model_calls WHERE turn_id = $1", said.turn_id) == []
        kinds = await engine.kinds(said.turn_id)
        assert [each for each in kinds if each != "conversation.title.generated"] == AT_ONCE
    assert (await engine.turn(started.turn_id))["status"] == TurnStatus.AWAITING_APPROVAL.value
    (approval,) = await engine.rows("SELECT id, status FROM approvals WHERE turn_id = $1", started.turn_id)
    assert approval["status"] == "pending", "a waiting approval is never lost by a message"
    await engine.decide_and_wake(str(approval["id"]), Decision.REJECT, comment="not now", reason_code="not_now")
    for turn_id in (started.turn_id, half.turn_id):
        await engine.until(turn_id, TurnStatus.COMPLETED)
    told = await engine.rows(
        "SELECT role, turn_id FROM messages WHERE conversation_id = $1 AND in_transcript ORDER BY seq", conversation_id
    )
    for said in at_once:
        assert [row["role"] for row in told if str(row["turn_id"]) == said.turn_id] == ["user", "assistant"]
