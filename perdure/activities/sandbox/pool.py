"""Worker processes and the tenants that use them.

Invariants:
- A worker serves one tenant, from its first run to its end.
- The number of processes is limited. If room is needed, the worker whose tenant has been idle longest is ended.
- One unused spare is ready, so that a new tenant, or a tenant whose worker was just ended, does not wait. Workers are
  ended and replaced in the background.
"""

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog
from pydantic import JsonValue

from perdure.activities.sandbox.inspection import code_flaws, schema_flaws
from perdure.activities.sandbox.jail import Jail
from perdure.activities.sandbox.protocol import BlockResult, Flaw, Limits, SandboxUnavailable
from perdure.activities.sandbox.worker import GRACE_SECONDS, Worker, WorkerSettings

_SPARES = 1
T = TypeVar("T")
_BACKGROUND_THREADS = 4
"""Threads for starting and ending workers, in addition to those that run blocks."""
_CHECK_SECONDS = 15.0
"""Time limit of both checks of a block; measured: 0.03 to 0.2 s."""
_log = structlog.get_logger(__name__)


class WorkerPool:
    """The worker processes of one event loop."""

    def __init__(
        self, start: Callable[[], Worker], threads: ThreadPoolExecutor, max_running: int, max_workers: int
    ) -> None:
        """Allows `max_workers` processes in total, of which `max_running` can run a block at the same time. `start`
        blocks a thread of `threads`."""
        self._start = start
        self._threads = threads
        self._max_workers = max(max_workers, max_running + _SPARES)
        self._queue = FairQueue(max_running)
        self._spares: list[Worker] = []
        self._idle: OrderedDict[Worker, str] = OrderedDict()
        """Maps each worker to its tenant, in the order of their last use."""
        self._busy: set[Worker] = set()
        self._admitted = 0
        """Number of callers with a slot: they have a worker or are about to get one."""
        self._caller_left = asyncio.Event()
        self._worker_count = 0
        """Number of workers that are starting or running and not yet given up."""
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._filling = False
        self._closed = False

    @asynccontextmanager
    async def worker_for(self, tenant_id: str | None) -> AsyncIterator[Worker]:
        """Yields a worker of this tenant for one run; for None, a worker without a tenant, which is used once.

        If the block ends with an exception or a cancellation, the worker is ended.

        Raises: SandboxUnavailable.
        """
        await self._queue.enter(tenant_id or "")
        self._admitted += 1
        try:
            self._refuse_if_closed()
            worker = await self._acquire(tenant_id)
            self._busy.add(worker)
            try:
                self._refuse_if_closed()
                yield worker
            except BaseException:
                worker.kill()
                raise
            finally:
                self._busy.remove(worker)
                self._release(tenant_id, worker)
        finally:
            self._admitted -= 1
            self._caller_left.set()
            self._queue.leave()

    async def fill(self) -> None:
        """Starts the spare worker.

        Raises: SandboxUnavailable.
        """
        if self._filling:
            return
        self._filling = True
        try:
            while len(self._spares) < _SPARES and self._worker_count < self._max_workers and not self._closed:
                self._spares.append(await self._start_worker())
        finally:
            self._filling = False

    async def close(self) -> None:
        """Ends all workers. Current runs end as crashed, and callers that wait for a slot are rejected."""
        self._closed = True
        for worker in self._busy:
            worker.kill()
        while self._admitted:
            self._caller_left.clear()
            await self._caller_left.wait()
        while self._background_tasks:
            await asyncio.wait(self._background_tasks)
        for worker in [*self._spares, *self._idle]:
            await self._end(worker)
        self._spares.clear()
        self._idle.clear()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")

    async def _acquire(self, tenant_id: str | None) -> Worker:
        for worker, owner in reversed(self._idle.items()):
            if owner == tenant_id:
                del self._idle[worker]
                if worker.reusable:
                    return worker
                self._discard(worker)
                break
        while self._spares:
            worker = self._spares.pop()
            if worker.reusable:
                self._refill_soon()
                return worker
            self._discard(worker)
        if self._worker_count >= self._max_workers and self._idle:
            self._discard(self._idle.popitem(last=False)[0])
        self._refill_soon()
        return await self._start_worker()

    def _release(self, tenant_id: str | None, worker: Worker) -> None:
        if tenant_id is None or self._closed or not worker.reusable:
            self._discard(worker)
            self._refill_soon()
            return
        self._idle[worker] = tenant_id
        if self._worker_count >= self._max_workers and not self._spares:
            self._discard(self._idle.popitem(last=False)[0])
            self._refill_soon()

    async def _start_worker(self) -> Worker:
        self._worker_count += 1
        starting = asyncio.get_running_loop().run_in_executor(self._threads, self._start)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._discard_unwanted)
            raise
        except BaseException:
            self._worker_count -= 1
            raise

    def _discard_unwanted(self, started: "asyncio.Future[Worker]") -> None:
        if started.cancelled() or started.exception() is not None:
            self._worker_count -= 1
        else:
            self._discard(started.result())

    def _discard(self, worker: Worker) -> None:
        self._worker_count -= 1
        self._run_in_background(self._end(worker))

    def _refill_soon(self) -> None:
        if not self._closed:
            self._run_in_background(self._refill())

    async def _refill(self) -> None:
        try:
            await self.fill()
        except SandboxUnavailable as error:
            _log.warning("sandbox.no_spare", error=str(error))

    async def _end(self, worker: Worker) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, worker.close)
        except RuntimeError:  # the threads have ended: the worker was starting when the sandbox was closed
            worker.close()

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)


class FairQueue:
    """Admits up to `slots` callers at a time. For one event loop. Waiting tenants take turns, so that one tenant's
    queue cannot delay the others."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Tenants in the order of their turns; no queue is empty."""

    async def enter(self, tenant_id: str) -> None:
        """Waits for a slot. Each slot needs one `leave`, unless this call was cancelled."""
        if self._free > 0:
            self._free -= 1
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Passes the slot to the first waiting caller of the next tenant."""
        while self._waiting:
            tenant_id, queue = self._waiting.popitem(last=False)
            slot = queue.popleft()
            if queue:
                self._waiting[tenant_id] = queue  # after all other tenants
            if not slot.done():
                slot.set_result(None)
                return
        self._free += 1


class MontySandbox:
    """Runs blocks in `jail`, or in plain processes without a jail. For one event loop. Monty is a separate Python
    interpreter, in worker processes."""

    def __init__(self, settings: WorkerSettings, jail: Jail | None, max_running: int | None, max_workers: int) -> None:
        """Runs at most `max_running` blocks at a time; None means one per processor."""
        self._settings = settings
        self._jail = jail
        slots = max_running or os.cpu_count() or 1
        self._threads = ThreadPoolExecutor(slots + _BACKGROUND_THREADS, thread_name_prefix="sandbox")
        self._pool = WorkerPool(lambda: Worker(settings), self._threads, slots, max_workers)

    @property
    def jailed(self) -> bool:
        """True if a jail, and not only the interpreter, separates a block from this machine."""
        return self._jail is not None

    async def start(self) -> None:
        """Starts a worker in advance.

        Raises: SandboxUnavailable.
        """
        await self._pool.fill()

    async def run(
        self, tenant_id: str, code: str, inputs: Mapping[str, JsonValue], limits: Limits | None = None
    ) -> BlockResult:
        """Runs a block as `Sandbox.run` describes. Limits above the driver's own are lowered to them."""
        bounds = (limits or self._settings.ceiling).within(self._settings.ceiling)
        async with self._pool.worker_for(tenant_id) as worker:
            return await self._run_with_limit(
                worker, bounds.wall_seconds + GRACE_SECONDS, worker.run, code, inputs, bounds
            )

    async def check(
        self, code: str, input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]
    ) -> tuple[Flaw, ...]:
        """Checks a block as `Sandbox.check` describes. Each check uses a new worker, which is ended afterwards."""
        flaws = schema_flaws(input_schema, output_schema)
        if flaws:
            return flaws
        async with self._pool.worker_for(None) as worker:
            args = (worker, code, input_schema, output_schema, self._settings.ceiling)
            return await self._run_with_limit(worker, _CHECK_SECONDS, code_flaws, *args)

    async def close(self) -> None:
        """Ends all workers and closes the launcher."""
        await self._pool.close()
        self._threads.shutdown(wait=False)
        if self._jail is not None:
            self._jail.close()

    async def _run_with_limit(self, worker: Worker, seconds: float, work: Callable[..., T], *args: object) -> T:
        """Runs `work` on a thread and returns its result. If it takes too long, its worker is killed, and the result is
        a fault."""
        result = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        done, _ = await asyncio.wait({result}, timeout=seconds)
        if not done:
            worker.kill()
        return await result
