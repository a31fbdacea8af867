"""Pictures of a Vega-Lite specification, rendered in a separate process with a limit."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._child import run_child

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
    try:
        answer = await run_child(CHILD, int(seconds) + 2, stdin_text=json.dumps(specification), seconds=seconds)
    except TimeoutError:
        raise DrawingFailed(f"drawing took longer than {seconds:.0f} s") from None
    if answer is None:
        raise DrawingFailed("the drawing program exited without a chart")
    return Pictures(base64.b64decode(answer["png"]), answer["svg"])
