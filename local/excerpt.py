"""What the terminal shows of a child's output: a traceback as one line, and the same warning once a minute.

The log file has every line. A line is held for a moment to see whether a traceback follows, which then ends it:
`Failed to connect; retrying: ConnectionRefusedError: ...`.
"""

import asyncio
import re
import time
from collections.abc import Callable

_HELD_SECONDS = 0.05
_QUIET_SECONDS = 60.0
"""A warning that is repeated is shown again after this long without it."""
_REMEMBERED = 200
_TRACEBACK = "Traceback (most recent call last)"
_INSIDE = (" ", "╭", "│", "╰")
"""How a traceback's lines begin: Python's own, and those that structlog draws in a box."""
_BETWEEN = ("During handling of the above exception", "The above exception was the direct cause")
_WARNING = re.compile(r"\[(warning|error|critical) *\]|\b(WARN|WARNING|ERROR|FATAL|PANIC)\b")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*( UTC)?( \[\d+\])?")
"""When it was said, and Postgres's process id: all that differs between two warnings that are the same."""


class Excerpt:
    """Takes a child's lines one by one and shows what is left of them."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._line: str | None = None
        self._error: str | None = None
        """The last line of a traceback that came behind the held line; of a chain of them the last one's."""
        self._in_traceback = False
        self._timer: asyncio.TimerHandle | None = None
        self._said: dict[str, float] = {}

    def take(self, line: str) -> None:
        """One line more."""
        if _TRACEBACK in line:
            self._in_traceback = True
        elif self._in_traceback:
            if line and not line.startswith(_INSIDE):
                self._in_traceback = False
                self._error = line
                self._hold()
        elif self._error is None or (line and not line.startswith(_BETWEEN)):
            self.flush()
            self._line = line
            self._hold()

    def flush(self) -> None:
        """Show what is held, unless a traceback is under way."""
        if self._in_traceback:
            return
        if self._timer is not None:
            self._timer.cancel()
        held = [part for part in (self._line, self._error) if part is not None]
        is_warning = self._error is not None or any(map(_WARNING.search, held))
        self._line = self._error = self._timer = None
        if held and not (is_warning and self._said_lately(": ".join(held))):
            self._show(": ".join(held))

    def close(self) -> None:
        """Show what is held, whatever it was the beginning of: there will be nothing more."""
        self._in_traceback = False
        self.flush()

    def _hold(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_HELD_SECONDS, self.flush)

    def _said_lately(self, text: str) -> bool:
        what, now = _STAMP.sub("", text), time.monotonic()
        before = self._said.pop(what, None)
        self._said[what] = now
        if len(self._said) > _REMEMBERED:
            del self._said[next(iter(self._said))]
        return before is not None and now - before < _QUIET_SECONDS
