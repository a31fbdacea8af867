"""Delivering one wake-up: starting a turn's workflow or ringing it. A wake-up delivered twice does no harm."""

from datetime import timedelta

import structlog
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from contracts.ids import turn_workflow_id
from contracts.turns import Bell, Kind
from contracts.workflows import RING, TURN_RUN, search_values
from relay.gone import workflow_gone
from store import outbox
from store.database import Database
from store.outbox import Note, Wake
from store.workflow_start import workflow_input

TASK_TIMEOUT = timedelta(seconds=5)
"""After how long Temporal gives up a workflow task whose worker is silent. A turn ends inside such a task (ADR 7): a
worker killed there is noticed after this and not after the server's ten seconds. Continued runs inherit it."""
_log = structlog.get_logger(__name__)


class Doorbell:
    """Starts and rings turns at Temporal."""

    def __init__(self, client: Client, db: Database) -> None:
        self.client = client
        self._db = db

    async def deliver(self, note: Note) -> None:
        """Do what `note` asks.

        Raises: RPCError where Temporal is not reachable; the note then stays for the relay.
        """
        if note.kind is Wake.START:
            await self._start(note)
        else:
            bell = Bell(kind="stop" if note.kind is Wake.STOP else "request", request_id=note.request_id)
            await self._ring(note, bell)

    async def deliver_soon(self, note: Note) -> bool:
        """Deliver and forget `note`; where that fails, the relay will. Never raises for an outage."""
        try:
            await self.deliver(note)
            await outbox.delivered(self._db, note)
        except (RPCError, OSError, *self._db.outages) as error:
            _log.warning(
                "wake_up_left_to_relay", turn_id=note.turn_id, kind=note.kind.value, error=type(error).__name__
            )
            return False
        return True

    async def _start(self, note: Note) -> None:
        turn = note.begins
        if turn is None:
            async with self._db.transaction(note.tenant_id) as tx:
                turn = await workflow_input(tx, note.turn_id)
        if turn is None:
            return
        try:
            await self.client.start_workflow(
                TURN_RUN,
                turn,
                id=turn_workflow_id(note.turn_id),
                task_queue=turn.routing.queue(Kind.TURNS),
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                task_timeout=TASK_TIMEOUT,
                static_summary=f"{turn.agent_id} · {turn.topology}",
                search_attributes=_attributes(search_values(turn, "running")),
            )
        except WorkflowAlreadyStartedError:
            return  # somebody delivered it before us

    async def _ring(self, note: Note, bell: Bell) -> None:
        try:
            await self.client.get_workflow_handle(turn_workflow_id(note.turn_id)).signal(RING, bell)
        except RPCError as error:
            if not workflow_gone(error):
                raise
            # The turn is over, or not started yet and will look at its start: nothing to wake. A stop that its start
            # did not see after all is rung again by the reconciler.


def _attributes(values: dict[str, str]) -> TypedSearchAttributes:
    return TypedSearchAttributes(
        [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values.items()]
    )
