"""Delivering one wake-up: starting a turn's workflow or ringing it. A wake-up delivered twice does no harm."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic

import structlog
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.errordetails.v1 import NotFoundFailure
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, GetWorkflowExecutionHistoryRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.contracts.activities import RING, TOOL_PREVIEW, TURN_RUN, PreviewAsk, search_values
from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import Bell, Kind
from perdure.store.database import Database
from perdure.store.delivery import outbox
from perdure.store.delivery.outbox import Note, Wake, workflow_input

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


# --- Whether Temporal says that a turn's workflow is not there: the one place that reads it out of an error.


def workflow_gone(error: RPCError) -> bool:
    """True where the namespace is known and has no such workflow that runs; false of any other trouble.

    NOT_FOUND alone says too little: a namespace that is misspelt or not there yet is answered with it too (measured:
    with NamespaceNotFoundFailure), and every open turn would be taken for lost.
    """
    if error.status is not RPCStatusCode.NOT_FOUND:
        return False
    return any(detail.Is(NotFoundFailure.DESCRIPTOR) for detail in error.grpc_status.details)


# --- Having a preview made: a short workflow of its own, whose failure is a sentence.

WITHIN = timedelta(seconds=12)
"""From being asked for to being there, a wait for a free worker included: then Temporal ends it."""
_MORE_SECONDS = 3.0


async def made(client: Client, ask: PreviewAsk) -> str:
    """Have it made, once for all who ask at the same time; why it was not, empty where it was."""
    try:
        async with asyncio.timeout(WITHIN.total_seconds() + _MORE_SECONDS):
            handle = await client.start_workflow(
                TOOL_PREVIEW,
                ask,
                id=f"preview:{ask.approval_id}",
                task_queue=ask.routing.queue(Kind.TURNS),
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                execution_timeout=WITHIN,
                rpc_timeout=timedelta(seconds=_MORE_SECONDS),
            )
            await handle.result()
    except (RPCError, TimeoutError, WorkflowFailureError) as error:
        _log.warning("preview_not_made", approval_id=ask.approval_id, error=type(error).__name__)
        return "Temporal is away" if isinstance(error, RPCError) else "no worker has made it in time"
    return ""


# --- Taking away what Temporal keeps of turns that have ended: the histories of their runs, with starts of messages.
# A turn is a chain of runs, each continued as the next. They are deleted from the first one on, so that whoever is cut
# off finds the rest from the last one again. Where Temporal is away they stay until its own retention is over.

AT_ONCE = 10
MOST_SECONDS = 60.0
"""For all of them: somebody waits for the answer."""


async def forget_histories(client: Client, turn_ids: Sequence[str]) -> tuple[int, int]:
    """Delete all runs of these turns; how many were deleted, and of how many turns any is left."""
    runs, left = 0, 0
    end = monotonic() + MOST_SECONDS
    for start in range(0, len(turn_ids), AT_ONCE):
        if monotonic() > end:
            left += len(turn_ids) - start
            break
        each = (_forget(client, turn_id) for turn_id in turn_ids[start : start + AT_ONCE])
        for deleted in await asyncio.gather(*each):
            runs += deleted or 0
            left += deleted is None
    return runs, left


async def _forget(client: Client, turn_id: str) -> int | None:
    """Delete the runs of one turn; how many there were, None where some may be left."""
    try:
        chain = await _chain(client, turn_workflow_id(turn_id))
        for run in reversed(chain):
            await _delete(client, run)
    except RPCError as error:
        _log.warning("histories_not_deleted", turn_id=turn_id, error=error.status.name)
        return None
    return len(chain)


async def _chain(client: Client, workflow_id: str) -> list[WorkflowExecution]:
    """The runs of a workflow, the last one first, as far as they are there.

    Raises: RPCError.
    """
    chain: list[WorkflowExecution] = []
    run = WorkflowExecution(workflow_id=workflow_id)
    while True:
        asked = GetWorkflowExecutionHistoryRequest(
            namespace=client.namespace, execution=run, maximum_page_size=1, skip_archival=True
        )
        try:
            answer = await client.workflow_service.get_workflow_execution_history(asked, retry=True)
        except RPCError as error:
            if not workflow_gone(error):
                raise
            return chain
        began = answer.history.events[0].workflow_execution_started_event_attributes
        chain.append(WorkflowExecution(workflow_id=workflow_id, run_id=run.run_id or began.original_execution_run_id))
        if not began.continued_execution_run_id:
            return chain
        run = WorkflowExecution(workflow_id=workflow_id, run_id=began.continued_execution_run_id)


async def _delete(client: Client, run: WorkflowExecution) -> None:
    """Raises: RPCError; not where it has gone meanwhile."""
    asked = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=run)
    try:
        await client.workflow_service.delete_workflow_execution(asked, retry=True)
    except RPCError as error:
        if not workflow_gone(error):
            raise
