"""The Temporal server program in the user's cache folder, shared by every stack of this user.

Invariants: a cached program is run only if its checksum is the one recorded when it was put there; a broken one is set
aside, never deleted; a program enters whole, by renaming, under a lock that any number of stacks share.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from local.console import Console
from local.temporal_version import CLI_VERSION, TemporalProgram, read_version


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder of this version in the user's cache."""
    root = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(root) / "perdure" / f"temporal-{CLI_VERSION}"


async def from_cache(folder: Path, console: Console) -> TemporalProgram | None:
    """The cached program if it is whole and runs; a broken one is reported and set aside as `temporal.broken`."""
    program = folder / "temporal"
    if not program.exists():
        return None
    fault = "its checksum is not the recorded one" if program.is_file() else "it is no file"
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
        console.say(f"  the cached Temporal server is broken ({fault}): set aside as {aside}")
    except OSError as error:
        console.say(f"  the cached Temporal server {program} is broken ({fault}): {error.strerror}")
    return None


def install(program: Path, folder: Path) -> Path:
    """Move a whole, working program into the cache with its checksum beside it; where it is now."""
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
    told = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    console.say("  another stack is fetching or building the Temporal server; waiting for it")
                    told = True
                await asyncio.sleep(0.25)
        yield
    finally:
        os.close(descriptor)


def _make_executable(program: Path, console: Console) -> None:
    """A cache that was copied or unpacked may have lost the bit; the program itself is whole."""
    if os.access(program, os.X_OK):
        return
    try:
        program.chmod(0o755)
        console.say(f"  the cached Temporal server {program} was not executable; it is now")
    except OSError as error:
        console.say(f"  the cached Temporal server {program} is not executable: {error.strerror}")


def _checksum_file(program: Path) -> Path:
    return program.with_name("temporal.sha256")


def _checksum_holds(program: Path) -> bool:
    """True as well where no checksum was recorded: someone put a program of their own there."""
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
