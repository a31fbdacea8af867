"""Taking away what Temporal keeps of turns that have ended: the histories of their runs, with starts of messages.

A turn is a chain of runs, each continued as the next. They are deleted from the first one on, so that whoever is cut
off finds the rest from the last one again. Where Temporal is away they stay until its own retention is over.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic

import structlog
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, GetWorkflowExecutionHistoryRequest
from temporalio.client import Client
from temporalio.service import RPCError

from contracts.ids import turn_workflow_id
from relay.gone import workflow_gone

AT_ONCE = 10
MOST_SECONDS = 60.0
"""For all of them: somebody waits for the answer."""
_log = structlog.get_logger(__name__)


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
