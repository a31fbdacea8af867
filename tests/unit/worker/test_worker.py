"""The name of a worker's build, the watchdog of its event loop, and what its log names."""

import asyncio
import os
import sys
import time
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
import structlog
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ExecuteActivityInput

from perdure import tool
from perdure.worker import __main__ as worker
from perdure.worker import queues
from perdure.worker.loop_watchdog import LoopWatchdog
from perdure.worker.telemetry import ActivityMetrics
from tests.eventually import until
from tests.unit.apps.tool_contexts import context


@pytest.fixture
def package_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for package in (*queues.REPLAY_PACKAGES, "api"):
        (tmp_path / package / "inner").mkdir(parents=True)
        (tmp_path / package / "inner" / "rule.py").write_text("LIMIT = 1\n")
    monkeypatch.setattr(queues, "ROOT", tmp_path)
    return tmp_path


def test_the_build_id_of_the_same_code_is_the_same_beside_other_files(package_root: Path) -> None:
    before = queues.build_id.__wrapped__()
    (package_root / "api" / "inner" / "rule.py").write_text("LIMIT = 2\n")
    (package_root / "graph" / "notes.txt").write_text("not code")
    assert queues.build_id.__wrapped__() == before
    assert before.startswith("perdure-") and len(before) == len("perdure-") + queues.DIGEST_DIGITS


@pytest.mark.parametrize("package", queues.REPLAY_PACKAGES)
def test_a_change_or_move_of_deciding_code_changes_the_build_id(package_root: Path, package: str) -> None:
    names = {queues.build_id.__wrapped__()}
    (package_root / package / "inner" / "rule.py").write_text("LIMIT = 2\n")
    names.add(queues.build_id.__wrapped__())
    (package_root / package / "inner" / "rule.py").rename(package_root / package / "inner" / "other.py")
    names.add(queues.build_id.__wrapped__())
    assert len(names) == 3


@pytest.mark.parametrize("package", queues.REPLAY_PACKAGES)
def test_a_package_without_code_has_no_build_id(package_root: Path, package: str) -> None:
    (package_root / package / "inner" / "rule.py").unlink()
    with pytest.raises(RuntimeError, match=package):
        queues.build_id.__wrapped__()


@pytest.mark.parametrize("library", ["langchain-core", "langgraph", "temporalio"])
def test_a_library_version_changes_the_id(package_root: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    before = queues.build_id.__wrapped__()
    monkeypatch.setattr(
        "perdure.worker.queues.version", lambda name: "0.0.0" if name == library else metadata.version(name)
    )
    assert queues.build_id.__wrapped__() != before


@tool(effect="read")
async def sleepy(seconds: float) -> None:
    """Block the loop, instead of awaiting."""
    time.sleep(seconds)  # noqa: ASYNC251


@tool(effect="read")
async def patient(seconds: float) -> None:
    """Await."""
    await asyncio.sleep(seconds)


async def test_a_tool_that_blocks_the_loop_is_named_with_the_time() -> None:
    watchdog = LoopWatchdog([sleepy, patient], blocked_seconds=0.5)
    with capture_logs() as logs:
        watchdog.start()
        await patient.run({"seconds": 0.8}, context(patient.card))
        assert logs == []
        await sleepy.run({"seconds": 1.5}, context(sleepy.card))
        await until(lambda: any(each["event"] == "event_loop_blocked" for each in logs))
        watchdog.stop()
    assert {each["tool"] for each in logs} == {"sleepy"}
    assert [each["event"] for each in logs] == ["event_loop_is_blocked", "event_loop_is_blocked", "event_loop_blocked"]
    assert 0.5 <= logs[0]["seconds"] < logs[1]["seconds"] <= logs[2]["seconds"] < 10


async def test_the_log_of_an_activity_names_it_and_its_workflow() -> None:
    async def inner(_: ExecuteActivityInput) -> None:
        structlog.get_logger().warning("store_unreadable")

    async def read() -> None:
        await ActivityMetrics().intercept_activity(Mock(execute_activity=inner)).execute_activity(Mock())

    with capture_logs(processors=[merge_contextvars]) as logs:
        await ActivityEnvironment().run(read)
    assert {"activity": "unknown", "workflow": "test"}.items() <= logs[0].items()


@pytest.mark.parametrize(("setting", "module"), [("true", "uvloop"), ("false", "asyncio")])
def test_a_worker_runs_on_the_event_loop_of_the_setting(
    setting: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[object] = []

    async def serve(*_: object) -> int:
        loops.append(type(asyncio.get_running_loop()).__module__)
        return 0

    monkeypatch.setattr("perdure.worker.__main__._serve", serve)
    monkeypatch.setattr(os, "_exit", loops.append)
    monkeypatch.setattr(sys, "argv", ["worker.py", "--queues", "llm"])
    monkeypatch.setenv("PERDURE_UVLOOP", setting)
    worker.main()
    assert str(loops[0]).startswith(module) and loops[1:] == [0]
