"""What a crashed supervisor left is found again; when a start has failed and when a part hangs."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from perdure.local import processes
from perdure.local.data_dir import StackError
from perdure.telemetry.heartbeat import silent_processes
from tests.eventually import wait_until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def children_file(tmp_path: Path) -> Path:
    return tmp_path / "children.json"


def age(children_file: Path, *keys: str) -> None:
    """What it names so began an hour before: its pid is a stranger's now."""
    records = json.loads(children_file.read_text())
    found = records[0]
    for key in keys:
        found = found[key]
    found["started_at"] -= 3600
    children_file.write_text(json.dumps(records))


def test_a_leftover_process_is_ended_and_named(children_file: Path, sleeper: subprocess.Popen[bytes]) -> None:
    processes.ProcessRegistry(children_file).add("worker-llm", sleeper.pid, signal.SIGKILL)
    assert processes.end_leftovers(children_file) == ["worker-llm"]
    assert sleeper.wait(timeout=20) == -signal.SIGKILL
    assert not children_file.exists()


@pytest.mark.timed
def test_the_children_of_an_orphaned_process_are_ended_too(children_file: Path) -> None:
    script = "sleep 60 & echo $!; wait"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        processes.ProcessRegistry(children_file).add("api", parent.pid, signal.SIGTERM)
        began = time.monotonic()
        processes.end_leftovers(children_file)
        assert time.monotonic() - began < 2
    wait_until(lambda: processes.alive(grandchild) is None, 20, grandchild)


def test_a_reused_pid_and_an_ended_child_are_not_touched(children_file: Path, sleeper: subprocess.Popen[bytes]) -> None:
    registry = processes.ProcessRegistry(children_file)
    registry.add("api", sleeper.pid, signal.SIGKILL)
    age(children_file)
    assert processes.end_leftovers(children_file) == []
    registry.add("api", sleeper.pid, signal.SIGKILL)
    registry.remove("api")
    assert processes.end_leftovers(children_file) == []
    assert sleeper.poll() is None


def test_running_children_and_supervisor_are_only_listed(children_file: Path, sleeper: subprocess.Popen[bytes]) -> None:
    assert processes.running_children(children_file) == processes.RunningChildren(None, {})
    processes.ProcessRegistry(children_file).add("api", sleeper.pid, signal.SIGKILL)
    assert processes.running_children(children_file) == processes.RunningChildren(os.getpid(), {"api": sleeper.pid})
    age(children_file, "supervisor")
    assert processes.running_children(children_file) == processes.RunningChildren(None, {"api": sleeper.pid})
    assert sleeper.poll() is None
    age(children_file)
    assert processes.running_children(children_file) == processes.RunningChildren(None, {})


@pytest.mark.parametrize("content", ["", "{", "{}", "[3]", '[{"pid": 1}]'])
def test_a_damaged_list_is_empty(children_file: Path, content: str) -> None:
    children_file.write_text(content)
    assert processes.end_leftovers(children_file) == []


def test_a_zombie_does_not_count_as_running() -> None:
    with subprocess.Popen(["true"]) as zombie:
        wait_until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_ZOMBIE, 20, zombie)
        assert processes.alive(zombie.pid) is None


Record = tuple[float, float, int]
"""When, the processor seconds and the lines so far."""
NO_PROGRESS = "was not ready after {} s and made no progress for 10 s"
STARTS: dict[str, tuple[list[Record], str]] = {
    "not long enough": ([(5, 0.0, 0), (9, 0.0, 0)], ""),
    "nothing at all": ([(5, 0.0, 0), (10, 0.0, 0)], NO_PROGRESS.format(10)),
    "worked once": ([(5, 0.06, 0), (14, 0.06, 0)], ""),
    "worked once, too long ago": ([(5, 0.06, 0), (15, 0.06, 0)], NO_PROGRESS.format(15)),
    "what a loop that waits uses": ([(5, 0.04, 0), (10, 0.08, 0)], NO_PROGRESS.format(10)),
    "a line": ([(5, 0.0, 1), (14, 0.0, 1)], ""),
    "another process": ([(5, 3.0, 0), (10, 1.0, 0), (19, 1.0, 0)], ""),
    "always at work": ([(at, float(at), at) for at in range(1, 40)], ""),
    "at work for ever": (
        [(at, float(at), at) for at in range(1, 41)], "was still not ready after 40 s, 4 times PERDURE_START_SECONDS"),
}  # fmt: skip


@pytest.mark.parametrize(("records", "failure"), STARTS.values(), ids=STARTS)
def test_a_start_fails_when_it_makes_no_progress_or_never_ends(records: list[Record], failure: str) -> None:
    start = processes.StartProgress(10, 0.0)
    for now, cpu, lines in records:
        start.record(now, cpu, lines)
    assert start.failure(records[-1][0]) == failure


def test_time_spent_waiting_for_other_parts_does_not_count() -> None:
    start = processes.StartProgress(10, 0.0)
    for now in range(1, 100):
        start.exclude_wait(float(now))
        assert start.failure(now) == "" and start.report(now) == ""
    start.record(109.0, 0.0, 0)
    assert start.failure(109.0) != ""


def test_a_slow_start_is_reported_from_time_to_time() -> None:
    start, reports = processes.StartProgress(180, 0.0), []
    for now in range(100):
        start.record(float(now), 0.0, 0)
        if report := start.report(float(now)):
            reports.append((now, re.findall(r"\d+", report)))
    assert reports == [(20, ["20"]), (50, ["50", "50"]), (80, ["80", "80"])]


@pytest.mark.parametrize(("limit", "records", "hangs"), [
    pytest.param(20, [(2, True), (4, False), (20, False)], False, id="silent"),
    pytest.param(20, [(at, at < 4) for at in range(0, 22, 2)], False, id="almost"),
    pytest.param(20, [(at, at < 4) for at in range(0, 24, 2)], True, id="too long"),
    pytest.param(20, [(at, at == 10) for at in range(0, 30, 2)], False, id="once"),
    pytest.param(20, [(2, True), (4, False), (100, False), (102, False)], False, id="the supervisor did not run"),
    pytest.param(20, [(2, True), *((at, False) for at in range(100, 122, 2))], True, id="silent ever since"),
    pytest.param(0, [(at, False) for at in range(1000)], False, id="the setting is zero"),
])  # fmt: skip
def test_a_part_hangs_without_an_answer_in_time(limit: float, records: list[tuple[float, bool]], hangs: bool) -> None:
    detector = processes.HangDetector(limit, 0.0)
    assert [detector.is_hung(responded, now) for now, responded in records][-1] is hangs


def test_heartbeats_of_this_start_tell_which_programs_hang(tmp_path: Path) -> None:
    gate, now = tmp_path / "gate", time.time()
    assert silent_processes(gate, 6) == [], "before the start"
    for name, age in (
        ("gate", 100),
        ("api", 0.5),
        ("llm", 7),
        ("relay", 5),
        ("turns", 99),
        ("of an earlier start", 200),
    ):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - age, now - age))
    assert silent_processes(gate, 6) == ["llm", "turns"]


def test_start_and_hang_times_are_read_in_seconds() -> None:
    assert processes.TimeLimits.from_environ({}) == processes.TimeLimits(180, 20)
    given = {"PERDURE_START_SECONDS": "600", "PERDURE_HANG_SECONDS": "0"}
    assert processes.TimeLimits.from_environ(given) == processes.TimeLimits(600, 0)
    for name, value in (("PERDURE_START_SECONDS", "0"), ("PERDURE_HANG_SECONDS", "soon")):
        with pytest.raises(StackError, match=f"{name}.*'{value}'"):
            processes.TimeLimits.from_environ({name: value})
