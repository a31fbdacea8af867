"""The terminal output: status lines of the supervisor, prefixed lines of the children, and one live line during a
build.

Every line of a child is also in its log file. If the terminal is gone (a closed pipe), nothing else stops. If one child
writes very many lines, the first are shown and the rest are counted.
"""

import asyncio
import os
import re
import shutil
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_ROLE_WIDTH = 16
_PLAIN_LIVE_SECONDS = 15.0
"""Seconds between repetitions of the live line if it cannot be overwritten."""
_WINDOW_SECONDS = 10.0
_MAX_WINDOW_SECONDS = 600.0
_MAX_LINES = 20
_MAX_SIMILAR_LINES = 5
"""Lines that differ only in their numbers."""
_LINES_AFTER_FLOOD = 2
"""Lines of a window that follows a flood."""
_LIVE_PRIORITY_SECONDS = 3.0
_OUTAGE_GRACE_SECONDS = 15.0
"""Seconds for which an outage of a part suppresses other children's lines about it: longer than a part takes to return.
"""
_OUTAGE_CHECK_SECONDS = 1.0
_APP_PROBLEM = re.compile(r"\b(app_problem|agents_missing)\b")
_OUTAGE = re.compile(
    r"ConnectionRefused|ConnectionReset|ConnectionError|ConnectionDoesNotExist|CannotConnectNow|terminating connection"
)
_FULL_DISK = re.compile(r"no space left|disk is full|DiskFull|ENOSPC", re.IGNORECASE)
_NUMBER = re.compile(r"\b[0-9a-f]*\d[0-9a-f]*\b")
_MAX_LINE_BYTES = 32 * 1024
"""Longer lines are split: asyncio's own readline() raises for them, and the child would block on a full pipe."""
_LIMIT_BYTES = 20 * 1024 * 1024
_TAIL_LINES = 40
_HOLD_SECONDS = 0.05
_REPEAT_SECONDS = 60.0
"""Seconds without a repeated warning after which it is shown again."""
_MAX_REMEMBERED = 200
_TRACEBACK = "Traceback (most recent call last)"
_TRACEBACK_LINE_STARTS = (" ", "╭", "│", "╰")
"""Starts of a traceback's lines: Python's own, and those that structlog draws in a box."""
_EXCEPTION_CHAIN_LINES = ("During handling of the above exception", "The above exception was the direct cause")
_WARNING = re.compile(r"\[(warning|error|critical) *\]|\b(WARN|WARNING|ERROR|FATAL|PANIC)\b")
_INFORMATION = re.compile(
    r"[\d\s\[\]:/.,+TZ-]*(\[(info|debug) *\]|(time=\S+ )?level=(?i:info|debug)\b|([\w.]+(:| - ))?(INFO|DEBUG)\b)"
)
"""Marks of lines below a warning by logger: structlog, uvicorn, alembic, LiteLLM and Python's own."""
_TIMESTAMP = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*( UTC)?( \[\d+\])?")
"""The time, and Postgres's process id: all that differs between two equal warnings."""


class FloodFilter:
    """Decides which lines of one child are shown: a few in full; of many, the first ones and a count of the others.

    Reports about a continuing flood become less frequent.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._seconds = _WINDOW_SECONDS
        self._allowed = (_MAX_LINES, _MAX_SIMILAR_LINES)
        self._shown = 0
        self._similar: Counter[str] = Counter()
        self.omitted = 0
        """Lines of this window that are not shown."""

    def seconds_left(self, now: float) -> float:
        """Returns the seconds until this window ends."""
        return self._began + self._seconds - now

    def start_next_window(self, now: float) -> str:
        """Returns a report about the ended window and starts the next one; empty if no line was omitted."""
        summary = ""
        if self.omitted:
            lines = "lines" if self.omitted > 1 else "line"
            summary = f"(and {self.omitted} more {lines} like these in {now - self._began:.0f} s"
        self._seconds = min(2 * self._seconds, _MAX_WINDOW_SECONDS) if self.omitted else _WINDOW_SECONDS
        self._allowed = (_LINES_AFTER_FLOOD, _LINES_AFTER_FLOOD) if self.omitted else (_MAX_LINES, _MAX_SIMILAR_LINES)
        self._began, self._shown, self.omitted = now, 0, 0
        self._similar.clear()
        return summary

    def omit(self) -> bool:
        """Omits one line; returns whether it is the first one of this window."""
        self.omitted += 1
        return self.omitted == 1

    def admits(self, line: str) -> bool:
        """Returns whether this line is shown; otherwise the caller must omit it."""
        kind = _NUMBER.sub("0", line)
        max_lines, max_similar = self._allowed
        if self._shown >= max_lines or self._similar[kind] >= max_similar:
            return False
        self._shown += 1
        self._similar[kind] += 1
        return True


class OutageFilter:
    """Suppresses and counts what children write about a part that has died and is restarting, for a few seconds.

    Only lines of other children are suppressed. Lines of a child that is itself down contain the reason. It may
    have written them before it was known to be down; its last suppressed line is then shown.
    """

    def __init__(self) -> None:
        self.down_roles: Callable[[], Collection[str]] = tuple
        """The roles that have died and are restarting."""
        self._began: float | None = None
        self._counts: Counter[str] = Counter()
        self._last: dict[str, str] = {}

    def suppresses(self, role: str, line: str, now: float) -> bool:
        """Returns whether this line is suppressed; it is then counted."""
        if _OUTAGE.search(line) is None:
            return False
        down_roles = self.down_roles()
        if not down_roles or role in down_roles:
            return False
        self._began = now if self._began is None else self._began
        if now - self._began >= _OUTAGE_GRACE_SECONDS:
            return False
        self._counts[role] += 1
        self._last[role] = line
        return True

    def take_last_line(self, role: str) -> str:
        """Returns this child's last suppressed line, once, if it is itself down by now; else empty."""
        if role not in self._last or role not in self.down_roles():
            return ""
        self._counts[role] -= 1
        return self._last.pop(role)

    def report(self, now: float) -> str:
        """Returns a report about the suppressed lines once the quiet period has ended; empty before."""
        is_over = not self.down_roles()
        if not is_over and (self._began is None or now - self._began < _OUTAGE_GRACE_SECONDS):
            return ""
        summary = ", ".join(f"{count} of {role}" for role, count in self._counts.items() if count)
        self._counts.clear()
        self._last.clear()
        if is_over:
            self._began = None
        return summary

    @property
    def is_active(self) -> bool:
        """Returns whether a part has been down since a line was suppressed."""
        return self._began is not None


class Console:
    """The only writer to the terminal; without a stream it is silent."""

    def __init__(self, stream: TextIO | None, environ: Mapping[str, str] | None = None) -> None:
        self._stream = stream
        self._is_terminal = bool(stream is not None and stream.isatty())
        self._has_color = self._is_terminal and not (environ or {}).get("NO_COLOR")
        self._roles: dict[str, int] = {}
        self._floods: dict[str, FloodFilter] = {}
        self.logs: Path | None = None
        """The folder with all lines of every child."""
        self.disk_is_full: Callable[[], bool] = lambda: False
        """True if the supervisor itself reports a full disk; lines of children about it are then omitted."""
        self.outage = OutageFilter()
        self._outage_check_is_scheduled = False
        self.hides_app_problems = False
        """True if problems of the apps are reported elsewhere; lines of children about them are then omitted."""
        self._live = ""
        self._live_at = 0.0

    @property
    def is_terminal(self) -> bool:
        """True if progress can overwrite itself."""
        return self._is_terminal

    def say(self, text: str = "") -> None:
        """Writes one line of the supervisor itself."""
        self._write(f"{text}\n")

    def part(self, role: str, state: str, seconds: float | None = None, detail: str = "") -> None:
        """Writes one line about one part: `postgres ready  0.9 s  127.0.0.1:24513`."""
        took = "" if seconds is None else f"{seconds:.1f} s"
        self.say(f"  {role:<{_ROLE_WIDTH}} {state:<6} {took:>7}   {detail}".rstrip())

    def child(self, role: str, line: str) -> None:
        """Writes one line from a child or about it; in a flood it is counted and not shown."""
        flood = self._floods.setdefault(role, FloodFilter(time.monotonic()))
        if flood.seconds_left(time.monotonic()) <= 0:
            self._close_window(role)
        if self.hides_app_problems and _APP_PROBLEM.search(line) is not None:
            return
        if self.outage.suppresses(role, line, time.monotonic()):
            self._schedule_outage_check()
            return
        if last := self.outage.take_last_line(role):
            self._write_child_line(role, last)
        is_reported = _FULL_DISK.search(line) is not None and self.disk_is_full()
        if not is_reported and flood.admits(line):
            self._write_child_line(role, line)
        elif flood.omit():
            with suppress(RuntimeError):  # without an event loop, the next line reports it
                asyncio.get_running_loop().call_later(flood.seconds_left(time.monotonic()), self._close_window, role)

    def _schedule_outage_check(self) -> None:
        """Checks every second, from the first suppressed line until no part is down."""
        if not self._outage_check_is_scheduled:
            with suppress(RuntimeError):  # without an event loop there is nothing to wait for
                asyncio.get_running_loop().call_later(_OUTAGE_CHECK_SECONDS, self._check_outage)
                self._outage_check_is_scheduled = True

    def _check_outage(self) -> None:
        self._outage_check_is_scheduled = False
        if summary := self.outage.report(time.monotonic()):
            where = f"; log of each: {self.logs}" if self.logs is not None else ""
            self.say(f"  Lines about the outage that are not shown: {summary}{where}")
        if self.outage.is_active:
            self._schedule_outage_check()

    def _close_window(self, role: str) -> None:
        summary = self._floods[role].start_next_window(time.monotonic())
        if summary:
            self._write_child_line(
                role, f"{summary}; log: {self.logs / role}.log)" if self.logs is not None else f"{summary})"
            )

    def _write_child_line(self, role: str, line: str) -> None:
        prefix = f"{role:<{_ROLE_WIDTH}} |"
        if self._has_color:
            color = _COLORS[self._roles.setdefault(role, len(self._roles)) % len(_COLORS)]
            prefix = f"\x1b[{color}m{prefix}\x1b[0m"
        self._write(f"{prefix} {line}\n")

    def live(self, text: str) -> None:
        """Shows progress instead of the previous progress; without a terminal, as an occasional line."""
        now = time.monotonic()
        if self._is_terminal:
            self._live_at = now
            self._show_live(text)
        elif now - self._live_at >= _PLAIN_LIVE_SECONDS:
            self._live_at = now
            self.say(text)

    def waiting(self, text: str) -> None:
        """Shows what is being waited for, unless other progress is shown."""
        if self._is_terminal and time.monotonic() - self._live_at >= _LIVE_PRIORITY_SECONDS:
            self._show_live(text)
        elif not self._is_terminal:
            self.live(text)

    def end_live(self) -> None:
        """Removes the progress line from the terminal."""
        if self._live:
            self._show_live("")

    def _show_live(self, text: str) -> None:
        self._write("", live=text[: shutil.get_terminal_size().columns - 1])

    def _write(self, text: str, live: str | None = None) -> None:
        if self._stream is None:
            return
        shown = self._live if live is None else live
        if text and live is None:
            shown = ""
        try:
            if self._live:
                self._stream.write("\r\x1b[2K")
            self._stream.write(text + shown)
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None
        self._live = shown


async def read_lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yields lines without their ends until the stream ends; undecodable bytes become replacement characters. Lines
    can have any bytes and any length, and the child is never blocked."""
    held = b""
    while chunk := await stream.read(65_536):
        *lines, held = (held + chunk).split(b"\n")
        for line in lines:
            for piece in _pieces(line):
                yield _decode(piece)
        while len(held) >= _MAX_LINE_BYTES:
            yield _decode(held[:_MAX_LINE_BYTES])
            held = held[_MAX_LINE_BYTES:]
    if held:
        yield _decode(held)


def _pieces(line: bytes) -> list[bytes]:
    return [line[at : at + _MAX_LINE_BYTES] for at in range(0, max(len(line), 1), _MAX_LINE_BYTES)]


def _decode(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")


class LogFile:
    """Appends every line of a child to `path`. A full file, or the one of the previous run, is renamed to `path.1`."""

    def __init__(self, path: Path, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._written_bytes = 0
        self.lines = 0
        """The number of lines."""
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        """The last lines, to report why a child did not start."""
        self._file = self._open()

    def last_line(self) -> str:
        """Returns the last line that is not blank; empty if there is none."""
        return next((line.strip() for line in reversed(self.tail) if line.strip()), "")

    def write(self, line: str) -> None:
        """Stores one line. A full disk must not stop the stack, so a failed write is dropped.

        Nothing is buffered: a failed write would be repeated later, at the latest when the file is closed, and fail
        again.
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


class Excerpt:
    """Takes a child's lines one by one and shows those that pass the filter. The terminal gets a filtered output; the
    log file has every line. A traceback becomes one line, the same warning is shown once per minute, and lines marked
    as information are omitted. A line is held for a moment to see whether a traceback follows, which is then appended:
    `Failed to connect; retrying: ConnectionRefusedError: ...`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._line: str | None = None
        self._error: str | None = None
        """The last line of a traceback after the held line; for a chain of them, that of the last one."""
        self._in_traceback = False
        self._timer: asyncio.TimerHandle | None = None
        self._shown: dict[str, float] = {}

    def take(self, line: str) -> None:
        """Adds one line of output. The last line of a traceback is kept as the error."""
        if _TRACEBACK in line:
            self._in_traceback = True
        elif self._in_traceback:
            if line and not line.startswith(_TRACEBACK_LINE_STARTS):
                self._in_traceback = False
                self._error = line
                self._hold()
        elif self._error is None or (line and not line.startswith(_EXCEPTION_CHAIN_LINES)):
            self.flush()
            self._line = line
            self._hold()

    def flush(self) -> None:
        """Shows the held line, unless a traceback is in progress."""
        if self._in_traceback:
            return
        if self._timer is not None:
            self._timer.cancel()
        held = [part for part in (self._line, self._error) if part is not None]
        is_warning = self._error is not None or any(map(_WARNING.search, held))
        is_information = self._error is None and any(map(_INFORMATION.match, held))
        self._line = self._error = self._timer = None
        if held and not is_information and not (is_warning and self._shown_recently(": ".join(held))):
            self._show(": ".join(held))

    def close(self) -> None:
        """Shows the held line in any case, because no line follows."""
        self._in_traceback = False
        self.flush()

    def _hold(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_HOLD_SECONDS, self.flush)

    def _shown_recently(self, text: str) -> bool:
        what, now = _TIMESTAMP.sub("", text), time.monotonic()
        before = self._shown.pop(what, None)
        self._shown[what] = now
        if len(self._shown) > _MAX_REMEMBERED:
            del self._shown[next(iter(self._shown))]
        return before is not None and now - before < _REPEAT_SECONDS
