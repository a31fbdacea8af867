"""The state of Temporal: the backlog, age and workers of each task queue, and whether the server can write."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import RateLimit, TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    UpdateTaskQueueConfigRequest,
)
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    SignalWorkflowInput,
    StartWorkflowInput,
    WorkflowHandle,
)
from temporalio.service import RPCError, RPCStatusCode

from perdure.contracts.turns import Kind, Routing

POLLED_WITHIN = timedelta(seconds=75)
"""A worker polls at least once a minute. The server lists a worker for five minutes after its end."""
_TYPES = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)
PROBE_QUEUE = "perdure-write-probe"
_REASON = "rewritten to check write access"
_FULL = ("disk is full", "table is full", "disk full", "no space left", "sqlite_full", "disk quota exceeded")
_LOCKED = ("is locked", "sqlite_busy", "sqlite_locked")
_READ_ONLY = ("readonly", "read-only", "read only")
_BROKEN = (
    *("shard status unknown", "disk i/o error", "input/output error", "image is malformed", "unable to open"),
    *("sqlite", "sql logic", "database"),
)
"""The first one is the answer to a start or signal while the server cannot write a shard (measured)."""
_HAS_ERRORS = "cannot write: its store has errors; see the log of Temporal"
_TOO_SLOW = "does not complete a write in time; if it runs, its disk may be full or its store locked"
_STORAGE_FAULTS = (
    (_FULL, "cannot write: the disk of its store is full; free some space there"),
    (_LOCKED, "cannot write: another program has locked its store; end that program"),
    (_READ_ONLY, "cannot write: its store is read-only; make it writable"),
    (_BROKEN, _HAS_ERRORS),
)
_OF_A_WORKFLOW = (RPCStatusCode.NOT_FOUND, RPCStatusCode.ALREADY_EXISTS)
"""The store works. Their texts contain ids, which can contain any word."""
_UNEXPLAINED = (RPCStatusCode.UNKNOWN, RPCStatusCode.INTERNAL)
"""`something went wrong, please retry` is such an answer of a server with a locked store (measured)."""
_LOST_CONNECTION = ("transport", "connect", "protocol error", "broken pipe", "stream")
"""Words of the client's own errors, which have the same status codes."""
_REFUSALS = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)
_REFUSAL_WORDS = ("unauthorized", "not authorized", "unsupported", "not supported", "not enabled", "not implemented")
SLOW_SECONDS = 1.0
"""A start or signal that is cancelled after this time counts as a write that the server does not complete."""


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
    """Returns whether the server answered but does not let this client write such a setting, as a hosted one may.

    INVALID_ARGUMENT counts only with such a text: the embedded server also sends it for each error of its store, such
    as `database is locked (5) (SQLITE_BUSY)` (measured). An unknown text counts as a fault, and so does `permission
    denied`, which can be about a file of the store.
    """
    if not isinstance(error, RPCError) or storage_fault(error):
        return False
    is_worded = any(word in error.message.lower() for word in _REFUSAL_WORDS)
    return error.status in _REFUSALS or (error.status is RPCStatusCode.INVALID_ARGUMENT and is_worded)


def storage_fault(error: BaseException) -> str:
    """Returns what is wrong with the server's store as text; empty if the error is about something else. The status
    code does not tell: a full store is UNAVAILABLE, and a locked one INVALID_ARGUMENT or UNKNOWN (measured)."""
    if isinstance(error, TimeoutError):
        return _TOO_SLOW
    if not isinstance(error, RPCError) or error.status in _OF_A_WORKFLOW:
        return ""
    message = error.message.lower()
    named = next((text for words, text in _STORAGE_FAULTS if any(word in message for word in words)), "")
    is_lost = error.status not in _UNEXPLAINED or any(word in message for word in _LOST_CONNECTION)
    return named or ("" if is_lost else _HAS_ERRORS)


def write_fault(error: BaseException) -> str:
    """Explains a Temporal error as a sentence. A server with a full store repeats a write for 14 s before it answers
    (measured)."""
    if fault := storage_fault(error):
        return fault
    if isinstance(error, RPCError) and error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
        return "overloaded"
    if isinstance(error, RPCError) and error.status is RPCStatusCode.INVALID_ARGUMENT:
        return "cannot write: it rejects the check of write access; see the log of Temporal"
    return "does not answer"


class _ObservedCalls(OutboundInterceptor):
    def __init__(self, following: OutboundInterceptor, observer: "WriteObserver") -> None:
        super().__init__(following)
        self._observer = observer

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        with self._reported():
            return await super().start_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        with self._reported():
            await super().signal_workflow(input)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """The client repeats an UNAVAILABLE for ten seconds, so that a caller with less time never sees the error."""
        began = monotonic()
        try:
            yield
        except RPCError as error:
            self._observer.on_error(error)
            raise
        except (asyncio.CancelledError, TimeoutError):
            if monotonic() - began >= SLOW_SECONDS:
                self._observer.on_error(TimeoutError())
            raise
        self._observer.on_success()


class WriteObserver(Interceptor):
    """Reports the writes that a client makes, its starts and signals: the errors, a TimeoutError for one that was
    cancelled after `SLOW_SECONDS`, and the successes."""

    def __init__(self, on_error: Callable[[BaseException], None], on_success: Callable[[], None]) -> None:
        self.on_error, self.on_success = on_error, on_success

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Returns the client's calls with a report of each end."""
        return _ObservedCalls(next, self)
