"""The bodies of messages, for a model call."""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg
from pydantic import JsonValue

from contracts.messages import Role, WindowPolicy
from store.database import Connection


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message with its whole body."""

    id: str
    turn_id: str
    role: Role
    content: str
    calls: list[dict[str, JsonValue]]
    call_id: str
    tokens: int


async def past(tx: Connection, conversation_id: str, through_seq: int, window: WindowPolicy) -> list[StoredMessage]:
    """The conversation up to a turn's start, oldest first; with a window no more rows than it can use."""
    limit = None if window.max_messages is None else window.max_messages * 2 + 1
    rows = await tx.fetch(
        "WITH recent AS (SELECT * FROM messages WHERE conversation_id = $1 AND seq <= $2 AND in_transcript "
        "ORDER BY seq DESC LIMIT $3), first AS (SELECT * FROM messages WHERE conversation_id = $1 AND seq <= $2 "
        "AND in_transcript AND role = 'user' ORDER BY seq LIMIT 1) "
        "SELECT id, turn_id, role, content, calls, call_id, tokens, seq FROM recent UNION "
        "SELECT id, turn_id, role, content, calls, call_id, tokens, seq FROM first ORDER BY seq",
        conversation_id,
        through_seq,
        limit,
    )
    return [_stored(row) for row in rows]


async def of_ids(tx: Connection, ids: Sequence[str]) -> dict[str, StoredMessage]:
    """These messages by id."""
    rows = await tx.fetch(
        "SELECT id, turn_id, role, content, calls, call_id, tokens FROM messages WHERE id = ANY($1)", list(ids)
    )
    return {str(row["id"]): _stored(row) for row in rows}


def _stored(row: asyncpg.Record) -> StoredMessage:
    return StoredMessage(
        str(row["id"]),
        str(row["turn_id"]),
        Role(row["role"]),
        row["content"],
        row["calls"],
        row["call_id"] or "",
        row["tokens"],
    )
