"""Real processes that hang end themselves, and name the call that made them hang."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure.core.calls.hangs import Doing, Hang, OpenCall, hang_file, hanging_call
from perdure.local.programs import note_kill
from perdure.telemetry.hangs import OpenCalls, earlier_hang, watched
from perdure.telemetry.heartbeat import silent_processes
from tests.eventually import until
from tests.harness import gathered
from tests.repo.committed import ROOT

BOUND_SECONDS = 3
PROGRAM = """
import asyncio, re, sys, time
from pathlib import Path
from perdure.core.calls.hangs import Doing, OpenCall
from perdure.sdk.threads import run_in_thread
from perdure.telemetry.hangs import OpenCalls, watched
def evil(): re.match(r"(a+)+$", 64 * "a" + "b")
def blocks(): time.sleep(60)
async def asleep(): blocks()
async def matches(): await asyncio.sleep(0); evil()
async def waits(): await asyncio.sleep(60)
async def spawns(): await asyncio.create_task(asleep())
async def ends(): await asyncio.sleep(0.1)
async def fails():
    try: await asyncio.wait_for(asyncio.sleep(60), 0.1)
    except TimeoutError: await ends()
    raise KeyError
async def evil_thread(): await run_in_thread(lambda: (time.sleep(0.3), evil()), {}, "evil")
async def thread(): await run_in_thread(blocks, {}, "blocks")
async def short_thread(): await run_in_thread(lambda: time.sleep(BOUND + 6), {}, "short")
calls, ready = OpenCalls(Path("ready"), BOUND), Path("ready")
async def run(number, name):
    doing = Doing.IN_THREAD if "thread" in name else Doing.AWAITS
    with calls.marked(OpenCall("t", "turn", name, number, name, doing), globals()[name]()) as work:
        await asyncio.create_task(asyncio.wait_for(work, 90))
async def main(names):
    time.sleep(BOUND + 1)  # the start of a process
    async with watched(ready, BOUND, calls):
        await asyncio.sleep(0.2)
        print(await asyncio.gather(*(run(*each) for each in enumerate(names)), return_exceptions=True))
    time.sleep(BOUND + 1)  # after its drain
asyncio.run(main(sys.argv[1:]))
"""


async def left_by(folder: Path, *calls: str, paused_seconds: float = 0.0) -> tuple[int, Path]:
    folder.mkdir()  # noqa: ASYNC240
    program = PROGRAM.replace("BOUND", str(BOUND_SECONDS))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *calls, cwd=folder, env={"PYTHONPATH": str(ROOT)}
    )
    if paused_seconds:
        await until((folder / "ready").exists)
        await asyncio.sleep(0.7)  # its calls have begun
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(paused_seconds)
        process.send_signal(signal.SIGCONT)
    async with asyncio.timeout(60):
        return await process.wait(), folder / "ready"


CASES = {
    "asleep waits thread": "asleep",
    "matches waits thread": "matches",
    "waits evil_thread": "evil_thread",
    "thread evil_thread": None,  # which of two threads keeps the lock is not known
    "thread spawns": None,  # the loop is in a task that no call runs
}


async def test_a_process_that_hangs_ends_and_names_the_call_that_made_it_hang(tmp_path: Path) -> None:
    ended = await asyncio.gather(*(left_by(tmp_path / names, *names.split()) for names in (*CASES, "ends fails")))
    assert [code for code, _ in ended] == [1] * len(CASES) + [0]
    hangs = {names: earlier_hang(ready) for names, (_, ready) in zip(CASES, ended, strict=False)}
    found = {names: hang and hanging_call(hang) for names, hang in hangs.items()}
    assert {names: call and call.tool for names, call in found.items()} == CASES
    assert all(hang and len(hang.calls) == len(names.split()) for names, hang in hangs.items())
    assert earlier_hang(ended[-1][1]) is None, "neither a start nor a drain counts"
    late = [replace(hang, overdue_seconds=hang.overdue_seconds + 1.5) for hang in hangs.values() if hang]
    assert {hanging_call(hang) for hang in late} == {None}, "no call has suspended its process"


async def test_a_pause_longer_than_the_limit_counts_for_no_call(tmp_path: Path) -> None:
    pauses = (left_by(tmp_path / str(x), "short_thread", paused_seconds=BOUND_SECONDS + x) for x in (1.1, 2))
    for code, ready in await asyncio.gather(*pauses):
        hang = earlier_hang(ready)
        assert code == bool(hang), "either the timer or the next beat came first"
        assert hang is None or hanging_call(hang) is None


async def test_the_files_of_open_calls_are_no_heartbeats(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    async with watched(tmp_path / "worker-tools", 0):
        for name, age in (("gate", 100), ("worker-tools", 50), (hang_file(tmp_path / "worker-tools").name, 50)):
            os.utime(tmp_path / name, (time.time() - age,) * 2)
        assert silent_processes(gate, 6) == ["worker-tools"]
        await until(lambda: silent_processes(gate, 6) == [])


async def test_a_kill_by_the_supervisor_counts_for_the_call_that_the_loop_ran(tmp_path: Path) -> None:
    ready, read = tmp_path / "ready", list[Hang | None]()
    calls = OpenCalls(ready)

    async def runs() -> str:
        note_kill(ready, 20)
        read.append(earlier_hang(ready))
        return "ran"

    async def rests() -> None:
        try:
            await asyncio.wait_for(asyncio.sleep(60), 0.1)
        except TimeoutError:
            await asyncio.sleep(0)
            raise KeyError from None

    async def run(tool: str, work: Coroutine[Any, Any, Any]) -> Any:
        with calls.marked(OpenCall("t", "turn", tool, 1, tool, Doing.AWAITS), work) as marked:
            return await asyncio.wait_for(marked, 9)

    rested, ran = await gathered(run("rests", rests()), run("runs", runs()))
    assert isinstance(rested, KeyError) and ran == "ran"
    (hang,) = read
    assert hang and {call.tool: call.doing for call in hang.calls} == {"rests": Doing.AWAITS, "runs": Doing.STEPS}
    assert hanging_call(hang) == next(call for call in hang.calls if call.tool == "runs")
    left = earlier_hang(ready)
    assert left and left.calls == ()
    OpenCalls(ready)
    assert earlier_hang(ready) is None
    hang_file(ready).write_text("torn" * 99_999)
    assert earlier_hang(ready) is None
