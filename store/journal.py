"""The journal of a conversation: its messages and its durable events, numbered in commit order.

Both counters live on the conversation row, which is locked by the statement that bumps them. Callers write here last
before they commit, so that the lock is short and a reader that sees event n has every event below it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import JsonValue

from contracts.events import DONE, PendingEvent
from contracts.messages import Role
from contracts.turns import TurnAddress
from policy.text import clean
from store.database import Connection
from store.unasked import record_unasked


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to write."""

    id: str
    role: Role
    content: str
    calls: Sequence[dict[str, JsonValue]] = ()
    """For an assistant message: {call_id, provider_id, tool, arguments} for each call, in order."""
    call_id: str | None = None
    tokens: int = 0
    partial: bool = False


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to write; `at` defaults to the database's clock."""

    kind: str
    data: dict[str, JsonValue] = field(default_factory=dict)
    call_id: str | None = None
    at: datetime | None = None


_WRITE = """
WITH turn AS (
  SELECT CASE WHEN $7 OR ended_at IS NULL THEN events_through END AS written_through FROM turns WHERE id = $2
), fresh AS (
  SELECT row_number() OVER (ORDER BY e.n) AS place, e.kind, e.call_id, e.data, e.at FROM jsonb_to_recordset($5)
    AS e(n int, number int, kind text, call_id text, data jsonb, at timestamptz)
  WHERE e.number = 0 OR e.number > (SELECT written_through FROM turn)
), noted AS (
  UPDATE turns SET events_through = $6 WHERE id = $2 AND $6 > (SELECT written_through FROM turn)
), bumped AS (
  UPDATE conversations SET event_seq = event_seq + (SELECT count(*) FROM fresh), message_seq = message_seq + $3,
    text_bytes = text_bytes + $8, updated_at = now()
  WHERE id = $1
  RETURNING tenant_id, event_seq - (SELECT count(*) FROM fresh) AS events_before, message_seq - $3 AS messages_before
), written AS (
  INSERT INTO messages (id, tenant_id, conversation_id, turn_id, seq, role, content, calls, call_id, tokens, partial)
  SELECT m.id, b.tenant_id, $1, $2, b.messages_before + m.n, m.role, m.content, m.calls, m.call_id, m.tokens, m.partial
  FROM bumped b, jsonb_to_recordset($4) AS m(n int, id uuid, role text, content text, calls jsonb, call_id text,
    tokens int, partial boolean)
)
INSERT INTO events (tenant_id, conversation_id, seq, turn_id, kind, call_id, data, at)
SELECT b.tenant_id, $1, b.events_before + f.place, $2, f.kind, f.call_id, f.data, coalesce(f.at, clock_timestamp())
FROM bumped b, fresh f
"""


async def write(
    tx: Connection,
    address: TurnAddress,
    events: Sequence[NewEvent],
    messages: Sequence[NewMessage] = (),
    pending: Sequence[PendingEvent] = (),
    beside_bytes: int = 0,
) -> None:
    """Append `messages` and `events` to the conversation, in one statement. Write it last before the commit.

    `pending` are events that nodes left for this activity; they come first, and those that an earlier attempt has
    written are left out. So are all of them once the turn has ended, since its last event is its `done`: only the write
    that says `done` may still bring its own. Who hands them in holds the lock of the turn's row.

    `beside_bytes` are bytes that the caller has written beside the messages, such as a turn's metadata: both count
    towards the conversation's quota.

    Raises: UpstreamRejected `checkpoint_decided`.
    """
    ends = any(event.kind == DONE for event in events)
    await record_unasked(tx, address.turn_id, pending, ends=ends)
    log: list[PendingEvent | NewEvent] = [*pending, *events]
    await tx.execute(
        _WRITE,
        address.conversation_id,
        address.turn_id,
        len(messages),
        [
            {
                "n": number,
                "id": message.id,
                "role": message.role.value,
                "content": clean(message.content),
                "calls": list(message.calls),
                "call_id": message.call_id,
                "tokens": message.tokens,
                "partial": message.partial,
            }
            for number, message in enumerate(messages, 1)
        ],
        [
            {
                "n": place,
                "number": event.number if isinstance(event, PendingEvent) else 0,
                "kind": event.kind,
                "call_id": event.call_id,
                "data": event.data,
                "at": event.at.isoformat() if event.at else None,
            }
            for place, event in enumerate(log, 1)
        ],
        max((event.number for event in pending), default=0),
        ends,
        beside_bytes + sum(map(_size, messages)),
    )


def _size(message: NewMessage) -> int:
    calls = json.dumps(message.calls, ensure_ascii=False) if message.calls else ""
    return len((message.content + calls).encode(errors="surrogatepass"))
