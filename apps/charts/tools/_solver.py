"""Answer sets by clingo in a process of its own, which a limit really ends: grounding cannot be interrupted, a process
can be killed. No outcome is an exception."""

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CHILD = Path(__file__).with_name("_solver_child.py")
LIMIT_SECONDS = 60.0
MEMORY_MEGABYTES = 1_024

Outcome = Literal["solved", "unsatisfiable", "timed_out", "failed"]


@dataclass(frozen=True, slots=True)
class Solved:
    """What a program came to."""

    outcome: Outcome
    atoms: tuple[str, ...] = ()
    """Of the best model."""


async def solve(program: str, seconds: float = LIMIT_SECONDS) -> Solved:
    """The best model of a program, found within `seconds`; nothing is left running, whatever happens."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(CHILD),
        str(MEMORY_MEGABYTES),
        str(int(seconds) + 2),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(seconds):
            said, _ = await child.communicate(program.encode())
    except TimeoutError:
        return Solved("timed_out")
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    try:
        answer = json.loads(said)
    except ValueError:  # killed by its limit of memory
        return Solved("failed")
    return Solved(answer["outcome"], tuple(answer["atoms"]))
