"""One supervised child, with small real processes."""

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.local.child import Child, ChildSpec, restart_delay_seconds
from perdure.local.config import ROOT
from perdure.local.data_dir import StackError, open_home
from perdure.local.output import Console
from perdure.local.ports import beats
from perdure.local.processes import StartClock, alive
from perdure.local.supervisor import Supervisor


def spec(folder: Path, script: str, **changes: Any) -> ChildSpec:
    marker = folder / "ready"

    async def ready(_pid: int) -> bool:
        return marker.exists()

    given: dict[str, Any] = {
        "role": "thing",
        "command": ("/bin/sh", "-c", script),
        "environ": {"PATH": "/usr/bin:/bin"},
        "cwd": folder,
        "log": folder / "thing.log",
        "ready": ready,
        "stop_steps": ((signal.SIGTERM, 2.0),),
        "stop_rank": 0,
        "before_start": lambda: marker.unlink(missing_ok=True),
        **changes,
    }
    return ChildSpec(**given)


def child(
    folder: Path, script: str, out: io.StringIO | None = None, patience: StartClock | None = None, **changes: Any
) -> Child:
    console = Console(out or io.StringIO())
    return Child(spec(folder, script, **changes), console, lambda _child: None, patience=patience)


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """As many processes that want a whole processor each."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


async def until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def test_the_first_restart_is_quick_and_repeated_failures_wait_longer() -> None:
    delays = [restart_delay_seconds(failures) for failures in range(9)]
    assert delays == [0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


async def test_a_child_that_ends_again_and_again_for_an_outage_says_so_each_time(tmp_path: Path) -> None:
    """Beside another that does the same: both are away, and each says why."""
    out = io.StringIO()
    home = open_home(tmp_path / "home")
    supervisor = Supervisor(home, Console(out))
    script = 'touch ready; sleep 0.1; echo "$ROLE: ConnectionRefusedError: [Errno 111] port 5432"; exit 1'
    for role in ("worker-llm", "worker-turns"):
        folder = tmp_path / role
        folder.mkdir()
        environ = {"PATH": "/usr/bin:/bin", "ROLE": role}
        await supervisor.launch(spec(folder, script, role=role, log=folder / "log", environ=environ))
    try:
        await until(lambda: all(child.restarts >= 3 for child in supervisor.children.values()))
    finally:
        await supervisor.stop()
    for role in ("worker-llm", "worker-turns"):
        said = [line for line in out.getvalue().splitlines() if line.startswith(role)]
        reasons = [at for at, line in enumerate(said) if "ConnectionRefusedError: [Errno 111] port 5432" in line]
        assert len(reasons) >= 3 and all(at + 1 not in reasons for at in reasons), said


async def test_a_killed_child_that_was_healthy_is_started_again_at_once(tmp_path: Path) -> None:
    out = io.StringIO()
    kept = child(tmp_path, "touch ready; exec sleep 60", out)
    await kept.start()
    await asyncio.sleep(1.05)
    first = kept.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: kept.pid not in (None, first) and kept.ready)
    assert "SIGKILL" in out.getvalue() and "0.1 s" in out.getvalue()
    assert kept.restarts == 1
    await kept.stop()
    assert alive(first) is None


async def test_a_child_that_exits_before_it_is_ready_ends_the_start_with_its_last_words(tmp_path: Path) -> None:
    failing = child(tmp_path, "echo starting; echo 'FATAL: no room'; echo bye; exit 3", shows=re.compile("FATAL"))
    with pytest.raises(StackError, match="FATAL: no room") as caught:
        await failing.start()
    assert "\n" not in str(caught.value)
    await failing.stop()


async def test_a_child_that_makes_no_progress_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.local.child._LOOK_AT_START_SECONDS", 0.3)
    slow = child(tmp_path, "echo thinking; sleep 60 & wait", patience=StartClock(start_seconds=1))
    with pytest.raises(StackError, match="thinking"):
        await slow.start()
    await slow.stop()
    assert slow.pid is None


BURN = "import time, pathlib\nwhile time.process_time() < 2.5: pass\npathlib.Path('ready').touch()\ntime.sleep(60)"


async def test_a_slow_child_that_makes_progress_is_named_and_not_torn_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More processor time than its patience: here a start is looked at every half second."""
    monkeypatch.setattr("perdure.local.child._LOOK_AT_START_SECONDS", 0.5)
    monkeypatch.setattr("perdure.local.processes._MOST_STARTS", 40)
    monkeypatch.setattr("perdure.local.processes._FIRST_WORD_SECONDS", 0.5)
    out = io.StringIO()
    limit = StartClock(start_seconds=2)
    slow = child(tmp_path, "", out, limit, command=(sys.executable, "-S", "-c", BURN))
    with hogs(1):
        began = time.monotonic()
        await slow.start()
        took = time.monotonic() - began
    assert took > limit.start_seconds
    assert re.search(r"thing +\| ", out.getvalue()) and slow.restarts == 0
    await slow.stop()


async def test_a_child_that_waits_for_others_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.local.child._LOOK_AT_START_SECONDS", 0.3)
    gate = tmp_path / "gate"
    waits = child(
        tmp_path,
        "while ! test -e gate; do sleep 0.2; done; touch ready; exec sleep 60",
        patience=StartClock(start_seconds=1),
        held=lambda: not gate.exists(),
    )
    starting = asyncio.create_task(waits.start())
    await asyncio.sleep(2.5)
    assert not starting.done()
    gate.touch()
    await asyncio.wait_for(starting, 20)
    await waits.stop()


BEATS = """
import asyncio, signal, sys
from pathlib import Path
from perdure.telemetry.heartbeat import beating
def hang(*_):
    while True: pass
async def main():
    signal.signal(signal.SIGUSR1, hang)
    async with beating(Path("ready")):
        await asyncio.sleep(600)
asyncio.run(main())
"""


def beating_child(folder: Path, out: io.StringIO, hang_seconds: float) -> Child:
    return child(
        folder,
        "",
        out,
        StartClock(hang_seconds=hang_seconds),
        command=(sys.executable, "-c", BEATS),
        environ={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        lives=beats(folder / "ready"),
    )


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGUSR1], ids=["stopped", "busy loop"])
async def test_a_child_that_hangs_is_killed_and_comes_back(
    tmp_path: Path, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.local.child.LOOK_SECONDS", 0.2)
    out = io.StringIO()
    kept = beating_child(tmp_path, out, hang_seconds=3)
    await kept.start()
    await asyncio.sleep(1.2)
    first = kept.pid
    assert first is not None
    os.kill(first, how)
    began = time.monotonic()
    await until(lambda: kept.pid not in (None, first) and kept.ready)
    assert time.monotonic() - began < 30
    assert "3 s" in out.getvalue()
    assert kept.restarts == 1 and alive(first) is None
    await kept.stop()


@pytest.mark.soak
async def test_a_busy_machine_makes_nobody_hang(tmp_path: Path) -> None:
    out = io.StringIO()
    kept = beating_child(tmp_path, out, hang_seconds=6)
    await kept.start()
    with hogs(8):
        await asyncio.sleep(15)
    assert (kept.restarts, out.getvalue()) == (0, "")
    await kept.stop()


@pytest.mark.soak
def test_after_the_supervisor_itself_was_stopped_every_part_has_its_time_again(tmp_path: Path) -> None:
    """Both stopped for longer than a part may be silent, as by a laptop that sleeps; then both go on."""
    driver = tmp_path / "driver.py"
    driver.write_text(STOPPED.format(here=str(Path(__file__).parent), folder=str(tmp_path)))
    supervisor = subprocess.Popen(
        [sys.executable, str(driver)], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout is not None
    pid = int(supervisor.stdout.readline())
    os.kill(supervisor.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(12)
    os.kill(supervisor.pid, signal.SIGCONT)
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)
    said, _ = supervisor.communicate(timeout=60)
    assert said.splitlines() == [f"0 restarts, {pid} lives: ''"]


STOPPED = """
import asyncio, io, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_child import beating_child
async def main():
    out = io.StringIO()
    kept = beating_child(Path({folder!r}), out, hang_seconds=5)
    await kept.start()
    print(kept.pid, flush=True)
    await asyncio.sleep(20)
    print(f"{{kept.restarts}} restarts, {{kept.pid}} lives: {{out.getvalue()!r}}", flush=True)
    await kept.stop()
asyncio.run(main())
"""


async def test_a_program_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    missing = child(tmp_path, "", command=("/no/such/program",))
    with pytest.raises(StackError, match="/no/such/program"):
        await missing.start()
    await missing.stop()


async def test_a_child_may_finish_its_work_before_it_ends(tmp_path: Path) -> None:
    out = io.StringIO()
    draining = child(
        tmp_path, "trap 'sleep 0.2; echo drained; exit 0' TERM; touch ready; while :; do sleep 0.05; done", out
    )
    await draining.start()
    await draining.stop()
    assert "drained" in out.getvalue()


@pytest.mark.timed
async def test_a_child_that_ignores_its_stop_signal_is_killed_with_what_it_started(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 60 & echo $! > grandchild; touch ready; while :; do sleep 0.05; done"
    stubborn = child(tmp_path, script, stop_steps=((signal.SIGTERM, 0.3),))
    await stubborn.start()
    began = time.monotonic()
    await stubborn.stop()
    assert 0.3 <= time.monotonic() - began < 2.0
    grandchild = int((tmp_path / "grandchild").read_text())
    await until(lambda: alive(grandchild) is None)


@pytest.mark.timed
async def test_hurry_cuts_the_drain_short(tmp_path: Path) -> None:
    slow = child(
        tmp_path, "trap '' TERM; touch ready; while :; do sleep 0.05; done", stop_steps=((signal.SIGTERM, 30.0),)
    )
    await slow.start()
    hurry = asyncio.Event()
    began = time.monotonic()
    stopping = asyncio.create_task(slow.stop(hurry))
    await asyncio.sleep(0.1)
    hurry.set()
    await stopping
    assert time.monotonic() - began < 2.0


async def test_the_terminal_gets_only_telling_lines_and_the_log_gets_all(tmp_path: Path) -> None:
    out = io.StringIO()
    script = "echo 'WARNING early'; sleep 0.3; touch ready; sleep 0.3; echo chatter; echo 'WARNING late'; exec sleep 60"
    noisy = child(tmp_path, script, out, shows=re.compile("WARNING"))
    await noisy.start()
    await until(lambda: "WARNING late" in out.getvalue())
    await noisy.stop()
    assert "early" not in out.getvalue()
    assert "chatter" not in out.getvalue()
    assert (tmp_path / "thing.log").read_text().splitlines() == ["WARNING early", "chatter", "WARNING late"]


async def test_a_child_that_keeps_failing_after_it_was_healthy_once_is_started_ever_more_slowly(tmp_path: Path) -> None:
    out = io.StringIO()
    script = "test -e second && exit 1; touch second ready; exec sleep 60"
    broken = child(tmp_path, script, out)
    await broken.start()
    assert broken.pid is not None
    os.kill(broken.pid, signal.SIGKILL)
    await until(lambda: "1.0 s" in out.getvalue(), 8.0)
    waits = re.findall(r"([\d.]+) s\b", out.getvalue())
    assert waits == sorted(waits, key=float)
    await broken.stop()


@pytest.mark.timed
async def test_stopping_does_not_wait_for_the_pause_before_a_restart(tmp_path: Path) -> None:
    out = io.StringIO()
    broken = child(tmp_path, "test -e second && exit 1; touch second ready; exec sleep 60", out)
    await broken.start()
    assert broken.pid is not None
    os.kill(broken.pid, signal.SIGKILL)
    await until(lambda: "1.0 s" in out.getvalue(), 8.0)
    began = time.monotonic()
    await broken.stop()
    assert time.monotonic() - began < 0.5
