"""Failures of a run's workflow tasks: an exception of the workflow's code, a command that is too large, a worker that
dies at each attempt. Temporal repeats such a task for ever, with growing delays."""

from collections.abc import Sequence
from datetime import UTC

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionDescription

from perdure.contracts.turns import StuckTask
from perdure.core.text import clean, truncate

PAGE_EVENTS = 50
"""The events that are read at a time from the end of a history. A signal during the failures adds four."""
MAX_MESSAGE_CHARACTERS = 300
_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
_CAUSE_PREFIX = "WORKFLOW_TASK_FAILED_CAUSE_"


def attempt_of(run: WorkflowExecutionDescription) -> int:
    """Returns the number of the attempt of a run's workflow task, from 1; 0 if no task is pending."""
    return run.raw_description.pending_workflow_task.attempt


async def read_failures(client: Client, run: WorkflowExecutionDescription) -> StuckTask | None:
    """Returns the failures of a run's workflow tasks since the last one that completed, or None if there are none.

    Raises: RPCError.
    """
    events: list[HistoryEvent] = []
    page = b""
    while True:
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=run.id, run_id=run.run_id),
            maximum_page_size=PAGE_EVENTS,
            next_page_token=page,
        )
        answer = await client.workflow_service.get_workflow_execution_history_reverse(request)
        events += answer.history.events
        page = answer.next_page_token
        if not page or any(event.event_type == _COMPLETED for event in answer.history.events):
            return failures_of(events, run.run_id or "", attempt_of(run))


def failures_of(newest_first: Sequence[HistoryEvent], run_id: str, attempt: int) -> StuckTask | None:
    """Returns the failures after the last completed workflow task. The history has only the first failure, and the
    first one after each signal. `attempt` counts those that followed."""
    completed_event = 0
    failed: list[HistoryEvent] = []
    for event in newest_first:
        if event.event_type == _COMPLETED:
            completed_event = event.event_id
            break
        if _is_failure(event):
            failed.append(event)
    if not failed:
        return None
    return StuckTask(
        failures=max(len(failed), len(failed) + attempt - 2),
        since=failed[-1].event_time.ToDatetime(UTC),
        failed_event=failed[0].event_id,
        message=_message(failed[0]),
        run_id=run_id,
        completed_event=completed_event,
    )


def _is_failure(event: HistoryEvent) -> bool:
    """Returns whether a worker failed a task, or did not complete it in time."""
    timed_out = event.workflow_task_timed_out_event_attributes
    return event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED or (
        event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT
        and timed_out.timeout_type == TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE
    )


def _message(event: HistoryEvent) -> str:
    """Returns the type of the exception and the first line of its message, without its data."""
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
        return "the worker did not complete the workflow task in time"
    failed = event.workflow_task_failed_event_attributes
    lines = failed.failure.message.strip().splitlines()
    if not lines:
        return WorkflowTaskFailedCause.Name(failed.cause).removeprefix(_CAUSE_PREFIX).lower().replace("_", " ")
    kind = failed.failure.application_failure_info.type
    return clean(truncate(f"{kind}: {lines[0]}" if kind else lines[0], MAX_MESSAGE_CHARACTERS))
