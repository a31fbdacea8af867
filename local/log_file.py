"""A child's own log: every line it wrote, one file of bounded size and the one before it."""

from collections import deque
from pathlib import Path

_LIMIT_BYTES = 20 * 1024 * 1024
_TAIL_LINES = 40


class LogFile:
    """Appends lines to `path`; a full file, and the file of the run before, become `path.1`."""

    def __init__(self, path: Path, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._written_bytes = 0
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        """The last lines, to say why a child did not start."""
        self._open()

    def write(self, line: str) -> None:
        """Keep one line; a full disk must not stop the stack, so a failed write is dropped."""
        self.tail.append(line)
        if self._written_bytes > self._limit_bytes:
            self._stream.close()
            self._open()
        try:
            self._written_bytes += self._stream.write(line + "\n")
            self._stream.flush()
        except OSError:
            pass

    def close(self) -> None:
        self._stream.close()

    def _open(self) -> None:
        if self._path.exists():
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._written_bytes = 0
        self._stream = self._path.open("w", encoding="utf-8", errors="replace")
        self._path.chmod(0o600)
