"""The summary of a completed turn, which only advises: neither its failure nor a lock keeps the turn from its end.

It is written behind a savepoint, within `STORE_MS`. If that fails, the turn ends without it, and a note in the outbox
records that it is missing. The reconciler stores it once `episodes` can be written again.
"""

import asyncpg
import structlog

from perdure.contracts.turns import TurnAddress
from perdure.core.transcript import summary_of
from perdure.store.approvals.verdicts import refusals_of
from perdure.store.database import Connection, Database
from perdure.store.delivery import outbox
from perdure.store.memory import episodes

STORE_MS = 1_000
"""The maximum time that the end of a turn waits for the table. With an index it takes less than a millisecond."""
MISSED_MS = 200
"""The maximum time for a missing summary, whose transaction holds locks of conversations."""
MAX_STORED = 20
"""The maximum number of missing summaries that one transaction stores."""
_log = structlog.get_logger(__name__)


async def store_or_leave(tx: Connection, address: TurnAddress, ended: asyncpg.Record, summary: str) -> bool:
    """Stores the summary of the turn that ends in this transaction. If that fails, leaves it to the reconciler and
    returns False. `ended` has the turn's user and agent.

    Raises: the database's errors if the transaction is lost.
    """
    error = await _store(tx, address, ended, summary, STORE_MS)
    if error is None:
        return True
    _log.warning("summary_not_stored", turn_id=address.turn_id, table="episodes", error=type(error).__name__)
    await outbox.leave_summary(tx, address.tenant_id, address.turn_id)
    return False


async def _store(
    tx: Connection, address: TurnAddress, ended: asyncpg.Record, summary: str, most_ms: int
) -> Exception | None:
    """Stores a summary. Returns the error if that failed; the transaction can continue."""
    await tx.execute(f"SAVEPOINT summary; SET LOCAL statement_timeout = {most_ms}")
    try:
        await episodes.store_summary(
            tx, address.conversation_id, str(ended["user_id"]), ended["agent_id"], summary, address.turn_id
        )
    except Database.outages as error:
        await tx.execute("ROLLBACK TO SAVEPOINT summary")
        return error
    return None


_LOCK = """
SELECT o.id, t.id AS turn_id, t.tenant_id, t.conversation_id, c.deleted_at IS NOT NULL AS deleted
FROM outbox o JOIN turns t ON t.id = o.turn_id JOIN conversations c ON c.id = t.conversation_id
  JOIN users u ON u.id = t.user_id
WHERE o.due_at = 'infinity' ORDER BY o.attempts, o.id LIMIT $1
FOR UPDATE OF o SKIP LOCKED FOR KEY SHARE OF c, u SKIP LOCKED
"""
"""Locks conversation and user against their deletion. Those that another transaction holds are left for later. A
statement that waited for a lock sees texts as they were before the wait, so they are read by the next one."""
_TEXTS = """
SELECT t.user_id, t.agent_id, t.answer, m.content AS asked FROM turns t JOIN messages m ON m.id = t.message_id
WHERE t.id = $1
"""


async def store_missed(tx: Connection, most: int = MAX_STORED) -> tuple[int, bool]:
    """Stores at most so many missing summaries. Returns how many are still missing, and whether one could not be
    stored. Stops at that one, which is tried last the next time. A summary of a deleted conversation or of an erased
    user is dropped."""
    has_failed = False
    for row in await tx.fetch(_LOCK, most):
        texts = await tx.fetchrow(_TEXTS, row["turn_id"])
        address = TurnAddress(
            tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=str(row["turn_id"])
        )
        summary = (
            await _missed_summary(tx, address.turn_id, texts) if texts is not None and not row["deleted"] else None
        )
        if texts is not None and summary and await _store(tx, address, texts, summary, MISSED_MS) is not None:
            await tx.execute("UPDATE outbox SET attempts = attempts + 1 WHERE id = $1", row["id"])
            has_failed = True
            break
        await tx.execute("DELETE FROM outbox WHERE id = $1", row["id"])
    missing: int = await tx.fetchval("SELECT count(*) FROM outbox WHERE due_at = 'infinity'")
    return missing, has_failed


async def _missed_summary(tx: Connection, turn_id: str, texts: asyncpg.Record) -> str | None:
    """Returns the summary of an ended turn, or None if its texts were erased."""
    if not (texts["asked"] or texts["answer"]):
        return None
    refusals = (await refusals_of(tx, [turn_id])).get(turn_id, ())
    return summary_of(texts["asked"] or "", texts["answer"] or "", refusals)
