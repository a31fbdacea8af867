"""Finds the tool that blocks the event loop of a worker, by which all calls of the worker wait.

It names a tool whose own function, or one that this calls, is on the loop's stack. A task that a tool has started, or C
code that keeps the interpreter's lock in a thread, is not named.
"""

import asyncio
import inspect
import sys
import time
from collections.abc import Iterable, Mapping
from threading import Event, Thread, get_ident
from types import CodeType, FrameType

import structlog

from perdure.sdk.tools import Tool

BLOCKED_SECONDS = 2.0
"""A blockage of this time is logged. After five seconds without a heartbeat, Temporal gives the calls to others."""
ADVICE = "await its I/O, or define it with `def`: then it runs in a thread"
_TICK_SECONDS = 0.25
_log = structlog.get_logger(__name__)


class LoopWatchdog:
    """A thread that watches an event loop. It logs the tool whose function blocks the loop, each time that the
    blockage has doubled, and once with the whole time when the loop continues. A supervisor may kill the worker before
    that."""

    def __init__(self, tools: Iterable[Tool], blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._names: Mapping[CodeType, str] = {code: tool.card.name for tool in tools for code in _codes_of(tool)}
        self._blocked_seconds = blocked_seconds
        self._ticked = time.monotonic()
        self._stop = Event()
        self._ticks: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts to watch the running loop, whose thread must be the caller's."""
        loop, thread = asyncio.get_running_loop(), get_ident()

        def tick() -> None:
            self._ticked = time.monotonic()
            self._ticks = loop.call_later(_TICK_SECONDS, tick)

        tick()
        Thread(target=self._watch, args=(thread,), name="loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Ends the watch."""
        self._stop.set()
        if self._ticks is not None:
            self._ticks.cancel()

    def _watch(self, thread: int) -> None:
        tool, since, next_seconds = "", 0.0, self._blocked_seconds
        while not self._stop.wait(_TICK_SECONDS):
            ticked = self._ticked
            if tool and ticked != since:
                _log.warning("event_loop_blocked", tool=tool, seconds=round(ticked - since, 1), advice=ADVICE)
                tool, next_seconds = "", self._blocked_seconds
            seconds = time.monotonic() - ticked
            if seconds >= next_seconds:
                tool, since = tool or self._blocking_tool(thread), ticked
                if tool:
                    _log.warning("event_loop_is_blocked", tool=tool, seconds=round(seconds, 1), advice=ADVICE)
                    next_seconds = 2 * seconds

    def _blocking_tool(self, thread: int) -> str:
        """Returns the tool whose function the thread is in; empty if it is in none."""
        frame: FrameType | None = sys._current_frames().get(thread)
        while frame is not None:
            if frame.f_code in self._names:
                return self._names[frame.f_code]
            frame = frame.f_back
        return ""


def _codes_of(tool: Tool) -> Iterable[CodeType]:
    """Yields the code of the tool's own functions, also behind decorators."""
    functions = [tool.function, *([tool.preview.function] if tool.preview is not None else [])]
    for function in functions:
        code = getattr(inspect.unwrap(function), "__code__", None)
        if isinstance(code, CodeType):
            yield code
