"""The transcript of a turn that broke off: the graph's own list of messages is not enough then."""

import asyncpg

from contracts.digests import canonical_json
from contracts.messages import Role
from contracts.tools import CallState
from contracts.turns import TurnAddress
from policy.covering import REASONED, REFUSED, why_not_allowed
from policy.text import estimated_tokens
from policy.transcript import Round, keep_rounds, told_of, words_only
from store.database import Connection
from store.ids import new_id
from store.journal import NewMessage


async def broken_off(tx: Connection, address: TurnAddress) -> tuple[list[str], list[NewMessage]]:
    """Ids of the messages that stay, and tool messages to write for calls that have none.

    A message whose calls are stripped loses them here: the ledger keeps what was asked for.
    """
    rows = await tx.fetch(
        "SELECT id, role, calls, call_id, content ~ '\\S' AS has_text FROM messages "
        "WHERE conversation_id = $1 AND turn_id = $2 AND (role <> 'user' OR in_transcript) ORDER BY seq",
        address.conversation_id,
        address.turn_id,
    )
    found = await tx.fetch(
        "SELECT c.call_id, c.state, a.status, coalesce(nullif(said->>'comment', ''), said->>'reason_code') AS comment "
        "FROM tool_calls c LEFT JOIN approvals a ON a.turn_id = c.turn_id AND a.call_id = c.call_id "
        "AND a.status = ANY($2), LATERAL coalesce(a.withdrawal, a.decision) AS said WHERE c.turn_id = $1",
        address.turn_id,
        list(REFUSED),
    )
    refused = {row["call_id"]: row for row in found if row["status"]}
    states = {row["call_id"]: CallState(row["state"]) for row in found}
    answers = {row["call_id"]: str(row["id"]) for row in rows if row["role"] == "tool"}
    said = [row for row in rows if row["role"] != "tool"]
    rounds = [
        Round(
            str(row["id"]),
            tuple(call["call_id"] for call in row["calls"]),
            answers,
            has_text=row["has_text"],
            is_open=row is said[-1],
        )
        for row in said
        if row["calls"]
    ]
    kept = keep_rounds(rounds, states)
    bare = words_only(rounds, kept)
    if bare:
        await tx.execute("UPDATE messages SET calls = '[]' WHERE id = ANY($1)", list(bare))
    stay = list(bare)
    stay += [str(row["id"]) for row in rows if row["role"] == "assistant" and not row["calls"]]
    stay += [message_id for each in kept for message_id in each.message_ids]
    unanswered = [call_id for each in kept for call_id in each.unanswered]
    return stay, [_answer(call_id, states.get(call_id), refused.get(call_id)) for call_id in unanswered]


def _answer(call_id: str, state: CallState | None, refused: asyncpg.Record | None) -> NewMessage:
    status, message = told_of(state, why_not_allowed(refused["status"]) if refused else None)
    body = {"status": status, "message": message}
    if status == "denied" and refused and refused["status"] in REASONED and refused["comment"]:
        body["reason"] = refused["comment"]
    content = canonical_json(body)
    return NewMessage(new_id(), Role.TOOL, content, call_id=call_id, tokens=estimated_tokens(content))
