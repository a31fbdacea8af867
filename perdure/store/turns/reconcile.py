"""Queries of the reconciler: open turns that should progress, and turns whose wake signal or admission was lost."""

from collections.abc import Collection
from dataclasses import dataclass

import asyncpg

from perdure.contracts.turns import StuckTask, TurnAddress, TurnStatus
from perdure.store.database import Connection, Database
from perdure.store.delivery.outbox import Wake
from perdure.store.turns.finish import admit_queued


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn that has not ended."""

    address: TurnAddress
    status: TurnStatus
    stuck: StuckTask | None = None
    """Its failing workflow task, as an earlier pass found it."""

    @property
    def is_paused(self) -> bool:
        """True if the turn is paused, so that its workflow run only waits."""
        return self.status.value.startswith("awaiting")


async def list_tenants(relay: Database) -> list[str]:
    """Returns the ids of all tenants, read with the relay's database role."""
    async with relay.without_tenant() as connection:
        rows = await connection.fetch("SELECT tenant_id FROM perdure.tenants WHERE tenant_id <> '*' ORDER BY tenant_id")
    return [row["tenant_id"] for row in rows]


_OPEN = """
SELECT id, tenant_id, conversation_id, status, stuck, created_at FROM turns t
WHERE ended_at IS NULL AND status <> 'queued'
  AND created_at < now() - make_interval(secs => $1) AND {}
  AND NOT EXISTS (SELECT FROM outbox o WHERE o.turn_id = t.id AND o.kind = 'start')
"""
_PAUSED = "status LIKE 'awaiting%'"
_OPEN_TURNS = f"""
({_OPEN.format("(status NOT LIKE 'awaiting%' OR stuck IS NOT NULL)")}) UNION ALL
({_OPEN.format(f"{_PAUSED} AND stuck IS NULL")} ORDER BY created_at LIMIT $2) ORDER BY created_at
"""


_AMONG = f"{_OPEN.format(_PAUSED)} AND id = ANY($2::uuid[])"
_UNMOVED = f"""{_OPEN.format(_PAUSED)} AND stuck IS NULL
  AND rung_at BETWEEN now() - interval '20 minutes' AND now() - interval '30 seconds' ORDER BY rung_at LIMIT $2"""


async def open_turns(tx: Connection, older_than_seconds: float, max_paused: int | None = None) -> list[OpenTurn]:
    """Returns open turns, oldest first, without queued and very recent ones and without those whose start is in the
    outbox. Of the paused ones it returns all stuck ones, and the `max_paused` oldest others or all without that limit.

    A turn whose start is in the outbox has no workflow yet, so that it must not count as one that lost its workflow.
    """
    return [_open(row) for row in await tx.fetch(_OPEN_TURNS, older_than_seconds, max_paused)]


async def paused_among(tx: Connection, turn_ids: Collection[str]) -> list[OpenTurn]:
    """Returns the turns among `turn_ids` that are still paused."""
    return [_open(row) for row in await tx.fetch(_AMONG, 0.0, list(turn_ids))]


async def unmoved_paused(tx: Connection, limit: int) -> list[OpenTurn]:
    """Returns paused turns that were signaled a while ago, since their requests are decided, and still wait: at most
    `limit`, those that have waited for longest first. A signal is repeated within 15 minutes."""
    return [_open(row) for row in await tx.fetch(_UNMOVED, 0.0, limit)]


def _open(row: asyncpg.Record) -> OpenTurn:
    address = TurnAddress(
        tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=str(row["id"])
    )
    stuck = StuckTask.model_validate(row["stuck"]) if row["stuck"] else None
    return OpenTurn(address, TurnStatus(row["status"]), stuck)


async def record_stuck(tx: Connection, turn_id: str, stuck: StuckTask | None) -> None:
    """Stores the failing workflow task of an open turn, or that it has none."""
    await tx.execute(
        "UPDATE turns SET stuck = $2 WHERE id = $1 AND ended_at IS NULL",
        turn_id,
        stuck.model_dump(mode="json") if stuck else None,
    )


async def wake_stopped(tx: Connection, tenant_id: str) -> int:
    """Puts the stop signal in the outbox again for open turns that were asked to stop and were not signaled recently.
    Returns their number.

    The first signal may have come before the workflow existed, whose start was recorded before the stop.
    """
    rows = await tx.fetch(
        "WITH woken AS (UPDATE turns t SET rung_at = now() WHERE t.ended_at IS NULL AND t.status <> 'queued' "
        "AND t.stop_requested_at < now() - interval '10 seconds' "
        "AND (t.rung_at IS NULL OR t.rung_at < now() - interval '1 minute') "
        # A signal for the end of a hold, days ahead, does not count as a signal for now.
        "AND NOT EXISTS (SELECT FROM outbox o WHERE o.turn_id = t.id AND o.due_at <= now() + interval '10 seconds') "
        "RETURNING t.id) "
        "INSERT INTO outbox (tenant_id, kind, turn_id) SELECT $1, $2, id FROM woken RETURNING turn_id",
        tenant_id,
        Wake.STOP.value,
    )
    return len(rows)


_WAKE_DECIDED = """
WITH behind AS MATERIALIZED (  -- a call waits for a worker, and the decision on another one has had no effect
  SELECT t.id FROM turns t WHERE t.status = 'running' AND t.ended_at IS NULL
    AND t.id = ANY(ARRAY(SELECT a.turn_id FROM approvals a WHERE a.status = 'edited' OR a.status = 'approved'
      AND a.kind = 'approval'))  -- one of the two has a granted approval, of which there are few
    AND (SELECT true FROM tool_calls c WHERE c.turn_id = t.id AND c.awaits_worker_since IS NOT NULL
      AND c.state IN ('planned', 'reserved') LIMIT 1)
    AND (SELECT true FROM tool_calls c JOIN approvals a ON a.turn_id = c.turn_id AND a.call_id = c.call_id
      WHERE c.turn_id = t.id AND c.awaits_worker_since IS NULL AND c.state = 'planned' AND a.status <> 'pending'
        AND (a.ready_at IS NULL OR a.ready_at <= clock_timestamp()) LIMIT 1)
), waiting AS MATERIALIZED (  -- of all that wait the few that may go on: nothing of them is open, or held
  SELECT t.id FROM turns t WHERE t.status = 'awaiting_approval' AND t.ended_at IS NULL
    AND NOT EXISTS (SELECT FROM approvals a WHERE a.turn_id = t.id
      AND (a.status = 'pending' AND a.expires_at > clock_timestamp()
        OR a.status IN ('approved', 'edited') AND a.ready_at > clock_timestamp()))
    AND NOT EXISTS (SELECT FROM tool_calls c WHERE c.turn_id = t.id AND c.state = 'outcome_unknown')
  UNION  -- or a call of them may start, whatever becomes of the others
  SELECT a.turn_id FROM approvals a WHERE (a.status = 'edited' OR a.status = 'approved' AND a.kind = 'approval')
    AND (a.ready_at IS NULL OR a.ready_at <= clock_timestamp())
    AND (SELECT c.awaits_worker_since FROM tool_calls c WHERE c.turn_id = a.turn_id AND c.call_id = a.call_id) IS NULL
  UNION SELECT id FROM behind
), due AS (
  SELECT t.id, t.rung_at, decided.at FROM turns t CROSS JOIN LATERAL (SELECT greatest(
    (SELECT max(coalesce(greatest(a.decided_at, a.ready_at, a.closed_at), a.expires_at)) FROM approvals a
     WHERE a.turn_id = t.id AND (a.status <> 'pending' OR a.expires_at <= clock_timestamp())
       AND (a.ready_at IS NULL OR a.ready_at <= clock_timestamp())),
    (SELECT max(c.settled_at) FROM tool_calls c WHERE c.turn_id = t.id)) AS at) decided
  WHERE t.id = ANY(ARRAY(SELECT id FROM waiting)) AND t.ended_at IS NULL
    AND (t.status = 'awaiting_approval' OR t.id = ANY(ARRAY(SELECT id FROM behind)))
    AND (t.rung_at IS NULL OR t.rung_at < now() - interval '1 minute'
      AND t.rung_at < now() - least(t.rung_at - decided.at, interval '15 minutes'))
    AND NOT EXISTS (SELECT FROM outbox o WHERE o.turn_id = t.id AND o.due_at <= now() + interval '10 seconds')
  FOR UPDATE OF t SKIP LOCKED
), woken AS (
  UPDATE turns SET rung_at = now() WHERE id = ANY(ARRAY(SELECT id FROM due))
), noted AS (
  INSERT INTO outbox (tenant_id, kind, turn_id) SELECT $1, $2, id FROM due
)
SELECT id FROM due WHERE rung_at > at AND at < now() - interval '10 minutes'
"""


_WAKE_ANSWERED = """
WITH due AS (
  SELECT t.id FROM turns t WHERE t.status = 'awaiting_answer' AND t.ended_at IS NULL
    AND EXISTS (SELECT FROM questions q WHERE q.turn_id = t.id)
    AND NOT EXISTS (SELECT FROM questions q WHERE q.turn_id = t.id AND q.status = 'pending' AND q.expires_at > now())
    AND (t.rung_at IS NULL OR t.rung_at < now() - interval '1 minute')
    AND NOT EXISTS (SELECT FROM outbox o WHERE o.turn_id = t.id AND o.due_at <= now() + interval '10 seconds')
  FOR UPDATE OF t SKIP LOCKED
), woken AS (
  UPDATE turns SET rung_at = now() WHERE id = ANY(ARRAY(SELECT id FROM due))
)
INSERT INTO outbox (tenant_id, kind, turn_id) SELECT $1, $2, id FROM due RETURNING turn_id
"""


async def wake_answered(tx: Connection, tenant_id: str) -> int:
    """Puts a wake signal in the outbox for every turn that still waits although its questions are answered or expired.
    Returns their number."""
    return len(await tx.fetch(_WAKE_ANSWERED, tenant_id, Wake.REQUEST.value))


async def wake_decided(tx: Connection, tenant_id: str) -> list[str]:
    """Puts a wake signal in the outbox for every turn that still waits although its requests are decided or expired, or
    although one of its calls can start.

    A turn whose decision cannot be read keeps waiting. It is signaled after a minute, then less and less often, down to
    every 15 minutes. Returns the turns that were signaled before and still wait ten minutes after the decision.
    """
    rows = await tx.fetch(_WAKE_DECIDED, tenant_id, Wake.REQUEST.value)
    return [str(row["id"]) for row in rows]


async def start_stranded(tx: Connection, tenant_id: str) -> int:
    """Admits the oldest queued turn of every conversation without an active turn. Returns their number."""
    oldest = await tx.fetch(
        "SELECT DISTINCT ON (t.conversation_id) t.id, t.conversation_id FROM turns t "
        "JOIN conversations c ON c.id = t.conversation_id WHERE t.status = 'queued' AND c.active_turn_id IS NULL "
        "ORDER BY t.conversation_id, t.created_at, t.id"
    )
    started = 0
    for row in oldest:
        address = TurnAddress(tenant_id=tenant_id, conversation_id=str(row["conversation_id"]), turn_id=str(row["id"]))
        started += await _start_if_stranded(tx, address)
    return started


async def _start_if_stranded(tx: Connection, address: TurnAddress) -> bool:
    """Admits the turn if it is still queued and the conversation has no active turn, both checked under their locks."""
    waits = await tx.fetchval(
        "SELECT true FROM turns WHERE id = $1 AND status = 'queued' FOR UPDATE SKIP LOCKED", address.turn_id
    )
    free = waits and await tx.fetchval(
        "SELECT true FROM conversations WHERE id = $1 AND active_turn_id IS NULL FOR UPDATE", address.conversation_id
    )
    if free:
        await admit_queued(tx, address)
    return bool(free)
