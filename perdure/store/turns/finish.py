"""The end of a turn: one transaction under the turn's and the conversation's lock. No effect can follow it."""

from collections.abc import Mapping, Sequence

import asyncpg
from pydantic import JsonValue

from perdure.contracts.calls import CallState
from perdure.contracts.errors import InvariantBroken, Problem
from perdure.contracts.events import (
    COMPLETED,
    DONE,
    GENERATION_COMPLETE,
    MEMORY_WRITE_BLOCKED,
    MEMORY_WRITE_CREATED,
    READY,
    STOPPED,
    TITLE_GENERATED,
    WORKFLOW_ERROR,
)
from perdure.contracts.ids import LAST_WORD_ID
from perdure.contracts.messages import Role
from perdure.contracts.turns import Finished, FinishRequest, StopRequest, TurnAddress, TurnStatus
from perdure.core.approvals.refusals import ReviewRefusal
from perdure.core.approvals.validity import DENIED_STATUSES
from perdure.core.text import estimated_tokens
from perdure.core.transcript import READ_CHARACTERS, summary_of, title_of
from perdure.store import audit
from perdure.store.approvals.verdicts import UNREVIEWED, refusals_of
from perdure.store.calls import model_calls
from perdure.store.calls.tool_calls import record_outcome
from perdure.store.database import Connection, new_id
from perdure.store.delivery.outbox import Note, Wake, put
from perdure.store.events.event_log import NewEvent, NewMessage, write
from perdure.store.turns import summaries
from perdure.store.turns.context import round_messages
from perdure.store.turns.steer import queue_unreceived
from perdure.store.turns.transcripts import count_notes, ends_of_open_calls, interrupted_transcript, refused_rounds

_NEXT = """SELECT id FROM turns WHERE {where} conversation_id = {conversation} AND status = 'queued'
    AND stop_requested_at IS NULL ORDER BY id = {replaced_by} DESC NULLS LAST, created_at, id
    LIMIT 1 FOR UPDATE SKIP LOCKED"""
"""Selects the next queued turn: the one that replaces the ending turn, otherwise the oldest."""
_NEXT_NOW = _NEXT.format(conversation="$1", replaced_by="$2", where="")
_LOCK = """
SELECT status, ended_at, stop_requested_at, replaced_by, EXISTS (SELECT FROM model_calls m
  WHERE m.turn_id = $1 AND m.reply IS NULL AND (m.assumed IS NOT NULL OR m.held_tokens > 0)) AS lost,
  EXISTS (SELECT FROM approvals a WHERE a.turn_id = $1 AND a.status = ANY($2)) AS refused
FROM turns WHERE id = $1 FOR UPDATE
"""
_END = f"""
WITH cancelled AS (
  UPDATE approvals SET status = 'cancelled', version = version + 1
  WHERE turn_id = $1 AND (status IN ('pending', 'edited') OR status = 'approved' AND kind = 'approval') RETURNING id
), unasked AS (
  UPDATE questions SET status = 'cancelled', closed_at = now() WHERE turn_id = $1 AND status = 'pending'
), marked AS (
  UPDATE messages SET in_transcript = (id = ANY($4))
  WHERE conversation_id = $6 AND turn_id = $1 AND role <> 'user' AND in_transcript <> (id = ANY($4))
), chosen AS (  -- where this one was the active one
  {_NEXT.format(conversation="$6", replaced_by="$9", where="$5 AND")}
), said AS (  -- the answer, if a model wrote it: the message that is extended, or the last with a text
  SELECT id, content, partial FROM messages
  WHERE $8 = '' AND conversation_id = $6 AND turn_id = $1 AND role = 'assistant'
    AND CASE WHEN $13::uuid IS NULL THEN id = ANY($4) AND content <> '' AND content <> ALL($14) ELSE id = $13 END
  ORDER BY seq DESC LIMIT 1
), ending AS (  -- of its last part that has one, or of the call that was cut and so failed the turn
  SELECT reply->>'finish_reason' AS reason, (reply->>'truncated')::boolean AS truncated FROM model_calls
  WHERE turn_id = $1 AND reply ? 'finish_reason' AND (reply #>> '{{message,id}}' = (SELECT id::text FROM said)
    OR reply #>> '{{problem,code}}' = $3::jsonb ->> 'code') ORDER BY length(call_id) DESC, call_id DESC LIMIT 1
), left_to AS (  -- whoever is chosen is admitted after the last events of this one
  UPDATE conversations SET active_turn_id = NULL WHERE id = $6 AND $5
)
UPDATE turns SET status = $2, problem = $3, waiting = NULL, stuck = NULL, ended_at = clock_timestamp(),
  output = nullif($7::jsonb, '{{}}'),
  answer = coalesce(nullif($8, ''), (SELECT content || $11 FROM said), nullif($11, ''))
WHERE id = $1
RETURNING input_tokens + output_tokens AS tokens, cost_microusd, remembers, user_id, agent_id, answer,
  CASE WHEN remembers THEN (SELECT content FROM messages m WHERE m.id = turns.message_id) END AS asked,
  (SELECT left(m.content, $10) FROM conversations c, messages m WHERE c.id = $6 AND c.title = '' AND $2 = 'completed'
     AND m.id = turns.message_id) AS untitled,
  (extract(epoch FROM ended_at - created_at) * 1000)::bigint AS duration_ms,
  (SELECT array_agg(id) FROM cancelled) AS cancelled, (SELECT reason FROM ending) AS finish_reason,
  coalesce((SELECT truncated FROM ending), false) OR coalesce((SELECT partial FROM said), false) OR $12 AS truncated,
  (SELECT id FROM chosen) AS next_id,
  EXISTS (SELECT FROM messages WHERE turn_id = $1 AND joins = '') AS left_over
"""


async def stop_requested(tx: Connection, request: StopRequest) -> bool:
    """Returns whether the turn was asked to stop; False if the turn does not exist."""
    return bool(
        await tx.fetchval("SELECT stop_requested_at IS NOT NULL FROM turns WHERE id = $1", request.address.turn_id)
    )


async def finish(tx: Connection, request: FinishRequest) -> tuple[Finished, Note | None]:
    """Sets the outcome, closes what is open, writes the last events and admits the next queued turn. Idempotent."""
    turn_id = request.address.turn_id
    row = await tx.fetchrow(_LOCK, turn_id, [*DENIED_STATUSES, *UNREVIEWED])
    if row is None or row["ended_at"] is not None:
        return Finished(status=TurnStatus(row["status"]) if row else request.status), None
    lost = await model_calls.count_left(tx, turn_id) if row["lost"] else ()
    active = await tx.fetchval(
        "SELECT active_turn_id FROM conversations WHERE id = $1 FOR UPDATE", request.address.conversation_id
    )
    status, replaced_by = request.status, row["replaced_by"]
    if status is TurnStatus.STOPPED and replaced_by is not None:
        status = TurnStatus.REPLACED
    refusals = (await refusals_of(tx, [turn_id])).get(turn_id, []) if row["refused"] else []
    transcript, answers, closed = await _close_transcript(tx, request, refusals)
    last_messages = await _final_answer(tx, request)
    was_active = str(active) == turn_id  # A queued turn that is stopped does not affect the active one.
    withheld = [each.answer for each in refusals if each.answer and each.is_withheld]
    ended = await _end_turn(
        tx, request, status, transcript, last_messages, withheld, replaced_by, was_active=was_active
    )
    cancelled_outside = request.status is TurnStatus.STOPPED and row["stop_requested_at"] is None
    await _record(tx, turn_id, status, ended["cancelled"] or (), cancelled_outside=cancelled_outside)
    next_id, left_over = await _next_turn(tx, request.address, ended, replaced_by, was_active=was_active)
    after: dict[str, JsonValue] = {"replaced_by": str(replaced_by)} if status is TurnStatus.REPLACED else {}
    if left_over is not None:
        after["left_over"] = left_over
    kept = [
        *await _store_summary(tx, request, ended, refusals),
        *await _set_title(tx, request.address.conversation_id, ended["untitled"]),
    ]
    last = [*_last_events(request, after, ended["duration_ms"]), _done_event(turn_id, status, ended, after)]
    told = [_answer_event(message, ended["answer"]) for message in last_messages]
    events = [*told, *closed, *kept, *last]
    await write(tx, request.address, events, [*answers, *last_messages], pending=request.events)
    note = None
    if next_id is not None:
        note = await admit_queued(tx, request.address.model_copy(update={"turn_id": str(next_id)}))
    await model_calls.charge_lost(tx, turn_id, lost)  # The budget rows of the day are locked last.
    return Finished(status=status, admitted_turn_id=note.turn_id if note else None), note


async def _close_transcript(
    tx: Connection, request: FinishRequest, refusals: Sequence[ReviewRefusal]
) -> tuple[list[str], list[NewMessage], list[NewEvent]]:
    """Returns the ids of the messages that stay in the transcript, and the answers of calls that have none, in their
    places. If the turn did not complete, also returns the events that end its open calls."""
    address = request.address
    await count_notes(tx, address, refusals)
    if request.status is TurnStatus.COMPLETED:
        rounds = await round_messages(tx, address, request.rounds) if request.rounds else []
        transcript = [*request.transcript, *rounds]
        refused, answers = await refused_rounds(tx, address, transcript, refusals) if refusals else ([], [])
        return [*transcript, *refused], answers, []
    transcript, answers = await interrupted_transcript(tx, address, refusals)
    await _mark_outcomes_unknown(tx, address.turn_id)
    return transcript, answers, await ends_of_open_calls(tx, address.turn_id, answers)


async def _end_turn(
    tx: Connection,
    request: FinishRequest,
    status: TurnStatus,
    transcript: list[str],
    last_messages: Sequence[NewMessage],
    withheld: Sequence[str],
    replaced_by: object,
    *,
    was_active: bool,
) -> asyncpg.Record:
    """Ends the turn's row and its open requests. Returns the data for the last events."""
    ended = await tx.fetchrow(
        _END,
        request.address.turn_id,
        status.value,
        request.problem.model_dump(mode="json") if request.problem else None,
        transcript,
        was_active,
        request.address.conversation_id,
        request.output,
        "".join(message.content for message in last_messages if not message.extends),
        replaced_by,
        READ_CHARACTERS,
        "".join(message.content for message in last_messages if message.extends),
        any(message.partial for message in last_messages),
        next((message.id for message in last_messages if message.extends), None),
        withheld,
    )
    if ended is None:
        raise InvariantBroken("turn_vanished", "a turn's row was deleted while it was locked")
    return ended


async def _next_turn(
    tx: Connection, address: TurnAddress, ended: asyncpg.Record, replaced_by: object, *, was_active: bool
) -> tuple[object, str | None]:
    """Returns the id of the next queued turn, and the id of the turn made from messages that no model call received."""
    if not ended["left_over"]:
        return ended["next_id"], None
    left_over = await queue_unreceived(tx, address)
    return await tx.fetchval(_NEXT_NOW, address.conversation_id, replaced_by) if was_active else None, left_over


async def _final_answer(tx: Connection, request: FinishRequest) -> list[NewMessage]:
    """Returns the answer that no model call completed, if there is one. It is a text of the graph itself, which can
    end the model's answer, or the partial text of a model call that a stop prevented from being retried. That text
    extends the message that its call continues."""
    answer, partial, continued = request.answer, False, request.extends
    if answer and continued:
        extended = await tx.fetchrow("SELECT content <> '' AS has_text, partial FROM messages WHERE id = $1", continued)
        answer = f"\n\n{answer}" if extended and extended["has_text"] else answer
        partial = bool(extended and extended["partial"])
    if not answer and request.status is TurnStatus.STOPPED:
        answer, continued = await model_calls.unfinished_text(tx, request.address.turn_id)
        partial = True
    if not answer:
        return []
    return [
        NewMessage(
            continued or new_id(),
            Role.ASSISTANT,
            answer,
            tokens=estimated_tokens(answer),
            partial=partial,
            extends=bool(continued),
        )
    ]


async def _record(
    tx: Connection, turn_id: str, status: TurnStatus, cancelled: Sequence[object], *, cancelled_outside: bool
) -> None:
    """Records the turn's cancelled approvals in the audit trail, and whether its workflow was cancelled outside
    Perdure."""
    for approval in cancelled:
        why: dict[str, JsonValue] = {"because": f"the turn ended with status {status.value} before the call ran"}
        await audit.record(tx, "approval.cancelled", str(approval), why, actor=None, turn_id=turn_id)
    if cancelled_outside:
        because = "the workflow was cancelled in Temporal; no stop was requested through the API"
        await audit.record(tx, "turn.cancelled", turn_id, {"because": because}, actor=None, turn_id=turn_id)


def _done_event(turn_id: str, status: TurnStatus, ended: asyncpg.Record, after: Mapping[str, JsonValue]) -> NewEvent:
    """Returns the turn's last event."""
    data: dict[str, JsonValue] = {
        "execution_id": turn_id,
        "status": status.value,
        "tokens_used": ended["tokens"],
        "cost_usd": ended["cost_microusd"] / 1e6,
        "duration_ms": ended["duration_ms"],
    }
    if ended["finish_reason"]:
        data["finish_reason"] = ended["finish_reason"]
    if ended["truncated"]:
        data["truncated"] = True
    return NewEvent(DONE, {**data, **after})


def _answer_event(message: NewMessage, answer: str) -> NewEvent:
    """Returns the event for an answer that no model call completed. Readers have not received its text, so that they
    read the stored text. `answer` is the turn's whole answer."""
    data: dict[str, JsonValue] = {"attempt": 1, "message_id": message.id, "characters": len(message.content)}
    if message.extends:
        data["start"] = len(answer) - len(message.content)
    return NewEvent(GENERATION_COMPLETE, {**data, "partial": message.partial, "tool_calls": []}, LAST_WORD_ID)


async def _store_summary(
    tx: Connection, request: FinishRequest, ended: asyncpg.Record, refusals: Sequence[ReviewRefusal]
) -> list[NewEvent]:
    """Stores a summary of a completed turn if its agent asks for it, and if no result of the turn was refused. The
    relay adds the vector later. A summary only advises, so that the turn also ends without it."""
    if not ended["remembers"] or request.status is not TurnStatus.COMPLETED:
        return []
    summary = summary_of(ended["asked"] or "", ended["answer"] or "", refusals)
    if summary is None:
        return [NewEvent(MEMORY_WRITE_BLOCKED, {"scope": "episodic", "code": "not_approved"})]
    if await summaries.store_or_leave(tx, request.address, ended, summary):
        return [NewEvent(MEMORY_WRITE_CREATED, {"scope": "episodic"})]
    return [NewEvent(MEMORY_WRITE_BLOCKED, {"scope": "episodic", "code": "store_unavailable"})]


async def _set_title(tx: Connection, conversation_id: str, first_message: str | None) -> list[NewEvent]:
    """Gives an untitled conversation a title once it has an answer."""
    title = title_of(first_message or "")
    if not title:
        return []
    await tx.execute("UPDATE conversations SET title = $2 WHERE id = $1", conversation_id, title)
    return [NewEvent(TITLE_GENERATED, {"title": title})]


_MARK_OUTCOMES_UNKNOWN = """
WITH lost AS (
  UPDATE tool_calls SET state = 'outcome_unknown'
  WHERE turn_id = $1 AND state = 'reserved' AND effect IN ('keyed', 'opaque') RETURNING call_id, key, tool, effect, args
), closed AS (
  UPDATE approvals a SET status = 'outcome_unknown', version = version + 1 FROM lost
  WHERE a.turn_id = $1 AND a.call_id = lost.call_id AND a.status = 'reserved'
  RETURNING a.id, a.call_id, coalesce(a.decision->'args', a.args) AS args
), undone AS (  -- nothing outside: what has not committed by now never happens
  UPDATE approvals SET status = 'failed', version = version + 1
  WHERE turn_id = $1 AND status = 'reserved' AND effect IN ('read', 'local')
  RETURNING call_id, tool, effect, id, coalesce(decision->'args', args) AS args
), told AS (
  SELECT 'outcome_unknown' AS state, lost.call_id, key, tool, effect, closed.id AS approval_id,
    coalesce(closed.args, lost.args) AS args FROM lost LEFT JOIN closed USING (call_id)
  UNION ALL SELECT 'failed', call_id, '', tool, effect, id, args FROM undone
)
SELECT told.*, t.user_id FROM told JOIN turns t ON t.id = $1 ORDER BY call_id
"""


async def _mark_outcomes_unknown(tx: Connection, turn_id: str) -> None:
    """Marks the outcome of running calls as unknown, because they can still change a target. A person must be able to
    settle them."""
    for row in await tx.fetch(_MARK_OUTCOMES_UNKNOWN, turn_id):
        await record_outcome(tx, turn_id, row, CallState(row["state"]), None)


def _last_events(request: FinishRequest, after: dict[str, JsonValue], duration_ms: int) -> list[NewEvent]:
    if request.status is TurnStatus.STOPPED:
        return [NewEvent(STOPPED, {**after})]
    if request.problem is not None:
        return [NewEvent(WORKFLOW_ERROR, request.problem.model_dump(mode="json", exclude_none=True))]
    run: dict[str, JsonValue] = {"run_id": request.address.turn_id, "duration": duration_ms / 1000}
    return [NewEvent(COMPLETED, {"status": request.status.value, **run, "duration_ms": duration_ms})]


async def finish_broken(tx: Connection, address: TurnAddress, problem: Problem) -> tuple[bool, Note | None]:
    """Ends a turn whose workflow is gone. Its texts and calls stay in the transcript. Returns whether the turn was
    still open, and the start of the next one."""
    was_open = await tx.fetchval("SELECT ended_at IS NULL FROM turns WHERE id = $1 FOR UPDATE", address.turn_id)
    _, note = await finish(tx, FinishRequest(address=address, status=TurnStatus.FAILED, problem=problem))
    return bool(was_open), note


_ADMIT = """
WITH behind AS (
  UPDATE conversations SET active_turn_id = $1, message_seq = message_seq + 1 WHERE id = $2 RETURNING message_seq
), said AS (
  UPDATE messages m SET seq = message_seq, in_transcript = true FROM behind, turns t
  WHERE t.id = $1 AND m.id = t.message_id
)
UPDATE turns SET status = 'accepted', through_seq = message_seq - 1 FROM behind WHERE id = $1 RETURNING agent_id
"""


async def admit_queued(tx: Connection, address: TurnAddress) -> Note:
    """Starts a queued turn. Its message moves after all messages that were written in the meantime.

    The caller holds the turn's and the conversation's lock, and has written everything that comes before this turn's
    `ready`.

    It becomes the conversation's active turn, and its wake signal is written.
    """
    agent_id = await tx.fetchval(_ADMIT, address.turn_id, address.conversation_id)
    note = await put(tx, address.tenant_id, Wake.START, address.turn_id)
    await write(tx, address, [NewEvent(READY, {"agent": agent_id, "run_id": address.turn_id})])
    return note
