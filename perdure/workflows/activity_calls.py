"""Calling an activity by its typed reference, on the queue that the turn's routing names."""

from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutError

from perdure.contracts.activities import HEARTBEAT_TIMEOUT, ActivityRef, RetryClass
from perdure.contracts.errors import Problem, UpstreamUnavailable
from perdure.contracts.turns import Routing
from perdure.core.calls.ledger import STOPPED
from perdure.core.calls.retries import NUMBERS

In = TypeVar("In")
Out = TypeVar("Out")
HERE = timedelta(seconds=3)
"""How long a call inside the workflow task may take; below the task's own time-out
(perdure/temporal/workflow_client.py, 5 s)."""


def _retry_policy(kind: RetryClass) -> RetryPolicy:
    numbers = NUMBERS[kind]
    return RetryPolicy(
        initial_interval=numbers.initial_interval,
        backoff_coefficient=numbers.backoff,
        maximum_interval=numbers.maximum_interval,
        maximum_attempts=numbers.maximum_attempts,
    )


class Calls:
    """The activity calls of one run; a stop cancels those under way."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._live: list[workflow.ActivityHandle[object]] = []

    async def make(
        self,
        ref: ActivityRef[In, Out],
        given: In,
        *,
        summary: str,
        timeout: timedelta | None = None,
        patience: timedelta | None = None,
        stoppable: bool = True,
    ) -> Out:
        """Run the activity behind `ref`, with all its attempts for `patience` at most; a stop cancels it unless it is
        what a stop itself needs.

        A brief one runs inside the workflow task first, where that task's worker serves its kind.

        Raises: ActivityError where its attempts are exhausted.
        """
        if ref.brief and self._routing.queue(ref.kind) == self._routing.turns:
            try:
                return await self._inside(ref, given, summary)
            except FailureError:  # a time-out comes as an ActivityError, what the activity raised bare (measured)
                pass
        handle = workflow.start_activity(
            ref.name,
            given,
            task_queue=self._routing.queue(ref.kind),
            result_type=ref.output,
            start_to_close_timeout=timeout or ref.start_to_close,
            schedule_to_close_timeout=patience or ref.schedule_to_close,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=_retry_policy(ref.retry),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary,
        )
        if not stoppable:
            unbroken: Out = await handle
            return unbroken
        return await self._until_stopped(handle)

    async def _until_stopped(self, handle: workflow.ActivityHandle[Out]) -> Out:
        """The activity's answer; a stop cancels it."""
        self._live.append(handle)
        try:
            return await handle
        finally:
            self._live.remove(handle)

    async def _inside(self, ref: ActivityRef[In, Out], given: In, summary: str) -> Out:
        """No task is scheduled, so it saves a workflow task, three requests to Temporal and five events. A worker
        killed in it costs a workflow task's time-out; the transaction may be repeated.
        """
        answer: Out = await workflow.execute_local_activity(
            ref.name,
            given,
            result_type=ref.output,
            start_to_close_timeout=HERE,
            schedule_to_close_timeout=HERE,
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=summary,
        )
        return answer

    def cancel(self) -> None:
        """Cancel every call under way; each answers with what it has."""
        for handle in list(self._live):
            handle.cancel()


def problem_of(error: ActivityError) -> Problem:
    """What a failed activity says, as data. Reads what the activity boundary wrote."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        detail = cause.details[0] if cause.details else None
        if isinstance(detail, dict) and {"code", "message"} <= detail.keys():
            return Problem.model_validate(detail)
        return Problem(code=cause.type or "activity_failed", message=cause.message[:300])
    if isinstance(cause, TimeoutError):
        return Problem(code="activity_timeout", message="The work did not report back in time.")
    return STOPPED


def is_outage(error: ActivityError) -> bool:
    """Whether a call failed because something was away. A no of whatever is there is none, and no bug of ours is."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        detail = cause.details[0] if cause.details else None
        return isinstance(detail, dict) and detail.get("family") == UpstreamUnavailable.__name__
    return isinstance(cause, TimeoutError)
