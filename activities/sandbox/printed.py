"""What a block prints, up to a number of bytes."""

from collections.abc import Callable
from typing import Literal


class TooMuchPrinted(Exception):
    """The block went beyond."""


class Printed:
    """Collects text; one byte too many calls `stop`: a block that floods would else go on to its time limit."""

    def __init__(self, most_bytes: int, stop: Callable[[], None]) -> None:
        self._parts: list[str] = []
        self._left = most_bytes
        self._stop = stop

    def __call__(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Take what was printed.

        Raises: TooMuchPrinted.
        """
        if self._left < 0:
            raise TooMuchPrinted
        raw = text.encode(errors="replace")
        self._parts.append(raw[: self._left].decode(errors="ignore"))
        self._left -= len(raw)
        if self._left < 0:
            self._stop()
            raise TooMuchPrinted

    @property
    def too_much(self) -> bool:
        """Whether it went beyond."""
        return self._left < 0

    @property
    def text(self) -> str:
        """What was printed, cut at the bound."""
        return "".join(self._parts)
