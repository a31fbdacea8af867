"""One supervised child, with small real processes."""

import asyncio
import io
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from local.child import Child, ChildSpec, restart_delay_seconds
from local.console import Console
from local.errors import StackError
from local.roster import alive


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
        "ready_seconds": 5.0,
        **changes,
    }
    return ChildSpec(**given)


def child(folder: Path, script: str, out: io.StringIO | None = None, **changes: Any) -> Child:
    return Child(spec(folder, script, **changes), Console(out or io.StringIO()), lambda _child: None)


async def until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def test_the_first_restart_is_quick_and_repeated_failures_wait_longer() -> None:
    delays = [restart_delay_seconds(failures) for failures in range(9)]
    assert delays == [0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


async def test_a_killed_child_that_was_healthy_is_started_again_at_once(tmp_path: Path) -> None:
    out = io.StringIO()
    kept = child(tmp_path, "touch ready; exec sleep 60", out)
    await kept.start()
    await asyncio.sleep(1.05)
    first = kept.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: kept.pid not in (None, first) and kept.ready)
    assert "killed by SIGKILL; starting it again in 0.1 s" in out.getvalue()
    assert kept.restarts == 1
    await kept.stop()
    assert alive(first) is None


async def test_a_child_that_exits_before_it_is_ready_ends_the_start_with_its_last_words(tmp_path: Path) -> None:
    failing = child(tmp_path, "echo starting; echo 'FATAL: no room'; echo bye; exit 3", shows=re.compile("FATAL"))
    with pytest.raises(StackError, match=r"thing did not start \(exited with 3\): FATAL: no room \(log: ") as caught:
        await failing.start()
    assert "\n" not in str(caught.value)
    await failing.stop()


async def test_a_child_that_never_gets_ready_is_given_up_and_ended(tmp_path: Path) -> None:
    slow = child(tmp_path, "echo thinking; exec sleep 60", ready_seconds=0.3)
    with pytest.raises(StackError, match=r"was not ready within 0 s: thinking"):
        await slow.start()
    await slow.stop()
    assert slow.pid is None


async def test_a_program_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    missing = child(tmp_path, "", command=("/no/such/program",))
    with pytest.raises(StackError, match="/no/such/program: No such file"):
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
    await until(lambda: "in 1.0 s" in out.getvalue(), 8.0)
    waits = re.findall(r"again in ([\d.]+) s", out.getvalue())
    assert waits == sorted(waits, key=float)
    await broken.stop()


@pytest.mark.timed
async def test_stopping_does_not_wait_for_the_pause_before_a_restart(tmp_path: Path) -> None:
    out = io.StringIO()
    broken = child(tmp_path, "test -e second && exit 1; touch second ready; exec sleep 60", out)
    await broken.start()
    assert broken.pid is not None
    os.kill(broken.pid, signal.SIGKILL)
    await until(lambda: "in 1.0 s" in out.getvalue(), 8.0)
    began = time.monotonic()
    await broken.stop()
    assert time.monotonic() - began < 0.5
