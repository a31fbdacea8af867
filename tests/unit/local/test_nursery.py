"""Programs forked from the nursery: they run as if they were started by themselves, and end with their supervisor."""

import asyncio
import io
import os
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from perdure.local.child import Child, ChildSpec, ForkedProcess, ForkServer, ForkServerGone
from perdure.local.config import ROOT
from perdure.local.data_dir import open_home
from perdure.local.output import Console, read_lines
from perdure.local.processes import StartClock, alive

OF_A_USER = "import sys\nif __name__ == '__main__':\n    print(sys.argv[1:], __package__)\n    sys.exit(4)\n"
SLOW = "import time\ntime.sleep(0.3)\nWHEN = time.monotonic()\n"


@pytest.fixture
async def nursery(tmp_path: Path) -> AsyncIterator[ForkServer]:
    (tmp_path / "shared_by_all.py").write_text(SLOW)
    (tmp_path / "broken_here.py").write_text("raise RuntimeError('not today')\n")
    (tmp_path / "of_a_user").mkdir()
    (tmp_path / "of_a_user" / "__init__.py").touch()
    (tmp_path / "of_a_user" / "__main__.py").write_text(OF_A_USER)
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "OF_NURSERY": "1", "PYTHONUNBUFFERED": "1"}
    modules = ("json", "broken_here", "of_a_user.__main__", "shared_by_all")
    opened = ForkServer(open_home(tmp_path / "home"), modules, environ, tmp_path, Console(io.StringIO()))
    await opened.start()
    yield opened
    await opened.stop()


async def test_a_nursery_that_is_stopped_is_killed_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.local.child.LOOK_SECONDS", 0.2)
    out = io.StringIO()
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    home = open_home(tmp_path / "home")
    opened = ForkServer(home, ("json",), environ, tmp_path, Console(out), StartClock(hang_seconds=3))
    await opened.start()
    try:
        first = opened.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        deadline = time.monotonic() + 30
        while opened.pid in (None, first):
            assert time.monotonic() < deadline, "it was not started again"
            await asyncio.sleep(0.05)
        assert "3 s" in out.getvalue()
        assert alive(first) is None
    finally:
        await opened.stop()


async def run(nursery: ForkServer, folder: Path, script: str, *arguments: str, **environ: str) -> ForkedProcess:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(script))
    command = (sys.executable, str(path), *arguments)
    return await nursery.fork("thing", command, {"PATH": "/usr/bin:/bin", **environ}, folder, ("shared_by_all",))


async def said(forked: ForkedProcess) -> list[str]:
    return [line async for line in read_lines(forked.stdout)]


async def test_a_program_finds_its_own_arguments_environment_and_folder(nursery: ForkServer, tmp_path: Path) -> None:
    script = """
        import os, sys
        print(__name__, sys.argv[1:], sorted(os.environ), os.getcwd(), "json" in sys.modules)
        print("to stderr", file=sys.stderr)
        print(os.getsid(0) == os.getpid(), os.stat(0).st_rdev == os.stat(os.devnull).st_rdev, oct(os.umask(0)))
        print(len(os.listdir("/proc/self/fd")), open("/proc/self/cmdline").read().rstrip("\\0"))
    """
    forked = await run(nursery, tmp_path, script, "--queues", "turns", LONG="x" * 100_000)
    lines = await said(forked)
    assert lines[0] == f"__main__ ['--queues', 'turns'] ['LONG', 'PATH'] {tmp_path} True"
    assert lines[1:] == ["to stderr", "True True 0o77", "4 perdure: thing"]
    assert await forked.wait() == 0


async def test_a_module_is_run_as_the_interpreter_would_run_it(nursery: ForkServer, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "of_a_user", "one")
    forked = await nursery.fork("thing", command, {"PATH": "/usr/bin:/bin"}, tmp_path, ("of_a_user.__main__",))
    assert await said(forked) == ["['one'] of_a_user"]
    assert await forked.wait() == 4


@pytest.mark.parametrize(
    ("script", "code", "last"),
    [
        ("raise ValueError('no room')", 1, "ValueError: no room"),
        ("raise SystemExit('not like this')", 1, "not like this"),
        ("import os\nos._exit(3)", 3, None),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", -9, None),
        ("import broken_here", 1, "RuntimeError: not today"),
    ],
)
async def test_the_end_of_a_program_is_told_as_it_was(
    nursery: ForkServer, tmp_path: Path, script: str, code: int, last: str | None
) -> None:
    forked = await run(nursery, tmp_path, script)
    lines = await said(forked)
    assert await forked.wait() == code
    assert (lines[-1] if lines else None) == last


async def test_many_programs_are_forked_at_once_and_none_before_what_it_needs_is_imported(
    nursery: ForkServer, tmp_path: Path
) -> None:
    script = "import shared_by_all, sys\nprint(shared_by_all.WHEN)\nsys.exit(int(sys.argv[1]))"
    forked = await asyncio.gather(*(run(nursery, tmp_path, script, str(n)) for n in range(12)))
    assert [await each.wait() for each in forked] == list(range(12))
    assert len({line for each in forked for line in await said(each)}) == 1, "it was imported more than once"
    assert len({each.pid for each in forked}) == 12


async def test_a_signal_reaches_the_program(nursery: ForkServer, tmp_path: Path) -> None:
    script = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print("ready")
        time.sleep(60)
    """
    forked = await run(nursery, tmp_path, script)
    assert await forked.stdout.readline() == b"ready\n"
    forked.send_signal(signal.SIGTERM)
    assert await forked.wait() == 7
    forked.send_signal(signal.SIGTERM)  # to whoever has its number by now: to nobody


async def test_what_was_forked_ends_with_the_nursery_and_the_next_is_refused(
    nursery: ForkServer, tmp_path: Path
) -> None:
    forked = await run(nursery, tmp_path, "import time\nprint('ready')\ntime.sleep(60)")
    assert await forked.stdout.readline() == b"ready\n"
    parent = psutil.Process(forked.pid).ppid()
    os.kill(parent, signal.SIGKILL)
    assert await forked.wait() == -9
    deadline = time.monotonic() + 10
    while alive(forked.pid) is not None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    with pytest.raises(ForkServerGone):
        await run(nursery, tmp_path, "print('never')")


@pytest.mark.parametrize("steady_seconds", [0.0, 60.0])
async def test_a_child_that_died_with_the_nursery_comes_back_forked_or_by_itself(
    nursery: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady_seconds: float
) -> None:
    """By itself where the nursery had only just been started: it may have died of what it imports."""
    monkeypatch.setattr("perdure.local.child._SERVER_STEADY_SECONDS", steady_seconds)
    (tmp_path / "program.py").write_text("import time\nopen('ready', 'w').close()\ntime.sleep(60)\n")

    async def ready(_pid: int) -> bool:
        return (tmp_path / "ready").exists()

    spec = ChildSpec(
        role="thing",
        command=(sys.executable, str(tmp_path / "program.py")),
        environ={"PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        log=tmp_path / "thing.log",
        ready=ready,
        stop_steps=(),
        stop_rank=0,
        before_start=lambda: (tmp_path / "ready").unlink(missing_ok=True),
        imports=("shared_by_all",),
    )
    kept = Child(spec, Console(io.StringIO()), lambda _child: None, nursery)
    await kept.start()
    first = kept.pid
    assert first is not None and psutil.Process(first).ppid() != os.getpid()
    os.kill(psutil.Process(first).ppid(), signal.SIGKILL)
    deadline = time.monotonic() + 30
    while kept.pid == first or kept.pid is None or not kept.ready:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert kept.pid is not None and alive(first) is None
    assert (psutil.Process(kept.pid).ppid() == os.getpid()) is (steady_seconds > 0)
    await kept.stop()


async def test_who_waits_for_a_nursery_that_dies_is_told(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(60)\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    nursery = ForkServer(open_home(tmp_path / "home"), ("endless",), environ, tmp_path, Console(io.StringIO()))
    await nursery.start()
    command = (sys.executable, "-c", "pass")
    waiting = asyncio.create_task(nursery.fork("thing", command, {}, tmp_path, ("endless",)))
    await asyncio.sleep(0)
    await nursery.stop()
    with pytest.raises(ForkServerGone):
        await waiting
