"""Failures of a run's workflow tasks: an exception of the workflow's code, a command that is too large, a worker that
dies at each attempt. Temporal repeats such a task for ever, with growing delays."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, PendingWorkflowTaskState, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionDescription

from perdure.contracts.turns import StuckTask
from perdure.core.text import clean, truncate

LAST_EVENTS = 50
"""The events that are read from the end of a history. A signal during the failures adds four."""
MAX_MESSAGE_CHARACTERS = 300
_CAUSE_PREFIX = "WORKFLOW_TASK_FAILED_CAUSE_"


@dataclass(frozen=True, slots=True)
class PendingTask:
    """The workflow task of a run."""

    attempt: int
    """The number of its attempt, from 1; 0 if no task is pending."""
    seconds_without_worker: float
    """The time for which the attempt has waited for a worker; 0 if a worker has it."""


def pending_task(run: WorkflowExecutionDescription, now: datetime) -> PendingTask:
    """Returns the pending workflow task of a run."""
    task = run.raw_description.pending_workflow_task
    if task.state != PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED:
        return PendingTask(task.attempt, 0.0)
    return PendingTask(task.attempt, (now - task.scheduled_time.ToDatetime(UTC)).total_seconds())


async def read_failures(client: Client, run: WorkflowExecutionDescription, attempt: int) -> StuckTask | None:
    """Returns the failures of a run's workflow tasks since the last one that completed, or None if there are none.

    Raises: RPCError.
    """
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=run.id, run_id=run.run_id),
        maximum_page_size=LAST_EVENTS,
    )
    answer = await client.workflow_service.get_workflow_execution_history_reverse(request)
    return failures_of(answer.history.events, attempt)


def failures_of(newest_first: Sequence[HistoryEvent], attempt: int) -> StuckTask | None:
    """Returns the failures after the last completed workflow task. The history has only the first failure, and the
    first one after each signal. `attempt` counts those that followed."""
    failed: list[HistoryEvent] = []
    for event in newest_first:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            break
        if _is_failure(event):
            failed.append(event)
    if not failed:
        return None
    failures = max(len(failed), len(failed) + attempt - 2)
    since = failed[-1].event_time.ToDatetime(UTC)
    return StuckTask(failures=failures, since=since, message=_message(failed[0]))


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
