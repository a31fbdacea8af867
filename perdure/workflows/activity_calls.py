"""Calls of activities by typed reference, on the task queue of the turn's routing."""

from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutError

from perdure.contracts.activities import HEARTBEAT_TIMEOUT, ActivityRef
from perdure.contracts.errors import Problem, UpstreamUnavailable
from perdure.contracts.turns import Routing
from perdure.core.calls.ledger import STOPPED
from perdure.core.calls.retries import NO_CAP, NUMBERS

In = TypeVar("In")
Out = TypeVar("Out")
INLINE_TIMEOUT = timedelta(seconds=3)
"""The maximum time of a call inside the workflow task. It is below the task's own timeout
(perdure/temporal/workflow_client.py, 5 s)."""


def _retry_policy(ref: ActivityRef[Any, Any]) -> RetryPolicy:
    numbers = NUMBERS[ref.retry]
    return RetryPolicy(
        initial_interval=numbers.initial_interval,
        backoff_coefficient=numbers.backoff,
        maximum_interval=numbers.maximum_interval,
        maximum_attempts=NO_CAP if ref.limits_attempts else numbers.maximum_attempts,
    )


class Calls:
    """The activity calls of one run. A stop cancels the running ones."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._running: list[workflow.ActivityHandle[object]] = []

    async def make(
        self,
        ref: ActivityRef[In, Out],
        activity_input: In,
        *,
        summary: str,
        timeout: timedelta | None = None,
        patience: timedelta | None = None,
        stoppable: bool = True,
    ) -> Out:
        """Runs the activity of `ref`, with all attempts for `patience` at most.

        A stop cancels the activity, unless the stop itself needs it. A brief activity first runs inside the workflow
        task, if that task's worker serves its kind.

        Raises: ActivityError if its attempts are exhausted.
        """
        if ref.brief and self._routing.queue(ref.kind) == self._routing.turns:
            try:
                return await self._call_inline(ref, activity_input, summary)
            # A timeout arrives as an ActivityError, an exception of the activity unwrapped (measured).
            except FailureError:
                pass
        handle = workflow.start_activity(
            ref.name,
            activity_input,
            task_queue=self._routing.queue(ref.kind),
            result_type=ref.output,
            start_to_close_timeout=timeout or ref.start_to_close,
            schedule_to_close_timeout=patience or ref.schedule_to_close,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=_retry_policy(ref),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary,
        )
        if not stoppable:
            answer: Out = await handle
            return answer
        return await self._until_stopped(handle)

    async def _until_stopped(self, handle: workflow.ActivityHandle[Out]) -> Out:
        """Returns the activity's answer. A stop cancels it."""
        self._running.append(handle)
        try:
            return await handle
        finally:
            self._running.remove(handle)

    async def _call_inline(self, ref: ActivityRef[In, Out], activity_input: In, summary: str) -> Out:
        """Runs the activity inside the workflow task.

        No task is scheduled, which saves a workflow task, three requests to Temporal and five events. If a worker is
        killed in it, the turn waits for the timeout of a workflow task. The transaction may be repeated.
        """
        answer: Out = await workflow.execute_local_activity(
            ref.name,
            activity_input,
            result_type=ref.output,
            start_to_close_timeout=INLINE_TIMEOUT,
            schedule_to_close_timeout=INLINE_TIMEOUT,
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=summary,
        )
        return answer

    def cancel(self) -> None:
        """Cancels every running call. Each then answers with what it has."""
        for handle in list(self._running):
            handle.cancel()


def problem_of(error: ActivityError) -> Problem:
    """Returns the problem that the activity boundary wrote into the error of a failed activity."""
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
    """Returns whether a call failed because a service was unavailable. Rejections and internal errors do not count."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        detail = cause.details[0] if cause.details else None
        return isinstance(detail, dict) and detail.get("family") == UpstreamUnavailable.__name__
    return isinstance(cause, TimeoutError)
