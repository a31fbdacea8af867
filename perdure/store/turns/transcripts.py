"""The messages of a turn that stay in its conversation when it ends, and the answers of calls that have none.

Providers reject calls without answers. A refused call has not run, and a call of an interrupted turn may not have: the
answer is made here and states that. It directly follows its round, so the later messages of the conversation move.
"""

from collections.abc import Collection, Mapping, Sequence

import asyncpg
from pydantic import JsonValue

from perdure.contracts.calls import CallState, KnownEnd
from perdure.contracts.events import TOOL_DENIED, TOOL_ERROR, TOOL_RESULT
from perdure.contracts.messages import Role
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import canonical_json
from perdure.core.approvals.refusals import ReviewRefusal, note_about, refusal_of, shortened_reason
from perdure.core.approvals.validity import DENIED_STATUSES, denial_reason
from perdure.core.calls.failures import known, known_of_attempts
from perdure.core.text import estimated_tokens, preview
from perdure.core.transcript import CallRound, KeptRound, keep_rounds, status_without_result, text_only_messages
from perdure.store.database import Connection, new_id
from perdure.store.events.event_log import NewEvent, NewMessage, make_room

_OPEN = """
SELECT c.call_id, c.tool, c.key, c.state, c.ends, c.epoch - c.errors - c.voided AS lost FROM tool_calls c
WHERE c.turn_id = $1 AND c.state IN ('planned', 'reserved', 'outcome_unknown') AND NOT EXISTS (
  SELECT FROM events e WHERE e.turn_id = c.turn_id AND e.call_id = c.call_id AND e.kind = ANY($2))
ORDER BY length(c.call_id), c.call_id
"""


async def ends_of_open_calls(tx: Connection, turn_id: str, answers: Sequence[NewMessage]) -> list[NewEvent]:
    """Returns an event for each call of the turn that has no event of its end. `answers` are the tool messages added to
    the transcript.

    `tx` holds the turn's lock, and the outcome of running calls is already set.

    Readers receive an end for each call. The event states what is known: the call did not run, or its outcome is
    unknown.
    """
    made = {message.call_id: message for message in answers if message.call_id}
    rows = await tx.fetch(_OPEN, turn_id, [TOOL_RESULT, TOOL_ERROR, TOOL_DENIED])
    events = []
    for row in rows:
        state = CallState(row["state"])
        code, sentence = status_without_result(state)
        data: dict[str, JsonValue] = {"tool": row["tool"], "code": code, "message": sentence}
        if state is CallState.OUTCOME_UNKNOWN:
            waits = row["lost"] <= 0 and row["ends"]  # for its next attempt
            ends = row["ends"] if waits else [known(KnownEnd.TURN_ENDED), *row["ends"]]
            data |= {"code": state.value, "effect": row["key"], **known_of_attempts(ends, lost=0)}
        if message := made.get(row["call_id"]):
            data |= {"message_id": message.id, "result": preview(message.content)}
        events.append(NewEvent(TOOL_ERROR, data, row["call_id"]))
    return events


_MESSAGES = """
SELECT id::text, seq, role, calls, call_id, content ~ '\\S' AS has_text FROM messages
WHERE conversation_id = $1 AND turn_id = $2 AND (role <> 'user' OR in_transcript) ORDER BY seq
"""
_STATES = "SELECT call_id, state FROM tool_calls WHERE turn_id = $1"


async def interrupted_transcript(
    tx: Connection, address: TurnAddress, refusals: Sequence[ReviewRefusal]
) -> tuple[list[str], list[NewMessage]]:
    """Returns the ids of the messages that stay, and the tool messages to write for calls that have none.

    Messages whose calls are removed lose them in this function. The ledger keeps the calls.

    They form the transcript of a turn that did not complete; the graph's own list of messages is not sufficient.
    """
    rows = await tx.fetch(_MESSAGES, address.conversation_id, address.turn_id)
    states = await _read_states(tx, address.turn_id)
    refused = _refused_calls(refusals)
    rounds = _read_rounds(rows)
    kept = keep_rounds(rounds, states, refused)
    bare = text_only_messages(rounds, kept)
    if bare:
        await tx.execute("UPDATE messages SET calls = '[]' WHERE id = ANY($1)", list(bare))
    stay = list(bare)
    stay += [row["id"] for row in rows if row["role"] == "assistant" and not row["calls"]]
    stay += [message_id for each in kept for message_id in each.message_ids]
    return stay, await _place_answers(tx, address, rows, kept, states, refused)


async def refused_rounds(
    tx: Connection, address: TurnAddress, transcript: Collection[str], refusals: Sequence[ReviewRefusal]
) -> tuple[list[str], list[NewMessage]]:
    """Returns the ids of the messages of the refused rounds of a completed turn, and the tool messages to write for
    their calls. The turn's graph has dropped these rounds, so that they are not in `transcript`."""
    refused = _refused_calls(refusals)
    rows = await tx.fetch(_MESSAGES, address.conversation_id, address.turn_id)
    states = await _read_states(tx, address.turn_id)
    rounds = [each for each in _read_rounds(rows) if each.message_id not in transcript]
    kept = keep_rounds([each for each in rounds if not refused.keys().isdisjoint(each.calls)], states, refused)
    answers = await _place_answers(tx, address, rows, kept, states, refused)
    return [message_id for each in kept for message_id in each.message_ids], answers


def _refused_calls(refusals: Sequence[ReviewRefusal]) -> dict[str, ReviewRefusal]:
    return {each.call_id: each for each in refusals if each.status in DENIED_STATUSES}


async def _read_states(tx: Connection, turn_id: str) -> dict[str, CallState]:
    return {row["call_id"]: CallState(row["state"]) for row in await tx.fetch(_STATES, turn_id)}


def _read_rounds(rows: Sequence[asyncpg.Record]) -> list[CallRound]:
    """Returns the rounds of calls among a turn's messages."""
    answers = {row["call_id"]: row["id"] for row in rows if row["role"] == "tool"}
    rounds = [row for row in rows if row["role"] != "tool"]
    return [
        CallRound(
            row["id"],
            tuple(call["call_id"] for call in row["calls"]),
            answers,
            has_text=row["has_text"],
            is_open=row is rounds[-1],
        )
        for row in rounds
        if row["calls"]
    ]


async def _place_answers(
    tx: Connection,
    address: TurnAddress,
    rows: Sequence[asyncpg.Record],
    kept: Sequence[KeptRound],
    states: Mapping[str, CallState],
    refused: Mapping[str, ReviewRefusal],
) -> list[NewMessage]:
    """Returns the answers of the calls of these rounds that have none, each after its round."""
    places = {row["id"]: row["seq"] for row in rows}
    calls = {row["id"]: [call["call_id"] for call in row["calls"]] for row in rows}
    placed = []
    for each in kept:
        after = max(places[message_id] for message_id in each.message_ids)
        beside_refused = not refused.keys().isdisjoint(calls[each.message_ids[0]])
        for call_id in each.unanswered:
            answer = _answer(call_id, states.get(call_id), refused.get(call_id), beside_refused=beside_refused)
            placed.append((after, answer))
    return await make_room(tx, address.conversation_id, placed)


def _answer(
    call_id: str, state: CallState | None, refusal: ReviewRefusal | None, *, beside_refused: bool
) -> NewMessage:
    reason = denial_reason(refusal.status) if refusal else None
    status, message = status_without_result(state, reason, beside_refused=beside_refused)
    body = {"status": status, "message": message}
    if status == "denied" and refusal:
        body["tool"] = refusal.tool
        if refusal.reason:
            body["reason"] = shortened_reason(refusal.reason)
    content = canonical_json(body)
    return NewMessage(new_id(), Role.TOOL, content, call_id=call_id, tokens=estimated_tokens(content))


_REVIEWED = """
SELECT id, role, content, call_id FROM messages
WHERE conversation_id = $1 AND turn_id = $2 AND role IN ('assistant', 'tool')
"""
_COUNT = """
UPDATE messages m SET tokens = m.tokens + more FROM unnest($1::uuid[], $2::integer[]) AS each (id, more)
WHERE m.id = each.id
"""


async def count_notes(tx: Connection, address: TurnAddress, refusals: Sequence[ReviewRefusal]) -> None:
    """Adds the tokens of the notes that later prompts have about results that were not approved."""
    reviews = [each for each in refusals if each.is_checkpoint]
    if not reviews:
        return
    counted = []
    for row in await tx.fetch(_REVIEWED, address.conversation_id, address.turn_id):
        refusal = refusal_of(Role(row["role"]), row["content"], row["call_id"] or "", reviews)
        if refusal is not None:
            counted.append((row["id"], estimated_tokens(note_about(refusal))))
    await tx.execute(_COUNT, [each for each, _ in counted], [more for _, more in counted])
