"""The messages and durable events of a conversation, numbered in commit order.

Both counters are on the conversation's row, which the write locks. Callers write here last before they commit. The lock
is then short, and a reader that sees event n also has every earlier event.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pydantic import JsonValue

from perdure.contracts.errors import UpstreamRejected
from perdure.contracts.events import DONE, GENERATION_COMPLETE, GENERATION_START, HITL_WARNING, PendingEvent
from perdure.contracts.ids import trace_id
from perdure.contracts.messages import Role
from perdure.contracts.turns import TurnAddress
from perdure.core.events.stream import CallKey, LoggedEvent, OpenCall
from perdure.core.events.traces import TurnLogEvent, TurnRecord
from perdure.core.text import clean
from perdure.store import audit
from perdure.store.database import Connection

MAX_EVENTS = 20_000
NAMED = (
    *("node", "tool", "model", "attempt", "code", "status", "input_tokens", "output_tokens", "cached_tokens"),
    *("seconds", "assembly", "scope", "partial", "type", "severity", "rule_id", "skill_id", "skill_ids", "tier"),
    *("description", "context"),
)
"""The keys of an event's data that a trace can contain. Content such as `facts`, `hits`, `message` and `result` is
excluded, and so is any new key."""
KINDS = (
    *("node_start", "node_end", "generation.start", "generation.complete", "token.usage", "ttft", "transient_error"),
    *("rate_limit", "tool.executing", "tool.result", "tool.error", "tool.denied", "tool.awaiting_approval"),
    *("memory.search", "memory.write.created", "memory.write.blocked", "memory.context.loaded"),
    *("hitl.rule_fire", "hitl.warning", "skill.selected", "skill.injected", "budget", "invariant.alarm"),
)


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to write."""

    id: str
    role: Role
    content: str
    calls: Sequence[dict[str, JsonValue]] = ()
    """The calls of an assistant message in order, each {call_id, provider_id, tool, arguments}."""
    call_id: str | None = None
    tokens: int = 0
    partial: bool = False
    extends: bool = False
    """True if the content is added to the stored message `id`, which keeps its place."""
    seq: int | None = None
    """Its place, if `make_room` has made it. Such messages come before those that are appended."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to write. `at` defaults to the database's clock."""

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
  SELECT m.id, b.tenant_id, $1, $2, coalesce(m.seq, b.messages_before + m.n), m.role, m.content, m.calls, m.call_id,
    m.tokens, m.partial
  FROM bumped b, jsonb_to_recordset($4) AS m(n int, seq bigint, id uuid, role text, content text, calls jsonb,
    call_id text, tokens int, partial boolean)
)
INSERT INTO events (tenant_id, conversation_id, seq, turn_id, kind, call_id, data, at)
SELECT b.tenant_id, $1, b.events_before + f.place, $2, f.kind, f.call_id, f.data, coalesce(f.at, clock_timestamp())
FROM bumped b, fresh f
"""


# In two steps, because the places of a conversation are unique after each row.
_MAKE_ROOM = """
UPDATE messages SET seq = -(seq + (SELECT count(*) FROM unnest($2::bigint[]) AS place WHERE place < seq))
WHERE conversation_id = $1 AND seq > $3
"""
_SETTLE_ROOM = "UPDATE messages SET seq = -seq WHERE conversation_id = $1 AND seq < 0"


async def make_room(tx: Connection, conversation_id: str, placed: Sequence[tuple[int, NewMessage]]) -> list[NewMessage]:
    """Moves the later messages of the conversation, so that each of these follows the message with the number before
    it. Returns them with their places, for the `write` of the same transaction, which holds the conversation's lock.
    """
    ordered = sorted(placed, key=lambda each: each[0])
    if ordered:
        after = [seq for seq, _ in ordered]
        await tx.execute(_MAKE_ROOM, conversation_id, after, after[0])
        await tx.execute(_SETTLE_ROOM, conversation_id)
    return [replace(message, seq=seq + place) for place, (seq, message) in enumerate(ordered, 1)]


_EXTEND = """
UPDATE messages SET content = content || $3, calls = $4, tokens = tokens + $5, partial = $6
WHERE id = $1 AND turn_id = $2
"""


async def write(
    tx: Connection,
    address: TurnAddress,
    events: Sequence[NewEvent],
    messages: Sequence[NewMessage] = (),
    pending: Sequence[PendingEvent] = (),
    beside_bytes: int = 0,
) -> None:
    """Appends `messages` and `events` to the conversation in one statement. It must be the last write before the
    commit.

    `pending` are events that nodes left for this activity; they come first. Those that an earlier attempt wrote are
    skipped. If the turn has ended, all of them are skipped, because `done` is its last event. Only the write that
    contains `done` can add its own. A caller that passes `pending` holds the lock on the turn's row.

    `beside_bytes` are bytes that the caller stored in addition to the messages, such as a turn's metadata. Both count
    toward the conversation's quota.

    Raises: UpstreamRejected `checkpoint_decided`.
    """
    added, messages = ([message for message in messages if message.extends is wanted] for wanted in (True, False))
    for message in added:
        (row,) = _message_rows([message])
        extension = (message.id, address.turn_id, row["content"], row["calls"], message.tokens, message.partial)
        await tx.execute(_EXTEND, *extension)
    ends = any(event.kind == DONE for event in events)
    await record_skipped_checkpoints(tx, address.turn_id, pending, ends=ends)
    await tx.execute(
        _WRITE,
        address.conversation_id,
        address.turn_id,
        len(messages),
        _message_rows(messages),
        _event_rows([*pending, *events]),
        max((event.number for event in pending), default=0),
        ends,
        beside_bytes + sum(map(_size, [*added, *messages])),
    )


def _message_rows(messages: Sequence[NewMessage]) -> list[dict[str, JsonValue]]:
    return [
        {
            "n": number,
            "seq": message.seq,
            "id": message.id,
            "role": message.role.value,
            "content": clean(message.content),
            "calls": list(message.calls),
            "call_id": message.call_id,
            "tokens": message.tokens,
            "partial": message.partial,
        }
        for number, message in enumerate(messages, 1)
    ]


def _event_rows(log: Sequence[PendingEvent | NewEvent]) -> list[dict[str, JsonValue]]:
    return [
        {
            "n": place,
            "number": event.number if isinstance(event, PendingEvent) else 0,
            "kind": event.kind,
            "call_id": event.call_id,
            "data": event.data,
            "at": event.at.isoformat() if event.at else None,
        }
        for place, event in enumerate(log, 1)
    ]


def _size(message: NewMessage) -> int:
    calls = json.dumps(message.calls, ensure_ascii=False) if message.calls else ""
    return len((message.content + calls).encode(errors="surrogatepass"))


async def read_after(
    tx: Connection, conversation_id: str, seq: int, limit: int, *, turn_id: str | None = None
) -> list[LoggedEvent]:
    """Returns at most `limit` events after `seq`, in order: of the conversation, or only of `turn_id`."""
    rows = await tx.fetch(
        "SELECT seq, turn_id, kind, call_id, data, at FROM events "
        "WHERE conversation_id = $1 AND seq > $2 AND ($3::uuid IS NULL OR turn_id = $3) ORDER BY seq LIMIT $4",
        conversation_id,
        seq,
        turn_id,
        limit,
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
    """Returns the model calls that were open at `seq`: started and not complete."""
    rows = await tx.fetch(_OPEN, conversation_id, seq, DONE, GENERATION_START, GENERATION_COMPLETE)
    return [OpenCall((str(row["turn_id"]), row["call_id"]), row["attempt"] or 0) for row in rows]


async def begun_until(tx: Connection, keys: Sequence[CallKey], seq: int) -> list[CallKey]:
    """Returns those of `keys` that had begun at `seq`, or of which the log has no start."""
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
    """Returns the number of the latest event of each conversation."""
    rows = await tx.fetch("SELECT id, event_seq FROM conversations WHERE id = ANY($1::uuid[])", conversation_ids)
    return {str(row["id"]): row["event_seq"] for row in rows}


async def done_seq(tx: Connection, turn_id: str) -> int | None:
    """Returns the number of the turn's last event, or None if the turn has not ended."""
    seq: int | None = await tx.fetchval("SELECT seq FROM events WHERE turn_id = $1 AND kind = $2", turn_id, DONE)
    return seq


async def status_of(tx: Connection, turn_id: str) -> str:
    """Returns the turn's current status."""
    status: str = await tx.fetchval("SELECT status FROM turns WHERE id = $1", turn_id)
    return status


async def message_texts(tx: Connection, message_ids: Sequence[str]) -> dict[str, str]:
    """Returns the full texts of messages, by message id. Unknown ids are left out."""
    rows = await tx.fetch("SELECT id, content FROM messages WHERE id = ANY($1::uuid[])", message_ids)
    return {str(row["id"]): row["content"] for row in rows}


_CLOSE = """
UPDATE approvals SET status = 'cancelled', version = version + 1
WHERE id = $1 AND turn_id = $2 AND status = 'pending'
"""
_DECIDED = """
SELECT status FROM approvals WHERE id = $1 AND turn_id = $2 AND status NOT IN ('cancelled', 'approved')
"""
_KIND = "checkpoint.not_asked"
_RECORDED = "SELECT true FROM audit WHERE kind = $1 AND subject = $2"


async def record_skipped_checkpoints(
    tx: Connection, turn_id: str, events: Iterable[PendingEvent], *, ends: bool
) -> None:
    """Records each skipped checkpoint among `events` once in the audit trail, even if the events are passed repeatedly.
    Without one, it runs no statement.

    If the checkpoint was opened but the turn did not learn of it, its request is cancelled. If a reviewer decided
    anything but approval, the turn can only end; `ends` states that it does.

    A checkpoint that was opened after all is closed.

    Raises: UpstreamRejected `checkpoint_decided`.
    """
    for event in events:
        if event.kind != HITL_WARNING:
            continue
        approval_id = str(event.data["approval_id"])
        await tx.execute(_CLOSE, approval_id, turn_id)
        decided = await tx.fetchval(_DECIDED, approval_id, turn_id)
        if decided is None:
            if not await tx.fetchval(_RECORDED, _KIND, approval_id):
                await audit.record(tx, _KIND, approval_id, event.data, actor=None, turn_id=turn_id)
        elif not ends:
            raise UpstreamRejected(
                "checkpoint_decided",
                f"the checkpoint was {decided} after the turn had continued without a review, so the turn ends here",
            )


_EVENTS = """
SELECT kind, at, call_id,
  (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(data) WHERE key = ANY($2)) AS data
FROM events WHERE turn_id = $1 AND kind = ANY($3) ORDER BY seq LIMIT $4
"""


async def record_of(tx: Connection, address: TurnAddress) -> TurnRecord | None:
    """Returns the trace record of an ended turn, or None if the turn is open. Only the keys in `NAMED` are read from an
    event's data, so that no content leaves Postgres for a trace."""
    turn = await tx.fetchrow("SELECT * FROM turns WHERE id = $1 AND ended_at IS NOT NULL", address.turn_id)
    if turn is None:
        return None
    events = await tx.fetch(_EVENTS, address.turn_id, list(NAMED), list(KINDS), MAX_EVENTS)
    failed = await tx.fetch(
        "SELECT call_id, reply #>> '{problem,code}' AS code FROM model_calls WHERE turn_id = $1 "
        "AND reply #>> '{problem,code}' IS NOT NULL",
        address.turn_id,
    )
    return TurnRecord(
        tenant_id=address.tenant_id,
        conversation_id=address.conversation_id,
        turn_id=address.turn_id,
        user_id=str(turn["user_id"]),
        agent_id=turn["agent_id"],
        agent_version=turn["agent_version"],
        topology=turn["topology"],
        status=turn["status"],
        began=turn["created_at"],
        ended=turn["ended_at"],
        input_tokens=turn["input_tokens"],
        output_tokens=turn["output_tokens"],
        cost_microusd=turn["cost_microusd"],
        problem_code=str((turn["problem"] or {}).get("code", "")),
        given_trace_id=trace_id(turn["metadata"].get("trace_id"), ""),
        happened=tuple(TurnLogEvent(row["kind"], row["at"], row["call_id"], row["data"]) for row in events),
        failures={row["call_id"]: row["code"] for row in failed},
    )
