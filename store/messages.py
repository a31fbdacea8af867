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


_BODIES = """
WITH before AS (
  SELECT * FROM messages WHERE conversation_id = $1 AND seq <= $2 AND in_transcript
), recent AS (
  SELECT * FROM before ORDER BY seq DESC LIMIT $3
), first AS (
  SELECT * FROM before WHERE role = 'user' ORDER BY seq LIMIT 1
)
SELECT true AS past, id, turn_id, role, content, calls, call_id, tokens, seq FROM recent UNION
SELECT true, id, turn_id, role, content, calls, call_id, tokens, seq FROM first UNION ALL
SELECT false, id, turn_id, role, content, calls, call_id, tokens, seq FROM messages WHERE id = ANY($4)
ORDER BY seq
"""


async def bodies(
    tx: Connection, conversation_id: str, through_seq: int, window: WindowPolicy, ids: Sequence[str]
) -> tuple[list[StoredMessage], dict[str, StoredMessage]]:
    """The conversation up to a turn's start, oldest first, and the messages `ids` by id, in one statement.

    With a window no more of the past is read than it can use.
    """
    limit = None if window.max_messages is None else window.max_messages * 2 + 1
    rows = await tx.fetch(_BODIES, conversation_id, through_seq, limit, list(ids))
    past = [_stored(row) for row in rows if row["past"]]
    return past, {str(row["id"]): _stored(row) for row in rows if not row["past"]}


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
