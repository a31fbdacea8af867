"""The relay: delivers wake-ups whose writer did not. Safe to run twice: rows are claimed one by one."""

import asyncio

import structlog
from temporalio.service import RPCError

from relay.deliver import Doorbell
from relay.refused import give_up, refused
from relay.trouble import Trouble
from store import outbox
from store.database import Database
from store.outbox import Note

POLL_SECONDS = 0.2
OUTAGE_SECONDS = 1.0
_log = structlog.get_logger(__name__)


async def deliver_due(relay: Database, doorbell: Doorbell) -> int:
    """Deliver what is due now; what fails stays and is due again in ten seconds, unless it is refused for good."""
    notes = await outbox.claim_due(relay.pool)
    done = []
    for note in notes:
        try:
            await _deliver(relay, doorbell, note)
            done.append(note.id)
        except Exception as error:  # one that cannot be delivered must not hold up the others
            _log.warning(
                "wake_up_not_delivered", turn_id=note.turn_id, attempt=note.attempts, error=type(error).__name__
            )
    if done:
        await outbox.forget(relay.pool, done)
    return len(done)


async def _deliver(relay: Database, doorbell: Doorbell, note: Note) -> None:
    try:
        await doorbell.deliver(note)
    except RPCError as error:
        problem = refused(note, error)
        if problem is None:
            raise
        await give_up(relay, doorbell, note, problem)


async def run_relay(relay: Database, doorbell: Doorbell, stop: asyncio.Event) -> None:
    """Deliver until `stop`; an outage of Postgres is waited out."""
    trouble = Trouble()
    while not stop.is_set():
        delivered = 0
        try:
            delivered = await deliver_due(relay, doorbell)
            trouble.is_over("relay_waits_for_postgres")
        except (OSError, *relay.outages) as error:
            trouble.is_on("relay_waits_for_postgres", error=error)
            await asyncio.sleep(OUTAGE_SECONDS)
        if not delivered:
            await asyncio.sleep(POLL_SECONDS)
