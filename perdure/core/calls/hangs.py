"""Finds the call that made its process hang, in what the process has left."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from perdure.contracts.errors import Problem

MAX_HANGS = 2
"""A call that made its worker hang this often is not run again."""
TOOL_HUNG = "tool_hung"
_MAX_OVERDUE_SECONDS = 1.0
"""A process that ends itself later than this was suspended, such as by SIGSTOP. Each beat starts the timer again and
touches the file at once, so that a timer that fires in time is less than this late."""
_LOOP_FILES = re.compile(r"/(?:asyncio|uvloop)/[^/]+$|/selectors\.py$")
"""The files of the innermost frame of an event loop that waits for events, or for Python's lock after them."""
_FRAME = re.compile(r'\s+File "(?P<file>.*)", line \d+ in ')


def hang_file(ready_file: Path) -> Path:
    """Returns the file of a process in the folder of its ready file: records of fixed size (the loop's thread, the open
    calls), then the stacks."""
    return ready_file.with_name(f"{ready_file.name}.hang")


class Doing(StrEnum):
    """The states of an open call."""

    AWAITS = "a"
    """The call awaits something, so that the event loop does other work."""
    IN_THREAD = "t"
    """The function is not async and runs in its own thread."""
    STEPS = "s"
    """The event loop runs its code."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of a process, as it was when the process ended."""

    tenant_id: str
    turn_id: str
    call_id: str
    epoch: int
    """The claim with which the process ran it (perdure/core/calls/ledger.py)."""
    tool: str
    doing: Doing


@dataclass(frozen=True, slots=True)
class Hang:
    """The remains of a process that hung."""

    loop_thread: int
    """The number of the thread of its event loop."""
    calls: tuple[OpenCall, ...]
    stacks: str
    """The stacks of all threads as Python's faulthandler writes them, or the sentence of the supervisor that ended the
    process."""
    overdue_seconds: float = 0.0
    """The seconds from the time at which the process had to end itself until it did."""


def hanging_call(hang: Hang) -> OpenCall | None:
    """Returns the call that made the process hang; None if that is not known, or if the process was suspended.

    It is the call whose code the event loop was running. If the loop was running nothing, another thread kept Python's
    lock. It is the only call with a thread, if there is one. Other calls are never returned.
    """
    if hang.overdue_seconds > _MAX_OVERDUE_SECONDS:
        return None
    for call in hang.calls:
        if call.doing is Doing.STEPS:
            return call
    in_threads = [call for call in hang.calls if call.doing is Doing.IN_THREAD]
    return in_threads[0] if len(in_threads) == 1 and _loop_was_idle(hang) else None


def _loop_was_idle(hang: Hang) -> bool:
    _, found, stack = hang.stacks.partition(f"hread 0x{hang.loop_thread:016x} ")
    frame = _FRAME.match(stack.partition("\n")[2]) if found else None
    return frame is not None and _LOOP_FILES.search(frame["file"]) is not None


def given_up(tool: str, *, lost: int, hung: int) -> Problem:
    """Returns why a call that changes nothing is not run again after `lost` attempts that did not end. In `hung` of
    them it made its worker hang. The turn fails with `tool_hung`; after `worker_lost`, it continues."""
    if hung >= MAX_HANGS:
        return Problem(
            code=TOOL_HUNG,
            message=f"{tool} made its worker hang {hung} times, so it is not run again; its author finds the line "
            "that hangs in the worker's log (process_hung)",
        )
    return Problem(
        code="worker_lost",
        message=f"{lost} attempts to run {tool} did not end, so it is not run again. Each time its worker was lost or "
        "could not record the end; its log and that of its supervisor have the reason",
    )
