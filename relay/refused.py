"""Turns that Temporal will not start, however often it is asked: they end, and say why.

Without it such a turn would stay `accepted` for ever, its conversation busy, and not even a stop would end it.
"""

import structlog
from temporalio.service import RPCError, RPCStatusCode

from contracts.errors import Problem
from relay.deliver import Doorbell
from store.database import Database
from store.finish import finish_broken
from store.outbox import Note, Wake
from store.workflow_start import workflow_input

FOR_GOOD = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION})
"""What Temporal says of the request itself. Everything else (away, busy, a key that has run out, a namespace that is
not there yet) its operator can mend, and 202 means durable: those starts are tried for ever."""
STARTS = 3
"""The relay's tries, ten seconds apart, before a refusal is believed: a server that has just begun may not know its
search attributes for a moment."""
MESSAGE_CHARACTERS = 300

_log = structlog.get_logger(__name__)


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
