"""What a crashed supervisor left is found again, and nothing else is touched."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from perdure.local.processes import Found, ProcessRegistry, alive, look, sweep


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_left_over_process_is_ended_and_named(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    ProcessRegistry(tmp_path / "children.json").add("worker-llm", sleeper.pid, signal.SIGKILL)
    assert sweep(tmp_path / "children.json") == ["worker-llm"]
    assert sleeper.wait(timeout=20) == -signal.SIGKILL
    assert not (tmp_path / "children.json").exists()


@pytest.mark.timed
def test_what_a_left_over_process_started_is_ended_too(tmp_path: Path) -> None:
    script = "sleep 60 & echo $!; wait"
    parent = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    ProcessRegistry(tmp_path / "children.json").add("api", parent.pid, signal.SIGTERM)
    began = time.monotonic()
    sweep(tmp_path / "children.json")
    assert time.monotonic() - began < 2
    parent.wait(timeout=20)
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert alive(grandchild) is None


def test_a_stranger_with_the_same_pid_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    path = tmp_path / "children.json"
    ProcessRegistry(path).add("api", sleeper.pid, signal.SIGKILL)
    records = json.loads(path.read_text())
    records[0]["started_at"] -= 3600
    path.write_text(json.dumps(records))
    assert sweep(path) == []
    assert sleeper.poll() is None


def test_a_look_names_who_lives_and_who_keeps_them_and_ends_nobody(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "children.json"
    roster = ProcessRegistry(path)
    roster.add("api", sleeper.pid, signal.SIGKILL)
    assert look(path) == Found(os.getpid(), {"api": sleeper.pid})
    records = json.loads(path.read_text())
    records[0]["supervisor"]["started_at"] -= 3600  # that supervisor is gone, and its pid is a stranger's now
    path.write_text(json.dumps(records))
    assert look(path) == Found(None, {"api": sleeper.pid})
    assert sleeper.poll() is None
    records[0]["started_at"] -= 3600
    path.write_text(json.dumps(records))
    assert look(path) == Found(None, {})
    assert look(tmp_path / "missing.json") == Found(None, {})


def test_a_child_that_ended_is_forgotten(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    path = tmp_path / "children.json"
    roster = ProcessRegistry(path)
    roster.add("api", sleeper.pid, signal.SIGKILL)
    roster.remove("api")
    assert sweep(path) == []
    assert sleeper.poll() is None


@pytest.mark.parametrize("content", ["", "{", "{}", "[3]", '[{"pid": 1}]'])
def test_a_damaged_list_is_no_list(tmp_path: Path, content: str) -> None:
    (tmp_path / "children.json").write_text(content)
    assert sweep(tmp_path / "children.json") == []


def test_a_zombie_does_not_run() -> None:
    zombie = subprocess.Popen(["true"])
    deadline = time.monotonic() + 20
    while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert alive(zombie.pid) is None
    zombie.wait()
