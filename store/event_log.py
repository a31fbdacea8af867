"""Reading the journal's events: what a stream sends, and what a reader that comes back must know."""

from collections.abc import Sequence

from contracts.events import DONE, GENERATION_COMPLETE, GENERATION_START
from policy.reader import CallKey, LoggedEvent
from policy.resume import OpenCall
from store.database import Connection


async def read_after(
    tx: Connection, conversation_id: str, seq: int, most: int, *, turn_id: str | None = None
) -> list[LoggedEvent]:
    """The next events of a conversation, or of one of its turns, in order."""
    rows = await tx.fetch(
        "SELECT seq, turn_id, kind, call_id, data, at FROM events "
        "WHERE conversation_id = $1 AND seq > $2 AND ($3::uuid IS NULL OR turn_id = $3) ORDER BY seq LIMIT $4",
        conversation_id,
        seq,
        turn_id,
        most,
    )
    return [LoggedEvent(r["seq"], str(r["turn_id"]), r["kind"], r["call_id"], r["data"], r["at"]) for r in rows]


_OPEN = """
WITH unfinished AS (
  SELECT turn_id FROM events WHERE conversation_id = $1 AND seq > $2 AND kind = $3
  UNION SELECT id FROM turns WHERE conversation_id = $1 AND ended_at IS NULL
)
SELECT s.turn_id, s.call_id, max((s.data->>'attempt')::int) AS attempt
FROM unfinished u JOIN events s ON s.turn_id = u.turn_id AND s.kind = $4 AND s.seq <= $2
WHERE NOT EXISTS (SELECT 1 FROM events c
  WHERE c.turn_id = s.turn_id AND c.call_id = s.call_id AND c.kind = $5 AND c.seq <= $2)
GROUP BY s.turn_id, s.call_id ORDER BY s.turn_id, s.call_id
"""


async def open_calls(tx: Connection, conversation_id: str, seq: int) -> list[OpenCall]:
    """The model calls that had begun and were not complete at `seq`."""
    rows = await tx.fetch(_OPEN, conversation_id, seq, DONE, GENERATION_START, GENERATION_COMPLETE)
    return [OpenCall((str(row["turn_id"]), row["call_id"]), row["attempt"] or 0) for row in rows]


async def begun_until(tx: Connection, keys: Sequence[CallKey], seq: int) -> list[CallKey]:
    """Those of `keys` that had begun at `seq`, or of which the log knows nothing."""
    rows = await tx.fetch(
        "SELECT k.turn_id, k.call_id FROM unnest($1::uuid[], $2::text[]) AS k(turn_id, call_id) "
        "WHERE coalesce((SELECT min(e.seq) FROM events e WHERE e.turn_id = k.turn_id AND e.call_id = k.call_id "
        "AND e.kind = $3), 0) <= $4",
        [turn_id for turn_id, _ in keys],
        [call_id for _, call_id in keys],
        GENERATION_START,
        seq,
    )
    return [(str(row["turn_id"]), row["call_id"]) for row in rows]


async def last_seqs(tx: Connection, conversation_ids: Sequence[str]) -> dict[str, int]:
    """The number of the latest event of each conversation."""
    rows = await tx.fetch("SELECT id, event_seq FROM conversations WHERE id = ANY($1::uuid[])", conversation_ids)
    return {str(row["id"]): row["event_seq"] for row in rows}


async def done_seq(tx: Connection, turn_id: str) -> int | None:
    """The number of a turn's last event, None while it has not ended."""
    seq: int | None = await tx.fetchval("SELECT seq FROM events WHERE turn_id = $1 AND kind = $2", turn_id, DONE)
    return seq


async def status_of(tx: Connection, turn_id: str) -> str:
    """How the turn stands, as its own row says it."""
    status: str = await tx.fetchval("SELECT status FROM turns WHERE id = $1", turn_id)
    return status


async def message_texts(tx: Connection, message_ids: Sequence[str]) -> dict[str, str]:
    """The whole texts of messages, by id."""
    rows = await tx.fetch("SELECT id, content FROM messages WHERE id = ANY($1::uuid[])", message_ids)
    return {str(row["id"]): row["content"] for row in rows}
