"""The relay: delivers wake-ups whose writer did not. Safe to run twice: rows are claimed one by one."""

import asyncio

import structlog
from temporalio.service import RPCError, RPCStatusCode

from perdure.contracts.errors import Problem
from perdure.store.database import Database
from perdure.store.delivery import outbox
from perdure.store.delivery.outbox import Note, Wake, workflow_input
from perdure.store.turns.finish import finish_broken
from perdure.telemetry.metrics import Trouble
from perdure.temporal.workflow_client import Doorbell

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


# --- Turns that Temporal will not start, however often it is asked: they end, and say why.
# Without it such a turn would stay `accepted` for ever, its conversation busy, and not even a stop would end it.

FOR_GOOD = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION})
"""What Temporal says of the request itself. Everything else (away, busy, a key that has run out, a namespace that is
not there yet) its operator can mend, and 202 means durable: those starts are tried for ever."""
STARTS = 3
"""The relay's tries, ten seconds apart, before a refusal is believed: a server that has just begun may not know its
search attributes for a moment."""
MESSAGE_CHARACTERS = 300


def refused(note: Note, error: RPCError) -> Problem | None:
    """Why this start will never succeed; None where it may, or where `note` is no start."""
    if note.kind is not Wake.START or note.attempts < STARTS or error.status not in FOR_GOOD:
        return None
    # A start carries ids and queue names, nothing that anybody said: Temporal's sentence can quote no more than that.
    said = f"Temporal refused to start the turn ({error.status.name.lower()}): {error.message}"
    return Problem(code="start_refused", message=said[:MESSAGE_CHARACTERS])


async def give_up(relay: Database, doorbell: Doorbell, note: Note, problem: Problem) -> None:
    """End the turn as failed, and ring for the next one of its conversation."""
    async with relay.transaction(note.tenant_id) as tx:
        turn = await workflow_input(tx, note.turn_id)
        _, following = await finish_broken(tx, turn.address, problem) if turn is not None else (False, None)
    _log.error("turn_not_startable", turn_id=note.turn_id, what_temporal_said=problem.message)
    if following is not None:
        await doorbell.deliver_soon(following)
