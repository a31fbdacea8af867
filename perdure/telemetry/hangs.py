"""Ends a process that hangs, and keeps its open calls and the stacks of its threads for the next start.

Python's faulthandler has the timer. Its thread needs neither the event loop nor Python's lock, so it also ends a
process in which C code keeps the lock, such as a regular expression. The exit code is 1.

Invariants:
- The timer runs only while the process serves: not during its start, and not after its drain.
- Marking a step of a call writes one byte to memory that the file backs. Its space is allocated at the start, because
  a full disk would end the process (SIGBUS). This does not hold on a file system that copies on write, such as Btrfs or
  ZFS. There, each written page takes new space, and a full disk can end the process.
- A step costs 0.5 µs, a call 5 µs, a beat 0.15 ms (measured).
"""

import errno
import faulthandler
import json
import mmap
import os
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import structlog

from perdure.core.calls.hangs import Doing, Hang, OpenCall, hang_file
from perdure.telemetry.heartbeat import beating

T = TypeVar("T")
MAX_OPEN_CALLS = 255
"""Further calls of a process are not marked."""
ADVICE = (
    "the first lines of a stack are the innermost; in an async tool, await or use `def`; limit the text of a regular "
    "expression, which keeps Python's lock"
)
_MAX_LOGGED_CHARACTERS = 32_768
_RECORD_BYTES = 512
_SIZE = (1 + MAX_OPEN_CALLS) * _RECORD_BYTES
_NO_FILE = -1
_STEPS = ord(Doing.STEPS.value)
_log = structlog.get_logger(__name__)


class OpenCalls:
    """The open calls of this process. Each has a record: a byte for what it does (0: the record is free), then its ids.

    Without a ready file, they are not kept.
    """

    def __init__(self, ready_file: Path | None = None, exit_seconds: float = 0.0) -> None:
        self._fd = _new_file(hang_file(ready_file)) if ready_file is not None else _NO_FILE
        self._memory = mmap.mmap(self._fd, _SIZE)
        self._free = [number * _RECORD_BYTES for number in range(MAX_OPEN_CALLS, 0, -1)]
        self._write(0, "l", {"thread": threading.get_ident(), "exit_seconds": exit_seconds})

    @property
    def stacks_fd(self) -> int:
        """The descriptor for the stacks of all threads: that of the file, at its end, or else standard error."""
        return sys.stderr.fileno() if self._fd == _NO_FILE else self._fd

    @contextmanager
    def marked(self, call: OpenCall, work: Coroutine[Any, Any, T]) -> Iterator[Coroutine[Any, Any, T]]:
        """Gives `work` with each of its steps marked. `call.doing` is what it does between them."""
        ids = {name: getattr(call, name) for name in ("tenant_id", "turn_id", "call_id", "epoch", "tool")}
        at = self._free.pop() if self._free else 0
        if not at:
            yield work
            return
        try:
            is_written = self._write(at, call.doing.value, ids)
            yield _MarkedSteps(work, self._memory, at, call.doing) if is_written else work
        finally:
            self._memory[at] = 0
            self._free.append(at)

    def _write(self, at: int, doing: str, content: dict[str, Any]) -> bool:
        data = json.dumps(content).encode()
        if len(data) >= _RECORD_BYTES:
            return False
        self._memory[at + 1 : at + _RECORD_BYTES] = data.ljust(_RECORD_BYTES - 1, b"\0")
        self._memory[at] = ord(doing)
        return True


class _MarkedSteps(Coroutine[Any, Any, T]):
    """A coroutine that marks in the call's record that the event loop runs its code."""

    def __init__(self, work: Coroutine[Any, Any, T], memory: mmap.mmap, at: int, between: Doing) -> None:
        self._work, self._memory, self._at = work, memory, at
        self._between = ord(between.value)

    def send(self, value: Any, /) -> Any:
        self._memory[self._at] = _STEPS
        try:
            return self._work.send(value)
        finally:
            self._memory[self._at] = self._between

    def throw(self, *error: Any) -> Any:
        self._memory[self._at] = _STEPS
        try:
            return self._work.throw(*error)
        finally:
            self._memory[self._at] = self._between

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> "_MarkedSteps[T]":
        return self

    def __iter__(self) -> "_MarkedSteps[T]":
        return self

    def __next__(self) -> Any:
        return self.send(None)


def _new_file(path: Path) -> int:
    """Returns the descriptor of the file with empty records, at its end. It stays open as long as the process.

    It replaces the earlier one, which another process may still have in its memory."""
    new = path.with_name(f"{path.name}.new")
    try:
        # Only for this user and no link, because the folder can be /tmp.
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        if os.write(fd, bytes(_SIZE)) != _SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        new.replace(path)
        return fd
    except OSError as error:
        _log.warning("hang_file_not_written", file=str(path), error=error.strerror)
        return _NO_FILE


def earlier_hang(ready_file: Path | None) -> Hang | None:
    """Returns what the last process with this ready file has left, and logs it. None if it did not end by hanging. The
    next `OpenCalls` removes it."""
    if ready_file is None:
        return None
    file = hang_file(ready_file)
    try:
        content, status = file.read_bytes(), file.stat()
    except OSError:
        return None
    if status.st_uid != os.geteuid():  # another user could name calls in it
        return None
    stacks = content[_SIZE:].decode(errors="replace").strip()
    if not stacks:
        return None
    _log.error("process_hung", stacks=stacks[:_MAX_LOGGED_CHARACTERS], advice=ADVICE)
    records = [content[at : at + _RECORD_BYTES] for at in range(0, _SIZE, _RECORD_BYTES)]
    try:
        loop, *calls = ((json.loads(record[1:].rstrip(b"\0")), chr(record[0])) for record in records if record[0])
        found = tuple(OpenCall(**ids, doing=Doing(doing)) for ids, doing in calls)
        return Hang(
            loop[0]["thread"], found, stacks, _overdue_seconds(ready_file, status.st_mtime, loop[0]["exit_seconds"])
        )
    except (KeyError, TypeError, ValueError) as error:  # a disk can lose a part of a file
        _log.warning("hang_file_not_read", file=str(file), error=repr(error))
        return None


def _overdue_seconds(ready_file: Path, ended_at: float, exit_seconds: float) -> float:
    """Returns how late the process ended itself after its last beat; 0 if a supervisor ended it."""
    with suppress(OSError):  # a supervisor removes the file before a start
        return ended_at - ready_file.stat().st_mtime - exit_seconds if exit_seconds else 0.0
    return 0.0


@asynccontextmanager
async def watched(ready_file: Path | None, exit_seconds: float, calls: OpenCalls | None = None) -> AsyncIterator[None]:
    """Beats during the block. If no beat comes for `exit_seconds`, the process ends (0: it does not). Without `calls`,
    it first logs how the last process hung."""
    if calls is None:
        earlier_hang(ready_file)
        calls = OpenCalls(ready_file, exit_seconds)
    stacks_fd = calls.stacks_fd if exit_seconds else _NO_FILE

    def beat() -> None:
        if exit_seconds:
            faulthandler.dump_traceback_later(exit_seconds, exit=True, file=stacks_fd)

    try:
        async with beating(ready_file, beat):
            yield
    finally:
        if exit_seconds:
            faulthandler.cancel_dump_traceback_later()
