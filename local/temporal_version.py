"""Which Temporal server program will do: what it says of itself, and the oldest that is accepted."""

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path

from local.spawn import kill_group, spawn

CLI_VERSION = "1.8.2"
"""What our Go module builds and what is downloaded; a unit test holds it equal to go.mod."""
MINIMUM_CLI = (1, 5, 0)
MINIMUM_SERVER = (1, 29, 0)
"""The server inside CLI 1.5, the first whose worker deployments need no switch; 1.31 is what we test."""

_VERSION = re.compile(r"temporal version (\d+)\.(\d+)\.(\d+)\S* \(Server (\d+)\.(\d+)\.(\d+)")
_VERSION_SECONDS = 20.0


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
    """What `temporal --version` says; None when the program does not run or says something else."""
    try:
        process = await spawn(
            (program, "--version"), environ={"PATH": os.defpath, "HOME": "/nonexistent"}, cwd=Path("/")
        )
    except OSError:
        return None
    assert process.stdout is not None
    said = b""
    try:
        async with asyncio.timeout(_VERSION_SECONDS):
            said = await process.stdout.read()
            await process.wait()
    except TimeoutError:
        return None
    finally:
        kill_group(process.pid)
    match = _VERSION.search(said.decode("utf-8", "replace"))
    if match is None or process.returncode != 0:
        return None
    numbers = [int(number) for number in match.groups()]
    return TemporalProgram(program, _triple(numbers[:3]), _triple(numbers[3:]), source)


def _triple(numbers: list[int]) -> tuple[int, int, int]:
    major, minor, patch = numbers
    return major, minor, patch
