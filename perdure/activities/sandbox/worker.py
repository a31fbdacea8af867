"""One interpreter process: started, used, ended. Everything here blocks; the crew has the threads.

Monty's synchronous client is used, on threads: the asynchronous one hangs when a busy run is cancelled
(pydantic/monty#551) and aborts some processes at exit (measured: 3 of 60, the synchronous one 0 of 100).
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import JsonValue
from pydantic_monty import (
    Monty,
    MontyConversionError,
    MontyError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    ResourceLimits,
)

from perdure.activities.sandbox.jail import close_on_exec
from perdure.activities.sandbox.protocol import MIB, Fault, FaultKind, Limits, Ran, SandboxUnavailable, fault
from perdure.core.text import is_clean

SCRIPT = "block.py"
"""What tracebacks call a block."""
GRACE_SECONDS = 1.0
"""After the limit the interpreter has half of this to stop by itself; then its process is killed."""
_GROWN_BYTES = 32 * MIB
"""A worker that kept so much is not used again: the next block would meet the process's limit before its own."""


@dataclass(frozen=True, slots=True)
class Making:
    """How workers are made."""

    program: Path
    """The interpreter itself, or the launcher of a jail."""
    ceiling: Limits
    cpu_seconds: int | None
    """What the process may use over its life; None where nothing bounds it."""


class Worker:
    """A started interpreter, for one tenant and one run at a time."""

    def __init__(self, making: Making) -> None:
        """Start it and see it answer.

        Raises: SandboxUnavailable.
        """
        self._making = making
        self._inner: psutil.Process | None = None
        self._spent = False
        close_on_exec()
        self._pool = Monty(
            binary_path=making.program,
            min_processes=1,
            max_processes=1,
            request_timeout=making.ceiling.wall_seconds + 2 * GRACE_SECONDS,
            feed_duration_limit_grace=GRACE_SECONDS / 2,
            turn_duration_limit_grace=None,
        )
        try:
            self._pool.__enter__()
            with self._pool.checkout() as session:
                session.feed_run("0")
                self._outer = psutil.Process(session.worker_pid)
            self._inner = next(iter(self._outer.children()), self._outer)
        except (MontyError, OSError, psutil.Error) as error:
            self.close()
            raise SandboxUnavailable(f"the interpreter does not start: {error}") from error
        self.pid = self._inner.pid
        """Of the interpreter itself, which is bubblewrap's child where there is a jail."""
        self._first_bytes = self._held_bytes()

    @property
    def fit(self) -> bool:
        """Whether another run of its tenant may have it."""
        return not self._spent and self._alive

    def session(self, limits: Limits, type_stubs: str | None = None) -> MontySession:
        """A namespace of its own; with `type_stubs` what it is fed is type-checked first."""
        return self._pool.checkout(
            script_name=SCRIPT,
            limits=ResourceLimits(
                max_feed_duration_secs=limits.wall_seconds,
                max_memory=limits.memory_bytes,
                max_recursion_depth=limits.recursion_frames,
            ),
            type_check=type_stubs is not None,
            type_check_stubs=type_stubs,
            type_check_format="json",
            os_policy={"sleep": "zero"},
        )

    def run(self, code: str, inputs: Mapping[str, JsonValue], limits: Limits) -> Ran:
        """One call of the block's `run`. After any fault the worker is spent."""
        printed = Printed(limits.output_bytes, self.kill)
        cpu_before = self._cpu_seconds()
        started = time.monotonic()
        try:
            with self.session(limits) as session:
                came_to = called(session, code, inputs, limits, printed)
        except MontyError as error:  # it died before the code was fed
            came_to = crashed(error)
        wall = time.monotonic() - started
        cpu = self._cpu_seconds()
        problem = came_to if isinstance(came_to, Fault) else None
        if printed.too_much:
            problem = fault(FaultKind.OUTPUT, f"the block printed more than {limits.output_bytes} bytes")
        elif problem is not None and problem.kind in (FaultKind.TIME, FaultKind.CRASHED):
            problem = _by_clock(problem, wall, limits.wall_seconds)
        self._spent = self._spent or problem is not None or self._worn(cpu)
        used = None if cpu is None or cpu_before is None else cpu - cpu_before
        if problem is not None or isinstance(came_to, Fault):
            return Ran(fault=problem, output=printed.text, wall_seconds=wall, cpu_seconds=used)
        return Ran(came_to.json, came_to.size_bytes, None, printed.text, wall, used)

    def kill(self) -> None:
        """End the process now, whatever it does; what waits for it learns that it died.

        The inner one: bubblewrap then buries it, and ends. The other way round the dead would be left to process 1,
        which in a container may be this program.
        """
        self._spent = True
        if self._inner is not None:
            with suppress(psutil.NoSuchProcess):
                self._inner.kill()

    def close(self) -> None:
        """End the process and forget it."""
        self.kill()
        self._pool.__exit__(None, None, None)

    @property
    def _alive(self) -> bool:
        try:
            return str(self._outer.status()) != psutil.STATUS_ZOMBIE and self._cpu_seconds() is not None
        except psutil.NoSuchProcess:
            return False

    def _worn(self, cpu: float | None) -> bool:
        """Whether its process may be short of time or memory in the next run."""
        if cpu is None:
            return True
        most = self._making.cpu_seconds
        if most is not None and cpu > most - 2 * self._making.ceiling.wall_seconds - 2:
            return True
        return self._held_bytes() - self._first_bytes > _GROWN_BYTES

    def _cpu_seconds(self) -> float | None:
        """Of the process since its start; None where it is gone."""
        try:
            if sys.platform != "linux":
                return sum(psutil.Process(self.pid).cpu_times()[:2])
            # The clock of another process, as clock_getcpuclockid(3) makes it: to the nanosecond, in one call.
            return time.clock_gettime((~self.pid << 3) | 2)
        except (OSError, psutil.NoSuchProcess):
            return None

    def _held_bytes(self) -> int:
        """Writable memory, touched or not: what RLIMIT_DATA counts; 0 where the kernel does not tell."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0


def _by_clock(problem: Fault, wall: float, most: float) -> Fault:
    """A block can raise a time-out itself, and a death may be the end of its time: the clock says which."""
    if wall >= most:
        return fault(FaultKind.TIME, f"the block was stopped after {most:g} s", problem.line)
    kind = FaultKind.RAISED if problem.kind is FaultKind.TIME else problem.kind
    return fault(kind, problem.message, problem.line)


# --- What a block returned, read from the JSON text that its worker sent; the text is the block's, so it is hostile.

MOST_DEPTH = 32
"""As for arguments (perdure/core/calls/arguments.py)."""


@dataclass(frozen=True, slots=True)
class Value:
    """What came back."""

    json: JsonValue
    size_bytes: int
    """As text."""


class Unfit(Exception):
    """Why a text is no value; the text says it in words for the model."""

    def __init__(self, message: str, kind: FaultKind = FaultKind.VALUE) -> None:
        super().__init__(message)
        self.kind = kind


def read_value(text: object, most_bytes: int) -> Value:
    """The value, which Postgres can store and nothing can grow.

    Raises: Unfit.
    """
    if not isinstance(text, str):
        raise Unfit("the block hid the end of its program")
    if len(text) > most_bytes:  # `dumps` writes ASCII: a character is a byte
        raise Unfit(f"the value is longer than {most_bytes} bytes as JSON", FaultKind.OUTPUT)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Unfit("the value is no JSON that can be read; is a number too long?") from None
    _check(value, MOST_DEPTH)
    return Value(value, len(text))


def _check(value: Any, depth: int) -> None:
    """Raises: Unfit for what cannot be stored."""
    if isinstance(value, str) and not is_clean(value):
        raise Unfit("a text of the value holds a NUL or half a character")
    if not isinstance(value, list | dict):
        return
    if depth == 0:
        raise Unfit(f"the value is nested deeper than {MOST_DEPTH} levels")
    for part in value if isinstance(value, list) else (*value, *value.values()):
        _check(part, depth - 1)


# --- What a block prints, up to a number of bytes.


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


# --- One call of a block's `run`: the program that is fed, and what its end means.
# Invariants:
# - Only JSON text comes back. A block's own value could be a few lists that stand for 2^40 (measured: it arrives as a
#   list that hangs whatever walks it), so the last thing that runs in the worker is `json.dumps`, under its limits.
# - The code is never parsed here, only there.

MOST_CODE_CHARACTERS = 262_144
_TAIL = """

perdure_value = run(**perdure_inputs)
from json import dumps as perdure_dumps
perdure_dumps(perdure_value, allow_nan=False, separators=(",", ":"))"""
"""Behind the code, on lines of its own. The interpreter's modules are read-only, so `dumps` is what it says."""
_CALL_LINE, _DUMP_LINE = 2, 4
"""Counted from the code's last line."""
_LIMITS: dict[type[BaseException], FaultKind] = {
    TimeoutError: FaultKind.TIME,
    MemoryError: FaultKind.MEMORY,
    RecursionError: FaultKind.RECURSION,
}
"""A block that raises one of these itself is told the same; it ends the same way."""
_PANIC = "PanicException"
"""What the client raises where it is itself at fault: no Exception, and of no class that can be imported."""


def called(
    session: MontySession, code: str, inputs: Mapping[str, JsonValue], limits: Limits, printed: Printed
) -> Value | Fault:
    """The value, or why there is none."""
    if len(code) > MOST_CODE_CHARACTERS:
        return fault(FaultKind.CODE, f"the block is longer than {MOST_CODE_CHARACTERS} characters")
    try:
        text = session.feed_run(code + _TAIL, inputs={"perdure_inputs": dict(inputs)}, print_callback=printed)
        return read_value(text, limits.output_bytes)
    except Unfit as unfit:
        return fault(unfit.kind, str(unfit))
    except (MontySyntaxError, MontyRuntimeError) as error:
        return _raised(error, code.count("\n") + 1)
    except (MontyConversionError, ValueError, TypeError, OverflowError) as error:
        return fault(FaultKind.INPUTS, f"the inputs cannot be passed on: {error}")
    except MontyError as error:
        return crashed(error)
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        return crashed(error)


def crashed(error: BaseException) -> Fault:
    """The fault of a run whose worker is gone."""
    return fault(FaultKind.CRASHED, f"the block ended its interpreter: {error}")


def _raised(error: MontySyntaxError | MontyRuntimeError, lines: int) -> Fault:
    """What left a block of so many lines."""
    cause, told = error.exception(), error.display("type-msg")
    passed = [frame.line for frame in error.traceback()]
    line = next((line for line in reversed(passed) if line <= lines), None)
    if isinstance(error, MontySyntaxError) or isinstance(cause, NotImplementedError):
        return fault(FaultKind.CODE, told, line)
    for limit, kind in _LIMITS.items():
        if isinstance(cause, limit):
            return fault(kind, told, line)
    if not passed and told.startswith("UnicodeEncodeError"):  # it had not begun
        return fault(FaultKind.INPUTS, f"the inputs cannot be passed on: {told}")
    if line is None and lines + _CALL_LINE in passed:
        kind = FaultKind.CODE if isinstance(cause, NameError) else FaultKind.INPUTS
        return fault(kind, f"the function run cannot be called: {told}")
    if line is None and lines + _DUMP_LINE in passed:
        return fault(FaultKind.VALUE, f"the value is no JSON: {told}")
    return fault(FaultKind.RAISED, told, line)
