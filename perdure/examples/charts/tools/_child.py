"""A program in a separate process, so that a limit can end it: code that cannot be interrupted can be killed."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any


async def run_child(program: Path, *arguments: int, stdin_text: str, seconds: float) -> Any:
    """Returns the program's JSON answer to `stdin_text`, or None if it ended without one. No process is left running.

    Raises: TimeoutError after `seconds`.
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
            output, _ = await child.communicate(stdin_text.encode())
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    try:
        return json.loads(output)
    except ValueError:
        return None
