"""The relay: delivers wake signals that their writer did not deliver. Several relays can run at the same time, because
rows are claimed one by one."""

import asyncio

import structlog
from temporalio.service import RPCError, RPCStatusCode

from perdure.contracts.errors import Problem
from perdure.store.database import Database
from perdure.store.delivery import outbox
from perdure.store.delivery.outbox import Note, Wake, workflow_input
from perdure.store.turns.finish import finish_broken
from perdure.telemetry.metrics import LastingProblem
from perdure.temporal.workflow_client import Notifier

POLL_SECONDS = 0.2
OUTAGE_SECONDS = 1.0
PERMANENT_REJECTIONS = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION})
"""Status codes that reject the request itself. The operator can fix all other causes (an outage, overload, an expired
key, a missing namespace). A 202 means that the turn is stored durably, so those starts are retried forever."""
START_ATTEMPTS = 3
"""The relay's attempts, ten seconds apart, before a rejection counts as permanent. A server that has just started may
not know its search attributes yet."""
MAX_MESSAGE_CHARACTERS = 300
_log = structlog.get_logger(__name__)


async def deliver_due(relay: Database, notifier: Notifier) -> int:
    """Delivers the wake signals that are due and returns how many were delivered. A failed one is due again in ten
    seconds, unless Temporal rejects it permanently."""
    notes = await outbox.claim_due(relay)
    delivered = []
    for note in notes:
        try:
            await _deliver(relay, notifier, note)
            delivered.append(note.id)
        except Exception as error:  # A failing delivery must not block the others.
            _log.warning(
                "wake_up_not_delivered", turn_id=note.turn_id, attempt=note.attempts, error=type(error).__name__
            )
    if delivered:
        await outbox.delete_as_relay(relay, delivered)
    return len(delivered)


async def _deliver(relay: Database, notifier: Notifier, note: Note) -> None:
    try:
        await notifier.deliver(note)
    except RPCError as error:
        problem = permanent_rejection(note, error)
        if problem is None:
            raise
        await give_up(relay, notifier, note, problem)


async def run_relay(relay: Database, notifier: Notifier, stop: asyncio.Event) -> None:
    """Delivers until `stop`; waits during an outage of Postgres."""
    problems = LastingProblem()
    while not stop.is_set():
        delivered = 0
        try:
            delivered = await deliver_due(relay, notifier)
            problems.is_over("relay_waits_for_postgres")
        except (OSError, *relay.outages) as error:
            problems.is_on("relay_waits_for_postgres", error=error)
            await asyncio.sleep(OUTAGE_SECONDS)
        if not delivered:
            await asyncio.sleep(POLL_SECONDS)


def permanent_rejection(note: Note, error: RPCError) -> Problem | None:
    """Returns why this start can never succeed, or None if it can, or if `note` is not a start."""
    if note.kind is not Wake.START or note.attempts < START_ATTEMPTS or error.status not in PERMANENT_REJECTIONS:
        return None
    # A start contains only ids and queue names, so Temporal's message cannot quote a user's text.
    message = f"Temporal refused to start the turn ({error.status.name.lower()}): {error.message}"
    return Problem(code="start_refused", message=message[:MAX_MESSAGE_CHARACTERS])


async def give_up(relay: Database, notifier: Notifier, note: Note, problem: Problem) -> None:
    """Ends the turn as failed, and signals the next turn of its conversation. Temporal permanently refuses to start
    such a turn. Otherwise it would stay `accepted` forever with its conversation busy, and even a stop would not end
    it."""
    async with relay.transaction(note.tenant_id) as tx:
        turn = await workflow_input(tx, note.turn_id)
        _, next_start = await finish_broken(tx, turn.address, problem) if turn is not None else (False, None)
    _log.error("turn_not_startable", turn_id=note.turn_id, temporal_message=problem.message)
    if next_start is not None:
        await notifier.deliver_soon(next_start)
