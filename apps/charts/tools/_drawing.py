"""Pictures of a Vega-Lite specification, drawn in a process of its own that a limit ends."""

import asyncio
import base64
import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("_drawing_child.py")
LIMIT_SECONDS = 60.0


class DrawingFailed(Exception):
    """No picture came of it."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """A chart in two forms."""

    png: bytes
    svg: str


async def draw(specification: Any, seconds: float = LIMIT_SECONDS) -> Pictures:
    """The pictures of a specification.

    Raises: DrawingFailed.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(CHILD),
        str(int(seconds) + 2),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(seconds):
            said, _ = await child.communicate(json.dumps(specification).encode())
    except TimeoutError:
        raise DrawingFailed(f"drawing took longer than {seconds:.0f} s") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    try:
        answer = json.loads(said)
    except ValueError:
        raise DrawingFailed("the drawing program ended without a picture") from None
    return Pictures(base64.b64decode(answer["png"]), answer["svg"])
