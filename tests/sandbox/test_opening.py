"""A machine's sandbox: a checked jail, none, or a bare one if the operator allows it. It opens once, beside the start;
a failure is logged and retried."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from perdure.activities.sandbox import (
    FaultKind,
    LazySandbox,
    Limits,
    SandboxConfig,
    SandboxUnavailable,
    open_sandbox,
    selection,
)
from perdure.activities.sandbox.protocol import Sandbox
from perdure.activities.sandbox.selection import _interpreter
from perdure.local.processes import alive
from tests.eventually import until
from tests.sandbox.conftest import interpreters, reached_by

ONE = "def run():\n    return 1"
OPENER = """
import asyncio
from perdure.activities.sandbox import SandboxConfig, open_sandbox

async def main():
    sandbox = await open_sandbox(SandboxConfig())
    print("open", flush=True)
    await sandbox.run("t", "while True: pass", {})

asyncio.run(main())
"""


def launchers() -> list[str]:
    """The scripts that this process holds in memory."""
    return [link for each in Path("/proc/self/fd").iterdir() if "perdure-jail" in (link := os.path.realpath(each))]


@pytest.mark.parametrize("bare_allowed", [False, True])
async def test_a_checked_sandbox_says_so_and_leaves_nothing_behind(bare_allowed: bool) -> None:
    with capture_logs() as logs:
        sandbox = await open_sandbox(SandboxConfig(bare_allowed=bare_allowed))
    assert sandbox.jailed and [(each["event"], each["log_level"]) for each in logs] == [("sandbox.jailed", "info")]
    assert (await sandbox.run("t", ONE, {})).value == 1
    workers = interpreters()
    assert workers and launchers()
    await sandbox.close()
    assert launchers() == []
    await until(lambda: not any(each.is_running() for each in workers), seconds=20)  # a zombie counts


async def test_bare_sandboxes_need_permission_and_are_logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", reached_by(tmp_path, ("env", "prlimit", "setpriv", "ldd")))
    with pytest.raises(SandboxUnavailable) as raised:
        await open_sandbox(SandboxConfig())
    assert "bubblewrap" in str(raised.value)
    with capture_logs() as logs:
        sandbox = await open_sandbox(SandboxConfig(bare_allowed=True, ceiling=Limits(wall_seconds=0.2)))
    assert not sandbox.jailed
    assert [(each["event"], each["log_level"]) for each in logs] == [("sandbox.bare", "warning")]
    assert "bwrap" in str(logs[0]["why"])
    assert (await sandbox.run("t", ONE, {})).value == 1
    looped = await sandbox.run("t", "while True: pass", {})
    assert looped.fault is not None and looped.fault.kind is FaultKind.TIME
    peeked = await sandbox.run("t", "def run():\n    return open('/etc/passwd').read()", {})
    assert peeked.fault is not None and peeked.fault.kind is FaultKind.RAISED
    await sandbox.close()


async def test_an_interpreter_that_does_not_start_opens_no_sandbox(tmp_path: Path) -> None:
    broken = tmp_path / "monty"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    for bare_allowed in (False, True):
        with pytest.raises(SandboxUnavailable):
            await open_sandbox(SandboxConfig(program=broken, bare_allowed=bare_allowed))


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.activities.sandbox.selection.find_spec", lambda name: None)
    with pytest.raises(SandboxUnavailable) as raised:
        await open_sandbox(SandboxConfig())
    assert "`sandbox`" in str(raised.value)


def test_the_package_is_imported_without_the_extra() -> None:
    program = "import sys; sys.modules['pydantic_monty'] = None; import perdure.activities.sandbox; print('fine')"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert told.stdout.strip() == "fine", told.stderr


async def test_workers_end_with_the_process_that_started_them_even_after_kill_9() -> None:
    opener = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OPENER), env={**os.environ, "PATH": os.environ["PATH"]}, stdout=subprocess.PIPE
    )
    assert opener.stdout is not None
    assert b"sandbox.jailed" in await opener.stdout.readline()
    assert await opener.stdout.readline() == b"open\n"

    async def at_work() -> list[psutil.Process]:
        found = psutil.Process(opener.pid).children(recursive=True)
        return found if any(str(each.exe()).endswith(_interpreter().name) for each in found) else []

    workers = await until(at_work)
    os.kill(opener.pid, signal.SIGKILL)
    await opener.wait()
    await until(lambda: not any(alive(each.pid) for each in workers), seconds=20)


async def test_all_blocks_wait_for_one_opening_and_closing_ends_it() -> None:
    with capture_logs() as logs:
        sandbox = LazySandbox(SandboxConfig())
        sandbox.open_soon()
        ran = await asyncio.gather(*(sandbox.run("t", ONE, {}) for _ in range(5)))
    assert [each.value for each in ran] == [1] * 5
    assert [each["event"] for each in logs] == ["sandbox.jailed"]
    assert await sandbox.check(ONE, {"type": "object"}, {"type": "integer"}) == ()
    await sandbox.close()
    with pytest.raises(SandboxUnavailable):
        await sandbox.run("t", ONE, {})
    await LazySandbox(SandboxConfig()).close()  # at once: it was never opened


async def test_a_caller_that_stops_waiting_does_not_stop_the_opening() -> None:
    sandbox = LazySandbox(SandboxConfig())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.run("t", ONE, {}), 0.01)
    assert (await sandbox.run("t", ONE, {})).value == 1
    await sandbox.close()


@pytest.mark.parametrize(
    ("error", "why"),
    [(SandboxUnavailable("bwrap is not installed"), "bwrap is not installed"), (OSError("secret path"), "OSError")],
)
async def test_blocks_learn_why_it_cannot_open(monkeypatch: pytest.MonkeyPatch, error: Exception, why: str) -> None:
    tries: list[int] = []

    async def opening(config: SandboxConfig) -> Sandbox:
        tries.append(1)
        if len(tries) == 1:
            raise error
        return await open_sandbox(config)

    monkeypatch.setattr(selection, "open_sandbox", opening)
    sandbox = LazySandbox(SandboxConfig())
    with capture_logs() as logs:
        for _ in range(2):
            ran = await sandbox.run("t", ONE, {})
            assert ran.fault is not None and ran.fault.kind is FaultKind.CLOSED and why in ran.fault.message
            assert "secret" not in ran.fault.message and why in str((await sandbox.check("", {}, {}))[0])
    assert [(each["event"], each["log_level"]) for each in logs] == [("sandbox.closed", "error")]
    monkeypatch.setattr(selection, "RETRY_SECONDS", 0.0)
    sandbox = LazySandbox(SandboxConfig())
    tries.clear()
    assert (await sandbox.run("t", ONE, {})).fault is not None
    assert (await sandbox.run("t", ONE, {})).value == 1
    assert len(tries) == 2
    await sandbox.close()
