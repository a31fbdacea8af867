"""A child's own log: every line it wrote, one file of bounded size and the one before it."""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

_LIMIT_BYTES = 20 * 1024 * 1024
_TAIL_LINES = 40


class LogFile:
    """Appends lines to `path`; a full file, and the file of the run before, become `path.1`."""

    def __init__(self, path: Path, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._written_bytes = 0
        self.lines = 0
        """How many there were."""
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        """The last lines, to say why a child did not start."""
        self._file = self._open()

    def write(self, line: str) -> None:
        """Keep one line; a full disk must not stop the stack, so a failed write is dropped.

        Nothing is buffered: what could not be written would fail again, at the worst when the file is closed.
        """
        self.lines += 1
        self.tail.append(line)
        with suppress(OSError):
            if self._written_bytes > self._limit_bytes:
                fresh = self._open()
                os.close(self._file)
                self._file = fresh
            self._written_bytes += os.write(self._file, f"{line}\n".encode("utf-8", "replace"))

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._file)

    def _open(self) -> int:
        if self._path.exists():
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        opened = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._written_bytes = 0
        return opened
