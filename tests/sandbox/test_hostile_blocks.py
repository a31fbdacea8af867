"""Blocks that do their worst: each is stopped, sees nothing, changes nothing, and leaves the next block as it was."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest
from pydantic import JsonValue

from perdure.activities.sandbox import FaultKind, Ran, SandboxConfig, open_sandbox, pool
from perdure.activities.sandbox.pool import MontySandbox
from perdure.activities.sandbox.protocol import MIB
from tests.sandbox.conftest import LIMITS
from tests.sandbox.host import Host
from tests.sandbox.hostile import HOSTILE, Hostile
from tests.sandbox.watched import WatchedWorker

GOOD = """
def run(numbers: list[int], text: str) -> dict[str, object]:
    return {"sum": sum(numbers), "text": text[::-1]}
"""
LATE_SECONDS = 1.5
_numbers = count(1)


@pytest.fixture(scope="module")
async def sandbox(machine: Host) -> AsyncIterator[MontySandbox]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "Worker", WatchedWorker)
        opened = await open_sandbox(SandboxConfig(ceiling=LIMITS, at_once=2))
        assert opened.jailed
        yield opened
        await opened.close()


async def assert_good(sandbox: MontySandbox, tenant_id: str) -> float:
    """A block that does no harm gives its right answer; how long that took."""
    number = next(_numbers)
    inputs: dict[str, JsonValue] = {"numbers": [number, 2 * number], "text": f"<{number}"}
    started = time.monotonic()
    ran = await sandbox.run(tenant_id, GOOD, inputs)
    assert ran.fault is None
    assert ran.value == {"sum": 3 * number, "text": f"{number}"[::-1] + "<"}
    return time.monotonic() - started


async def within(seconds: float, work: Callable[[], Awaitable[float]]) -> None:
    """`work` takes no longer: of three tries what else runs on the machine may hold one up, and every one is judged in
    all but its time."""
    taken = [await work()]
    while taken[-1] > seconds and len(taken) < 3:
        taken.append(await work())
    assert taken[-1] <= seconds, taken


def assert_told_nothing(ran: Ran, machine: Host) -> None:
    """Neither the secret nor a word of the host's files is in the answer."""
    told = f"{ran.value}{ran.output}{ran.fault}"
    for taken in (machine.secret, "root:", "PATH=", "ELF"):
        assert taken not in told


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len(HOSTILE) >= 110
    assert len({each.name for each in HOSTILE}) == len(HOSTILE)
    assert {kind for each in HOSTILE for kind in each.ends} <= {kind.value for kind in FaultKind}


@pytest.mark.parametrize(
    "each",
    [pytest.param(each, marks=() if number % 3 == 0 else pytest.mark.soak) for number, each in enumerate(HOSTILE)],
    ids=[f"{each.attack}: {each.name}" for each in HOSTILE],
)
async def test_a_hostile_block_is_stopped_and_the_next_tenant_served(
    sandbox: MontySandbox, machine: Host, each: Hostile
) -> None:
    async def attack() -> float:
        started = time.monotonic()
        ran = await sandbox.run("hostile", each.code, {"given": machine.given})
        taken = time.monotonic() - started
        kind = None if ran.fault is None else ran.fault.kind.value
        assert each.ended_as_told(kind, ran.value), f"{ran.fault} {ran.value!r:.200}"
        assert WatchedWorker.peaks[each.code] <= LIMITS.memory_bytes + 32 * MIB
        assert len(ran.output.encode()) <= LIMITS.output_bytes
        assert_told_nothing(ran, machine)
        machine.assert_untouched()
        return taken

    await within(LIMITS.wall_seconds + LATE_SECONDS, attack)
    await within(LATE_SECONDS, lambda: assert_good(sandbox, "another"))
    await within(LATE_SECONDS, lambda: assert_good(sandbox, "hostile"))


async def test_good_blocks_are_right_while_hostile_ones_run(sandbox: MontySandbox, machine: Host) -> None:
    chosen = [each for attack in {each.attack for each in HOSTILE} for each in _of(attack)[::5]]

    async def attack(number: int, each: Hostile) -> None:
        ran = await sandbox.run(f"hostile {number % 5}", each.code, {"given": machine.given})
        assert_told_nothing(ran, machine)
        assert ran.fault is not None or ran.value == each.value

    async def work(tenant: int) -> None:
        for _ in range(20):
            await assert_good(sandbox, f"good {tenant}")

    await asyncio.gather(*(attack(*each) for each in enumerate(chosen)), *(work(tenant) for tenant in range(4)))
    machine.assert_untouched()


async def test_a_watched_worker_sees_memory_that_is_used(sandbox: MontySandbox) -> None:
    code = "def run():\n    return len('x' * 30_000_000)"
    assert (await sandbox.run("t", code, {})).value == 30_000_000
    assert 30_000_000 < WatchedWorker.peaks[code] < 96 * MIB


def _of(attack: str) -> list[Hostile]:
    return [each for each in HOSTILE if each.attack == attack]
