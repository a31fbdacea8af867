"""One supervised child, with small real processes, and the fork server that starts such."""

import asyncio
import io
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from perdure.core.calls.hangs import hang_file
from perdure.local.child import Child, ChildSpec, restart_delay_seconds
from perdure.local.config import ROOT
from perdure.local.data_dir import StackError, open_home
from perdure.local.forking import ForkedProcess, ForkServer, ForkServerGone
from perdure.local.output import Console, read_lines
from perdure.local.ports import HOST, PortInUse, free_port, heartbeat_probe
from perdure.local.processes import TimeLimits, alive
from perdure.local.programs import note_kill
from perdure.local.supervisor import Supervisor
from tests.eventually import until

PATH = {"PATH": "/usr/bin:/bin"}
SLEEPS = "touch ready; exec sleep 60"
LOOPS = "touch ready; while :; do sleep 0.05; done"
BURN = "import time, pathlib\nwhile time.process_time() < 2.5: pass\npathlib.Path('ready').touch()\ntime.sleep(60)"
OF_A_USER = "import sys\nif __name__ == '__main__':\n    print(sys.argv[1:], __package__)\n    sys.exit(4)\n"


def spec(folder: Path, script: str, **changes: Any) -> ChildSpec:
    marker = folder / "ready"

    async def ready(_pid: int) -> bool:
        return marker.exists()

    given: dict[str, Any] = {
        "role": "thing", "command": ("/bin/sh", "-c", script), "environ": PATH, "cwd": folder,
        "log": folder / "thing.log", "ready": ready, "stop_steps": ((signal.SIGTERM, 2.0),), "stop_rank": 0,
        "before_start": lambda: marker.unlink(missing_ok=True), **changes,
    }  # fmt: skip
    return ChildSpec(**given)


def child(
    folder: Path, script: str, out: io.StringIO | None = None, limits: TimeLimits | None = None, **changes: Any
) -> Child:
    console = Console(out or io.StringIO())
    return Child(spec(folder, script, **changes), console, lambda _child: None, limits=limits)


@asynccontextmanager
async def started(folder: Path, script: str, *given: Any, **changes: Any) -> AsyncIterator[Child]:
    made = child(folder, script, *given, **changes)
    await made.start()
    yield made
    await made.stop()


async def start_failure(child: Child) -> str:
    with pytest.raises(StackError) as caught:
        await child.start()
    await child.stop()
    assert child.pid is None and "\n" not in str(caught.value)
    return str(caught.value)


def send_signal_to(process: Child | ForkServer, number: signal.Signals = signal.SIGKILL) -> int:
    assert process.pid is not None
    pid = process.pid
    os.kill(pid, number)
    return pid


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_the_first_restart_is_quick_and_repeated_failures_wait_longer() -> None:
    delays = [restart_delay_seconds(failures) for failures in range(9)]
    assert delays == [0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


async def test_a_child_failing_repeatedly_in_an_outage_shows_each_error(tmp_path: Path) -> None:
    """Beside another that does the same: both are away, and each says why."""
    out = io.StringIO()
    supervisor = Supervisor(open_home(tmp_path / "home"), Console(out))
    why = "ConnectionRefusedError: [Errno 111] port 5432"
    for role in ("worker-llm", "worker-turns"):
        folder = tmp_path / role
        folder.mkdir()
        script = f'touch ready; sleep 0.1; echo "{role}: {why}"; exit 1'
        await supervisor.launch(spec(folder, script, role=role, log=folder / "log"))
    try:
        await until(lambda: all(child.restarts >= 3 for child in supervisor.children.values()))
    finally:
        await supervisor.stop()
    for role in ("worker-llm", "worker-turns"):
        said = [line for line in out.getvalue().splitlines() if line.startswith(role)]
        reasons = [at for at, line in enumerate(said) if why in line]
        assert len(reasons) >= 3 and all(at + 1 not in reasons for at in reasons), said


async def test_a_killed_healthy_child_is_restarted_at_once(tmp_path: Path) -> None:
    out = io.StringIO()
    async with started(tmp_path, SLEEPS, out) as supervised:
        await asyncio.sleep(1.05)
        first = send_signal_to(supervised)
        await until(lambda: supervised.pid not in (None, first) and supervised.ready)
        assert "SIGKILL" in out.getvalue() and "0.1 s" in out.getvalue()
        assert supervised.restarts == 1
    assert alive(first) is None


async def test_a_child_exiting_before_ready_ends_the_start(tmp_path: Path) -> None:
    lines = {"shown_lines": re.compile("FATAL"), "hidden_lines": re.compile("hush")}
    known: dict[str, Any] = {**lines, "advice": "; ask", "diagnose": " ".join}
    for end in ("exit 3", "kill -ABRT $$"):
        script, out = f"echo starting; echo 'FATAL: no room'; echo bye; echo hush; {end}", io.StringIO()
        said = await start_failure(child(tmp_path, script, out, **known))
        assert said.count("FATAL: no room") == 2 and "; ask" not in said, "not the general advice"
        assert "starting" in out.getvalue() and "bye" in out.getvalue(), "the end of the log is shown"
        assert "hush" not in out.getvalue()


@pytest.mark.parametrize("setting", ["", "PERDURE_PORT"])
async def test_a_port_conflict_ends_the_start_without_the_general_advice(tmp_path: Path, setting: str) -> None:
    with socket.create_server((HOST, 0)) as other:
        ports = (free_port(), other.getsockname()[1])
        with pytest.raises(StackError) as caught:
            await child(tmp_path, "exit 1", ports=ports, port_setting=setting, advice="; restore it").start()
    assert isinstance(caught.value, PortInUse) is not bool(setting)
    assert str(ports[1]) in str(caught.value) and setting in str(caught.value) and "restore" not in str(caught.value)


async def test_a_missing_program_is_reported_in_one_line(tmp_path: Path) -> None:
    assert "/no/such/program" in await start_failure(child(tmp_path, "", command=("/no/such/program",)))


async def test_a_child_without_progress_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.local.child._PROGRESS_SECONDS", 0.3)
    slow = child(tmp_path, "echo thinking; sleep 60 & wait", limits=TimeLimits(start_seconds=1))
    assert "thinking" in await start_failure(slow)


async def test_a_slow_child_that_works_is_reported_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More processor time than its limit: here a start is looked at every half second."""
    monkeypatch.setattr("perdure.local.child._PROGRESS_SECONDS", 0.5)
    monkeypatch.setattr("perdure.local.processes._MAX_START_LIMITS", 40)
    monkeypatch.setattr("perdure.local.processes._FIRST_REPORT_SECONDS", 0.5)
    out, limit, began = io.StringIO(), TimeLimits(start_seconds=2), time.monotonic()
    with busy_processes(1):
        async with started(tmp_path, "", out, limit, command=(sys.executable, "-S", "-c", BURN)) as slow:
            assert time.monotonic() - began > limit.start_seconds
            assert re.search(r"thing +\| ", out.getvalue()) and slow.restarts == 0


async def test_a_child_that_waits_for_others_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.local.child._PROGRESS_SECONDS", 0.3)
    gate, limits = tmp_path / "gate", TimeLimits(start_seconds=1)
    script = f"while ! test -e gate; do sleep 0.2; done; {SLEEPS}"
    waits = child(tmp_path, script, limits=limits, waits_for_others=lambda: not gate.exists())
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
    environ, command = {**PATH, "PYTHONPATH": str(ROOT)}, (sys.executable, "-c", BEATS)
    limits, responds = TimeLimits(hang_seconds=hang_seconds), heartbeat_probe(folder / "ready")
    hung = partial(note_kill, folder / "ready")
    hang_file(folder / "ready").touch()
    return child(folder, "", out, limits, command=command, environ=environ, responds=responds, hung=hung)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGUSR1], ids=["stopped", "busy loop"])
async def test_a_hung_child_restarts(tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.local.child.PROBE_SECONDS", 0.2)
    out = io.StringIO()
    supervised = beating_child(tmp_path, out, hang_seconds=3)
    await supervised.start()
    await asyncio.sleep(1.2)
    first = send_signal_to(supervised, number)
    await until(lambda: supervised.pid not in (None, first) and supervised.ready)
    assert "3 s" in out.getvalue() and b"3 s" in hang_file(tmp_path / "ready").read_bytes()
    assert supervised.restarts == 1 and alive(first) is None
    await supervised.stop()


@pytest.mark.soak
async def test_a_busy_machine_makes_no_child_count_as_hung(tmp_path: Path) -> None:
    out = io.StringIO()
    supervised = beating_child(tmp_path, out, hang_seconds=6)
    await supervised.start()
    with busy_processes(8):
        await asyncio.sleep(15)
    assert (supervised.restarts, out.getvalue()) == (0, "")
    await supervised.stop()


async def test_a_child_can_finish_its_work_before_it_ends(tmp_path: Path) -> None:
    out = io.StringIO()
    async with started(tmp_path, f"trap 'sleep 0.2; echo drained; exit 0' TERM; {LOOPS}", out):
        pass
    assert "drained" in out.getvalue()


@pytest.mark.timed
async def test_a_child_ignoring_its_stop_signal_is_killed_with_its_tree(tmp_path: Path) -> None:
    script = f"trap '' TERM; sleep 60 & echo $! > grandchild; {LOOPS}"
    async with started(tmp_path, script, stop_steps=((signal.SIGTERM, 0.3),)):
        began = time.monotonic()
    assert 0.3 <= time.monotonic() - began < 2.0
    grandchild = int((tmp_path / "grandchild").read_text())
    await until(lambda: alive(grandchild) is None)


@pytest.mark.timed
async def test_hurrying_cuts_the_drain_short(tmp_path: Path) -> None:
    slow = child(tmp_path, f"trap '' TERM; {LOOPS}", stop_steps=((signal.SIGTERM, 30.0),))
    await slow.start()
    hurry = asyncio.Event()
    began = time.monotonic()
    stopping = asyncio.create_task(slow.stop(hurry))
    await asyncio.sleep(0.1)
    hurry.set()
    await stopping
    assert time.monotonic() - began < 2.0


async def test_the_terminal_gets_only_matching_lines_and_the_log_gets_all(tmp_path: Path) -> None:
    out = io.StringIO()
    script = "echo 'WARNING early'; sleep 0.3; touch ready; sleep 0.3; echo chatter; echo 'WARNING late'; exec sleep 60"
    async with started(tmp_path, script, out, shown_lines=re.compile("WARNING")):
        await until(lambda: "WARNING late" in out.getvalue())
    assert "early" not in out.getvalue() and "chatter" not in out.getvalue()
    assert (tmp_path / "thing.log").read_text().splitlines() == ["WARNING early", "chatter", "WARNING late"]


@pytest.mark.timed
async def test_restarts_become_slower_and_stopping_does_not_wait_for_their_pause(tmp_path: Path) -> None:
    out = io.StringIO()
    async with started(tmp_path, f"test -e second && exit 1; touch second; {SLEEPS}", out) as broken:
        send_signal_to(broken)
        await until(lambda: "1.0 s" in out.getvalue(), seconds=8.0)
        began = time.monotonic()
    assert time.monotonic() - began < 0.5


def fork_server(folder: Path, *modules: str, out: io.StringIO | None = None, hang_seconds: float = 20) -> ForkServer:
    environ = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OF_SERVER": "1", "PYTHONUNBUFFERED": "1"}
    console, limits = Console(out or io.StringIO()), TimeLimits(hang_seconds=hang_seconds)
    return ForkServer(open_home(folder / "home"), modules, environ, folder, console, limits)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ForkServer]:
    (tmp_path / "shared_by_all.py").write_text("import time\ntime.sleep(0.3)\nWHEN = time.monotonic()\n")
    (tmp_path / "broken_here.py").write_text("raise RuntimeError('not today')\n")
    (tmp_path / "of_a_user").mkdir()
    (tmp_path / "of_a_user" / "__init__.py").touch()
    (tmp_path / "of_a_user" / "__main__.py").write_text(OF_A_USER)
    opened = fork_server(tmp_path, "json", "broken_here", "of_a_user.__main__", "shared_by_all")
    await opened.start()
    yield opened
    await opened.stop()


async def test_a_stopped_fork_server_is_killed_and_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.local.forking.PROBE_SECONDS", 0.2)
    out = io.StringIO()
    opened = fork_server(tmp_path, "json", out=out, hang_seconds=3)
    await opened.start()
    try:
        first = send_signal_to(opened, signal.SIGSTOP)
        await until(lambda: opened.pid not in (None, first))
        assert "3 s" in out.getvalue() and alive(first) is None
    finally:
        await opened.stop()


async def run(server: ForkServer, folder: Path, script: str, *arguments: str, **environ: str) -> ForkedProcess:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(script))
    command = (sys.executable, str(path), *arguments)
    return await server.fork("thing", command, {**PATH, **environ}, folder, ("shared_by_all",))


async def output_lines(forked: ForkedProcess) -> list[str]:
    return [line async for line in read_lines(forked.stdout)]


async def test_a_program_finds_its_own_arguments_environment_and_folder(server: ForkServer, tmp_path: Path) -> None:
    script = """
        import os, sys
        print(__name__, sys.argv[1:], sorted(os.environ), os.getcwd(), "json" in sys.modules)
        print("to stderr", file=sys.stderr)
        print(os.getsid(0) == os.getpid(), os.stat(0).st_rdev == os.stat(os.devnull).st_rdev, oct(os.umask(0)))
        print(len(os.listdir("/proc/self/fd")), open("/proc/self/cmdline").read().rstrip("\\0"))
    """
    forked = await run(server, tmp_path, script, "--queues", "turns", LONG="x" * 100_000)
    lines = await output_lines(forked)
    assert lines[0] == f"__main__ ['--queues', 'turns'] ['LONG', 'PATH'] {tmp_path} True"
    assert lines[1:] == ["to stderr", "True True 0o77", "4 perdure: thing"]
    assert await forked.wait() == 0


async def test_a_module_is_run_as_the_interpreter_would_run_it(server: ForkServer, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "of_a_user", "one")
    forked = await server.fork("thing", command, PATH, tmp_path, ("of_a_user.__main__",))
    assert await output_lines(forked) == ["['one'] of_a_user"]
    assert await forked.wait() == 4


@pytest.mark.parametrize(("script", "code", "last"), [
    ("raise ValueError('no room')", 1, "ValueError: no room"),
    ("raise SystemExit('not like this')", 1, "not like this"),
    ("import os\nos._exit(3)", 3, None),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", -9, None),
    ("import broken_here", 1, "RuntimeError: not today"),
])  # fmt: skip
async def test_the_exit_of_a_fork_is_reported(
    server: ForkServer, tmp_path: Path, script: str, code: int, last: str | None
) -> None:
    forked = await run(server, tmp_path, script)
    lines = await output_lines(forked)
    assert await forked.wait() == code
    assert (lines[-1] if lines else None) == last


async def test_many_programs_fork_in_parallel_after_the_imports(server: ForkServer, tmp_path: Path) -> None:
    script = "import shared_by_all, sys\nprint(shared_by_all.WHEN)\nsys.exit(int(sys.argv[1]))"
    forked = await asyncio.gather(*(run(server, tmp_path, script, str(n)) for n in range(12)))
    assert [await each.wait() for each in forked] == list(range(12))
    assert len({line for each in forked for line in await output_lines(each)}) == 1, "it was imported more than once"
    assert len({each.pid for each in forked}) == 12


async def test_a_signal_reaches_the_program(server: ForkServer, tmp_path: Path) -> None:
    script = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print("ready")
        time.sleep(60)
    """
    forked = await run(server, tmp_path, script)
    assert await forked.stdout.readline() == b"ready\n"
    forked.send_signal(signal.SIGTERM)
    assert await forked.wait() == 7
    forked.send_signal(signal.SIGTERM)  # to the process that has its number by now: to none


async def test_forks_end_with_their_server_and_the_next_fork_fails(server: ForkServer, tmp_path: Path) -> None:
    forked = await run(server, tmp_path, "import time\nprint('ready')\ntime.sleep(60)")
    assert await forked.stdout.readline() == b"ready\n"
    send_signal_to(server)
    assert await forked.wait() == -9
    await until(lambda: alive(forked.pid) is None)
    with pytest.raises(ForkServerGone):
        await run(server, tmp_path, "print('never')")


@pytest.mark.parametrize("steady_seconds", [0.0, 60.0])
async def test_a_child_that_died_with_its_fork_server_is_restarted(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady_seconds: float
) -> None:
    """The program is not forked if the server was started just before: one of its imports may have ended it."""
    monkeypatch.setattr("perdure.local.forking._MIN_UPTIME_SECONDS", steady_seconds)
    (tmp_path / "program.py").write_text("import time\nopen('ready', 'w').close()\ntime.sleep(60)\n")
    command = (sys.executable, str(tmp_path / "program.py"))
    forked = spec(tmp_path, "", command=command, stop_steps=(), imports=("shared_by_all",))
    supervised = Child(forked, Console(io.StringIO()), lambda _child: None, server)
    await supervised.start()
    first = supervised.pid
    assert first is not None and psutil.Process(first).ppid() == server.pid
    send_signal_to(server)
    await until(lambda: supervised.pid not in (None, first) and supervised.ready)
    assert supervised.pid is not None and alive(first) is None
    assert (psutil.Process(supervised.pid).ppid() == os.getpid()) is (steady_seconds > 0)
    await supervised.stop()


async def test_a_fork_that_waits_for_a_dying_server_fails(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(60)\n")
    server = fork_server(tmp_path, "endless")
    await server.start()
    command = (sys.executable, "-c", "pass")
    waiting = asyncio.create_task(server.fork("thing", command, {}, tmp_path, ("endless",)))
    await asyncio.sleep(0)
    await server.stop()
    with pytest.raises(ForkServerGone):
        await waiting
