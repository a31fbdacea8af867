"""A program in a process of its own, which a limit really ends: what cannot be interrupted can be killed."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any


async def answer_of(program: Path, *arguments: int, given: str, seconds: float) -> Any:
    """What the program answers in JSON to `given`; None where it ended without an answer. Nothing is left running.

    Raises: TimeoutError where `seconds` pass first.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(program),
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(seconds):
            said, _ = await child.communicate(given.encode())
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    try:
        return json.loads(said)
    except ValueError:
        return None
