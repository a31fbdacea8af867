"""The state of Temporal: the backlog, age and workers of each task queue, and whether the server can write."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import RateLimit, TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    UpdateTaskQueueConfigRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.contracts.turns import Kind, Routing

POLLED_WITHIN = timedelta(seconds=75)
"""A worker polls at least once a minute. The server lists a worker for five minutes after its end."""
_TYPES = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)
PROBE_QUEUE = "perdure-write-probe"
_REASON = "rewritten to check write access"
_NOT_TESTED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.INVALID_ARGUMENT)
_FULL = ("full", "no space left")


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of a task queue at one moment."""

    name: str
    kinds: tuple[str, ...]
    """The kinds of work that this deployment sends there."""
    workers: int
    """The number of processes that polled the queue within `POLLED_WITHIN`."""
    backlog: int
    """The approximate number of tasks that no worker has started."""
    oldest_seconds: float


def queues_of(routing: Routing) -> dict[str, tuple[str, ...]]:
    """Returns the task queues by name, each with its kinds of work. The queue of paused turns is included."""
    kinds_by_queue: dict[str, tuple[str, ...]] = {}
    for kind in Kind:
        name = routing.queue(kind)
        kinds_by_queue[name] = (*kinds_by_queue.get(name, ()), kind.value)
    return kinds_by_queue | {routing.waits: ("paused turns",)}


async def describe_queues(client: Client, routing: Routing, timeout: timedelta) -> list[QueueState]:
    """Returns the current state of every task queue.

    Raises: RPCError if Temporal does not answer in time.
    """
    queues = queues_of(routing)
    lookups = [_describe_queue(client, name, kind, timeout) for name in queues for kind in _TYPES]
    answers = await asyncio.gather(*lookups)
    pairs = [answers[start : start + len(_TYPES)] for start in range(0, len(answers), len(_TYPES))]
    now = datetime.now(UTC)
    return [_queue_state(name, queues, pair, now) for name, pair in zip(queues, pairs, strict=True)]


async def _describe_queue(
    client: Client, name: str, kind: TaskQueueType.ValueType, timeout: timedelta
) -> DescribeTaskQueueResponse:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=name), task_queue_type=kind, report_stats=True
    )
    return await client.workflow_service.describe_task_queue(request, timeout=timeout)


def _queue_state(
    name: str, queues: Mapping[str, tuple[str, ...]], answers: Sequence[DescribeTaskQueueResponse], now: datetime
) -> QueueState:
    pollers = [poller for answer in answers for poller in answer.pollers]
    active_workers = {each.identity for each in pollers if now - each.last_access_time.ToDatetime(UTC) < POLLED_WITHIN}
    return QueueState(
        name,
        queues[name],
        workers=len(active_workers),
        backlog=sum(answer.stats.approximate_backlog_count for answer in answers),
        oldest_seconds=max(answer.stats.approximate_backlog_age.ToTimedelta().total_seconds() for answer in answers),
    )


async def write_once(client: Client) -> None:
    """Makes the server write once.

    The setting of an unused task queue is rewritten. It is one row per task queue, in the store that contains the
    histories. It does not grow.

    Raises: an error that `write_fault` and `not_tested` explain.
    """
    update = UpdateTaskQueueConfigRequest.RateLimitUpdate(rate_limit=RateLimit(requests_per_second=1.0), reason=_REASON)
    await client.workflow_service.update_task_queue_config(
        UpdateTaskQueueConfigRequest(
            namespace=client.namespace,
            identity=client.identity,
            task_queue=PROBE_QUEUE,
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            update_queue_rate_limit=update,
        )
    )


def not_tested(error: BaseException) -> bool:
    """Returns whether the server answered but does not let this client write such a setting, as a hosted one may."""
    return isinstance(error, RPCError) and error.status in _NOT_TESTED


def write_fault(error: BaseException) -> str:
    """Explains a Temporal error as a sentence."""
    if isinstance(error, RPCError) and any(word in error.message.lower() for word in _FULL):
        return "cannot write: the disk is full"
    if isinstance(error, RPCError) and error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
        return "overloaded"
    return "does not answer"
