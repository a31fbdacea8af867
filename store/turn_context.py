"""What a fresh turn loads, in one transaction: its message, working memory, requests opened before."""

from dataclasses import dataclass
from datetime import datetime

import asyncpg
from pydantic import JsonValue

from contracts.memory import LoadAsk
from contracts.messages import CallRef, MessageRef, Role
from contracts.people import RequestKind, RequestRef
from policy.text import preview
from store.database import Connection


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows that a turn starts from; None fields where the turn is new."""

    user_message: MessageRef
    user_name: str
    user_role: str
    metadata: dict[str, JsonValue]
    limits: dict[str, JsonValue]
    working: dict[str, JsonValue]
    pending: tuple[RequestRef, ...]
    pending_round: MessageRef | None
    memory_text: str | None
    """Set where the turn has loaded before: what was injected then stays."""
    events_through: int
    """The number of the last event that its nodes have written."""


_LOAD = """
SELECT t.metadata, t.limits, t.memory_text, t.events_through, t.ended_at, t.stop_requested_at, m.id AS message_id,
  m.content, m.tokens, u.name, u.display_name, u.roles,
  (SELECT jsonb_object_agg(w.field, w.value) FROM working_memory w
   WHERE w.conversation_id = t.conversation_id AND w.expires_at > now()) AS working,
  EXISTS (SELECT FROM approvals a WHERE a.turn_id = t.id) AS has_asked
FROM turns t JOIN messages m ON m.id = t.message_id JOIN users u ON u.id = t.user_id WHERE t.id = $1 FOR UPDATE OF t
"""


async def load(tx: Connection, ask: LoadAsk) -> Loaded | None:
    """Everything a fresh turn needs; None where the turn has ended or was stopped."""
    row = await tx.fetchrow(_LOAD, ask.address.turn_id)
    if row is None or row["ended_at"] or row["stop_requested_at"]:
        return None
    # Only a turn that is started again has asked for anything yet.
    pending, gated_round = await _pending(tx, ask.address.turn_id) if row["has_asked"] else ((), None)
    return Loaded(
        MessageRef(id=str(row["message_id"]), role=Role.USER, text=preview(row["content"]), tokens=row["tokens"]),
        row["display_name"] or row["name"],
        row["roles"][0] if row["roles"] else "",
        row["metadata"],
        row["limits"],
        row["working"] or {},
        pending,
        gated_round,
        row["memory_text"],
        row["events_through"],
    )


async def _pending(tx: Connection, turn_id: str) -> tuple[tuple[RequestRef, ...], MessageRef | None]:
    """The gate of a turn that is started again (S0-27): its requests that were not executed, and their round."""
    rows = await tx.fetch(
        "SELECT a.id, a.call_id, a.tool, a.expires_at FROM approvals a JOIN tool_calls c "
        "ON c.turn_id = a.turn_id AND c.call_id = a.call_id WHERE a.turn_id = $1 AND a.status <> 'cancelled' "
        "AND c.state IN ('planned', 'reserved') ORDER BY a.call_id",
        turn_id,
    )
    if not rows:
        return (), None
    refs = tuple(_ref(row) for row in rows)
    message = await tx.fetchrow(
        "SELECT id, content, tokens, calls FROM messages WHERE turn_id = $1 AND role = 'assistant' "
        "AND calls @> $2 ORDER BY seq DESC LIMIT 1",
        turn_id,
        [{"call_id": refs[0].call_id}],
    )
    if message is None:
        return (), None
    return refs, assistant_ref(str(message["id"]), message["content"], message["tokens"], message["calls"])


def _ref(row: asyncpg.Record) -> RequestRef:
    expires_at: datetime = row["expires_at"]
    return RequestRef(
        request_id=str(row["id"]),
        kind=RequestKind.APPROVAL,
        call_id=row["call_id"],
        tool=row["tool"],
        expires_at=expires_at,
    )


def assistant_ref(message_id: str, content: str, tokens: int, calls: list[dict[str, JsonValue]]) -> MessageRef:
    """The reference of an assistant message with its calls."""
    return MessageRef(
        id=message_id,
        role=Role.ASSISTANT,
        text=preview(content),
        tokens=tokens,
        calls=tuple(CallRef.model_validate(call) for call in calls),
    )


async def keep_memory_text(tx: Connection, turn_id: str, text: str) -> None:
    """Fix the memory text that this turn injects; every model call of the turn sends the same."""
    await tx.execute("UPDATE turns SET memory_text = $2 WHERE id = $1", turn_id, text)
