"""Delivers one outbox note: starts a turn's workflow or signals it. A repeated delivery is harmless."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic
from typing import TypeVar

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

from perdure.contracts.activities import (
    TOOL_CHECK,
    TOOL_PREVIEW,
    TURN_RUN,
    WAKE,
    Checked,
    EditCheckRequest,
    PreviewRequest,
    search_values,
)
from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import Kind, WakeSignal
from perdure.store.database import Database
from perdure.store.delivery import outbox
from perdure.store.delivery.outbox import Note, Wake, workflow_input

TASK_TIMEOUT = timedelta(seconds=5)
"""The time after which Temporal gives up a workflow task whose worker does not respond. A turn ends inside such a task
(ADR 7). A worker that is killed there is noticed after this time instead of the server's ten seconds. Continued runs
inherit it."""
PREVIEW_TIMEOUT = timedelta(seconds=12)
"""The maximum time for a preview, including the wait for a free worker. Temporal then ends the workflow."""
CHECK_TIMEOUT = timedelta(seconds=10)
"""The maximum time for the check of an edit, including the wait for a free worker. A reviewer waits for it."""
_START_SECONDS = 3.0
PARALLEL_DELETIONS = 10
MAX_DELETION_SECONDS = 60.0
"""The maximum time for all deletions, because a caller waits for the response."""
T = TypeVar("T")
_log = structlog.get_logger(__name__)


class Notifier:
    """Starts and signals the workflows of turns."""

    def __init__(self, client: Client, db: Database) -> None:
        self.client = client
        self._db = db

    async def deliver(self, note: Note) -> None:
        """Delivers `note`.

        Raises: RPCError if Temporal is not reachable; the note then stays for the relay.
        """
        if note.kind is Wake.START:
            await self._start(note)
        else:
            wake = WakeSignal(kind="stop" if note.kind is Wake.STOP else "request", request_id=note.request_id)
            await self._signal(note, wake)

    async def deliver_soon(self, note: Note) -> bool:
        """Delivers `note` and removes it from the outbox. If that fails, the relay delivers it. An outage does not
        raise."""
        try:
            await self.deliver(note)
            await outbox.delete_delivered(self._db, note)
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
            return  # Another process has delivered the note first.

    async def _signal(self, note: Note, wake: WakeSignal) -> None:
        try:
            await self.client.get_workflow_handle(turn_workflow_id(note.turn_id)).signal(WAKE, wake)
        except RPCError as error:
            if not is_workflow_missing(error):
                raise
            # The turn has ended, or it has not started yet and reads its record at its start; there is nothing to wake.
            # If its start misses a stop after all, the reconciler signals again.


def _attributes(values: dict[str, str]) -> TypedSearchAttributes:
    return TypedSearchAttributes(
        [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values.items()]
    )


def is_workflow_missing(error: RPCError) -> bool:
    """Returns True if the namespace exists and has no such running workflow; False for other errors.

    NOT_FOUND alone is not enough: Temporal also sends it for a namespace that is misspelled or does not exist yet
    (measured: with NamespaceNotFoundFailure). Every open turn would then be treated as lost.

    This is the only place that recognizes a missing workflow by Temporal's error.
    """
    if error.status is not RPCStatusCode.NOT_FOUND:
        return False
    return any(detail.Is(NotFoundFailure.DESCRIPTOR) for detail in error.grpc_status.details)


async def run_preview(client: Client, request: PreviewRequest) -> str:
    """Creates a preview, once for all simultaneous callers. Returns why it failed, or an empty string. A short workflow
    creates it. Its failure is a sentence."""
    wait = PREVIEW_TIMEOUT + timedelta(seconds=_START_SECONDS)
    try:
        await _run_briefly(client, TOOL_PREVIEW, request, f"preview:{request.approval_id}", PREVIEW_TIMEOUT, wait, bool)
    except (RPCError, TimeoutError, WorkflowFailureError) as error:
        _log.warning("preview_not_made", approval_id=request.approval_id, error=type(error).__name__)
        return "Temporal is unavailable" if isinstance(error, RPCError) else "no worker created the preview in time"
    return ""


async def run_edit_check(client: Client, request: EditCheckRequest) -> Checked | None:
    """Checks an edit by its tool's own types. Returns None if that failed or took too long."""
    name = f"check:{request.edit.approval_id}:{request.edit.key}"
    try:
        return await _run_briefly(client, TOOL_CHECK, request, name, CHECK_TIMEOUT, CHECK_TIMEOUT, Checked)
    except (RPCError, TimeoutError, WorkflowFailureError) as error:
        _log.warning("edit_not_checked", approval_id=request.edit.approval_id, error=type(error).__name__)
        return None


async def _run_briefly(
    client: Client,
    workflow: str,
    request: PreviewRequest | EditCheckRequest,
    workflow_id: str,
    timeout: timedelta,
    wait: timedelta,
    result_type: type[T],
) -> T:
    """Returns the result of a short workflow, which runs once for all simultaneous callers. Temporal ends it after
    `timeout`.

    Raises: RPCError; TimeoutError after `wait`; WorkflowFailureError.
    """
    async with asyncio.timeout(wait.total_seconds()):
        handle = await client.start_workflow(
            workflow,
            request,
            id=workflow_id,
            task_queue=request.routing.queue(Kind.TURNS),
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            execution_timeout=timeout,
            rpc_timeout=timedelta(seconds=_START_SECONDS),
            result_type=result_type,
        )
        result: T = await handle.result()
        return result


async def delete_histories(client: Client, turn_ids: Sequence[str]) -> tuple[int, int]:
    """Deletes all runs of these turns. Returns the number of deleted runs, and of turns with remaining ones. A history
    contains the beginnings of messages. A turn is a chain of runs, each continued as the next. They are deleted from
    the first one on, so that an interrupted deletion can find the rest from the last one. If Temporal is unavailable,
    they remain until its retention period ends."""
    runs, remaining = 0, 0
    end = monotonic() + MAX_DELETION_SECONDS
    for start in range(0, len(turn_ids), PARALLEL_DELETIONS):
        if monotonic() > end:
            remaining += len(turn_ids) - start
            break
        deletions = (_delete_history(client, turn_id) for turn_id in turn_ids[start : start + PARALLEL_DELETIONS])
        for deleted in await asyncio.gather(*deletions):
            runs += deleted or 0
            remaining += deleted is None
    return runs, remaining


async def _delete_history(client: Client, turn_id: str) -> int | None:
    """Deletes the runs of one turn. Returns their number, or None if some may remain."""
    try:
        runs = await _list_runs(client, turn_workflow_id(turn_id))
        for run in reversed(runs):
            await _delete_run(client, run)
    except RPCError as error:
        _log.warning("histories_not_deleted", turn_id=turn_id, error=error.status.name)
        return None
    return len(runs)


async def _list_runs(client: Client, workflow_id: str) -> list[WorkflowExecution]:
    """Returns the existing runs of a workflow, the last one first.

    Raises: RPCError.
    """
    runs: list[WorkflowExecution] = []
    run = WorkflowExecution(workflow_id=workflow_id)
    while True:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=client.namespace, execution=run, maximum_page_size=1, skip_archival=True
        )
        try:
            answer = await client.workflow_service.get_workflow_execution_history(request, retry=True)
        except RPCError as error:
            if not is_workflow_missing(error):
                raise
            return runs
        started = answer.history.events[0].workflow_execution_started_event_attributes
        runs.append(WorkflowExecution(workflow_id=workflow_id, run_id=run.run_id or started.original_execution_run_id))
        if not started.continued_execution_run_id:
            return runs
        run = WorkflowExecution(workflow_id=workflow_id, run_id=started.continued_execution_run_id)


async def _delete_run(client: Client, run: WorkflowExecution) -> None:
    """Deletes one run; a missing run is ignored.

    Raises: RPCError.
    """
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=run)
    try:
        await client.workflow_service.delete_workflow_execution(request, retry=True)
    except RPCError as error:
        if not is_workflow_missing(error):
            raise
