"""Workers and tenants: never shared, always replaced, fairly given."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import closing

import psutil
import pytest

from perdure.activities.sandbox import BlockResult, FaultKind, Limits, SandboxConfig, SandboxUnavailable, open_sandbox
from perdure.activities.sandbox import pool as module
from perdure.activities.sandbox.pool import MontySandbox
from perdure.activities.sandbox.selection import _interpreter
from perdure.activities.sandbox.worker import Worker, WorkerSettings
from tests.eventually import until
from tests.sandbox.conftest import LIMITS, interpreters

ONE = "def run():\n    return 1"
LOOP = "while True: pass"
_served: list[tuple[str, int]] = []
"""Code and process of every run."""


class NotedWorker(Worker):
    """Notes who ran where: the code names its tenant in its first line."""

    def run(self, code, inputs, limits):  # type: ignore[no-untyped-def]
        _served.append((code.splitlines()[0], self.pid))
        return super().run(code, inputs, limits)


@pytest.fixture
async def small_sandbox() -> AsyncIterator[MontySandbox]:
    _served.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Worker", NotedWorker)
        opened = await open_sandbox(SandboxConfig(ceiling=LIMITS, max_running=2, max_workers=5))
        yield opened
        await opened.close()


async def test_no_process_serves_two_tenants_and_their_number_is_limited(small_sandbox: MontySandbox) -> None:
    async def one_of(tenant: int) -> None:
        for number in range(8):
            code = f"# {tenant}\ndef run():\n    return {1 if number % 3 else '1 / 0'}"
            await small_sandbox.run(f"tenant {tenant}", code, {})

    await asyncio.gather(*(one_of(tenant) for tenant in range(9)))
    await until(lambda: len(interpreters()) <= 5, seconds=20)  # those that are over end in the background
    assert interpreters()
    owners: dict[int, set[str]] = {}
    for tenant, pid in _served:
        owners.setdefault(pid, set()).add(tenant)
    assert len(_served) == 72
    assert all(len(tenants) == 1 for tenants in owners.values())


async def test_a_tenant_keeps_its_worker_until_a_fault_but_no_state_of_a_run(small_sandbox: MontySandbox) -> None:
    assert (await small_sandbox.run("a", "left = 7\ndef run():\n    return left", {})).value == 7
    again = await small_sandbox.run("a", "def run():\n    return left", {})
    assert again.fault is not None and "left" in again.fault.message
    await until(lambda: not psutil.pid_exists(_served[0][1]), seconds=20)
    await small_sandbox.run("b", ONE, {})
    await small_sandbox.run("a", ONE, {})
    first, second, other, after_fault = [pid for _, pid in _served]
    assert first == second != other and after_fault != second


async def test_a_worker_killed_at_work_is_a_fault_of_its_block_and_not_reused(small_sandbox: MontySandbox) -> None:
    await small_sandbox.run("a", ONE, {})
    await until(lambda: bool(small_sandbox._pool._spares), seconds=20)
    killed = {_served.pop()[1], small_sandbox._pool._spares[0].pid}
    for pid in killed:
        psutil.Process(pid).kill()
    await until(lambda: not any(psutil.pid_exists(pid) for pid in killed))
    await asyncio.sleep(0.05)  # the pool is told in the next pass of the loop after its children were reaped
    assert [(await small_sandbox.run(tenant, ONE, {})).value for tenant in "ab"] == [1, 1]
    assert not killed & {pid for _, pid in _served}, "neither the tenant's own nor the spare one"
    _served.clear()
    running = asyncio.create_task(small_sandbox.run("a", LOOP, {}))
    await until(lambda: bool(_served), seconds=20)
    psutil.Process(_served[0][1]).kill()
    ran = await running
    assert ran.fault is not None and ran.fault.kind is FaultKind.CRASHED
    assert (await small_sandbox.run("a", ONE, {})).value == 1


async def test_an_interrupt_of_the_terminal_leaves_workers_at_work(small_sandbox: MontySandbox) -> None:
    await small_sandbox.run("a", ONE, {})
    running = asyncio.create_task(small_sandbox.run("a", LOOP, {}))
    await until(lambda: len(_served) == 2)
    for each in interpreters():
        each.send_signal(signal.SIGINT)
    ran = await running
    assert ran.fault is not None and ran.fault.kind is FaultKind.TIME


@pytest.mark.timed
async def test_a_cancelled_run_ends_its_worker_immediately_and_frees_its_place(small_sandbox: MontySandbox) -> None:
    for number in range(4):
        running = asyncio.create_task(small_sandbox.run("a", LOOP, {}))
        await until(lambda number=number: len(_served) > number)  # type: ignore[misc]
        started = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert time.monotonic() - started < 0.4
    assert (await small_sandbox.run("a", ONE, {})).value == 1
    await until(lambda: not psutil.pid_exists(_served[0][1]), seconds=20)


@pytest.mark.timed
async def test_a_tenant_with_many_blocks_does_not_delay_another(small_sandbox: MontySandbox) -> None:
    pile = [asyncio.create_task(small_sandbox.run("greedy", LOOP, {})) for _ in range(12)]
    await until(lambda: len(_served) == 2)
    started = time.monotonic()
    assert (await small_sandbox.run("modest", ONE, {})).value == 1
    assert time.monotonic() - started < LIMITS.wall_seconds + 1
    for each in pile:
        each.cancel()
    await asyncio.gather(*pile, return_exceptions=True)


def test_a_worker_is_replaced_before_it_reaches_its_cpu_limit() -> None:
    worker = Worker(WorkerSettings(_interpreter(), LIMITS, cpu_seconds=4))
    work = "def run():\n    return sum(range(2_000_000))"
    used = [0.0]
    with closing(worker):
        while worker.reusable:
            ran = worker.run(work, {}, Limits(wall_seconds=20))  # on a busy machine it waits for its processor time
            assert ran.fault is None and ran.cpu_seconds is not None
            used.append(ran.cpu_seconds)
    assert 1 < sum(used) < 1.5, "of four seconds two are kept for the last run, and one for a second one"


def test_a_worker_that_kept_memory_is_replaced() -> None:
    worker = Worker(WorkerSettings(_interpreter(), LIMITS, cpu_seconds=None))
    patient = Limits(wall_seconds=20)
    with closing(worker):
        assert worker.run("def run():\n    return len([1] * 100_000)", {}, patient).value == 100_000
        assert worker.reusable
        worker.run("kept = ['x' * 100 for _ in range(250_000)]\ndef run():\n    return len(kept)", {}, patient)
        assert not worker.reusable


async def test_the_usage_of_each_run_is_measured(small_sandbox: MontySandbox) -> None:
    ran = await small_sandbox.run("a", LOOP, {}, Limits(wall_seconds=0.3))
    assert 0.3 <= ran.wall_seconds < 5
    assert ran.cpu_seconds is not None
    assert 0.01 < ran.cpu_seconds < ran.wall_seconds + 0.1
    idle = await small_sandbox.run("a", ONE, {})
    assert idle.cpu_seconds is not None and idle.cpu_seconds < 0.05


@pytest.mark.timed
async def test_a_caller_can_lower_its_limits_and_not_raise_them(small_sandbox: MontySandbox) -> None:
    started = time.monotonic()
    await small_sandbox.run("a", LOOP, {}, Limits(wall_seconds=60))
    assert time.monotonic() - started < LIMITS.wall_seconds + 1
    text = "def run():\n    return len('x' * 2_000_000)"
    small = await small_sandbox.run("a", text, {}, Limits(memory_bytes=1_000_000))
    assert small.fault is not None and small.fault.kind is FaultKind.MEMORY
    assert (await small_sandbox.run("a", text, {})).value == 2_000_000


async def test_a_closed_sandbox_runs_nothing_and_leaves_no_process(small_sandbox: MontySandbox) -> None:
    running = [asyncio.create_task(small_sandbox.run("a", LOOP, {})) for _ in range(4)]
    await until(lambda: len(_served) == 2, seconds=20)
    before = interpreters()
    await small_sandbox.close()
    ended = await asyncio.gather(*running, return_exceptions=True)
    assert [type(each) for each in ended[2:]] == [SandboxUnavailable] * 2
    assert all(isinstance(each, BlockResult) and each.fault is not None for each in ended[:2])
    with pytest.raises(SandboxUnavailable):
        await small_sandbox.run("a", ONE, {})
    assert before and interpreters() == []
    await small_sandbox.close()
