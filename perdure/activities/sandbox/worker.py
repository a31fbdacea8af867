"""One interpreter process, from its start to its end. All functions block; the pool provides the threads.

Monty's synchronous client is used, on threads. The asynchronous client hangs when a busy run is cancelled
(pydantic/monty#551) and aborts some processes at exit (measured: 3 of 60; the synchronous one 0 of 100).
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
from perdure.activities.sandbox.protocol import MIB, BlockResult, Fault, FaultKind, Limits, SandboxUnavailable, fault
from perdure.core.text import is_clean

SCRIPT = "block.py"
"""The file name of a block in tracebacks."""
GRACE_SECONDS = 1.0
"""The interpreter has half of this time after the limit to stop on its own. Then its process is killed."""
_MAX_GROWTH_BYTES = 32 * MIB
"""A worker whose memory has grown by more than this is not reused: the next block would reach the process's limit
before its own."""
MAX_DEPTH = 32
"""Maximum nesting, the same as for arguments (perdure/core/calls/arguments.py)."""
MAX_CODE_CHARACTERS = 262_144
_CALL_LINE, _DUMP_LINE = 2, 4
"""Line numbers counted from the code's last line."""
_LIMITS: dict[type[BaseException], FaultKind] = {
    TimeoutError: FaultKind.TIME,
    MemoryError: FaultKind.MEMORY,
    RecursionError: FaultKind.RECURSION,
}
"""A block that raises one of these itself receives the same fault, because it ends in the same way."""
_PANIC = "PanicException"
"""The name of the exception that the client raises for its own bugs. It is not an Exception, and its class cannot be
imported."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings for starting workers."""

    program: Path
    """The interpreter, or the launcher of a jail."""
    ceiling: Limits
    cpu_seconds: int | None
    """The CPU time that the process can use in its life; None if it is unlimited."""


class Worker:
    """A started interpreter that serves one tenant and one run at a time."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Starts the interpreter and checks that it answers.

        Raises: SandboxUnavailable.
        """
        self._settings = settings
        self._interpreter: psutil.Process | None = None
        self._unusable = False
        close_on_exec()
        self._pool = Monty(
            binary_path=settings.program,
            min_processes=1,
            max_processes=1,
            request_timeout=settings.ceiling.wall_seconds + 2 * GRACE_SECONDS,
            feed_duration_limit_grace=GRACE_SECONDS / 2,
            turn_duration_limit_grace=None,
        )
        try:
            self._pool.__enter__()
            with self._pool.checkout() as session:
                session.feed_run("0")
                self._launcher = psutil.Process(session.worker_pid)
            self._interpreter = next(iter(self._launcher.children()), self._launcher)
        except (MontyError, OSError, psutil.Error) as error:
            self.close()
            raise SandboxUnavailable(f"the interpreter does not start: {error}") from error
        self.pid = self._interpreter.pid
        """The process id of the interpreter itself. In a jail, the interpreter is a child of bubblewrap."""
        self._first_bytes = self._data_bytes()

    @property
    def reusable(self) -> bool:
        """True if the worker can run another block of its tenant."""
        return not self._unusable and self._alive

    def session(self, limits: Limits, type_stubs: str | None = None) -> MontySession:
        """Returns a session with a new namespace. With `type_stubs`, code is type-checked before it runs."""
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

    def run(self, code: str, inputs: Mapping[str, JsonValue], limits: Limits) -> BlockResult:
        """Calls the block's `run` once. After any fault, the worker is not reused."""
        printed = PrintedText(limits.output_bytes, self.kill)
        cpu_before = self._cpu_seconds()
        started = time.monotonic()
        try:
            with self.session(limits) as session:
                outcome = call_block(session, code, inputs, limits, printed)
        except MontyError as error:  # the worker died before the code was sent
            outcome = crash_fault(error)
        wall = time.monotonic() - started
        cpu = self._cpu_seconds()
        problem = outcome if isinstance(outcome, Fault) else None
        if printed.exceeded:
            problem = fault(FaultKind.OUTPUT, f"the block printed more than {limits.output_bytes} bytes")
        elif problem is not None and problem.kind in (FaultKind.TIME, FaultKind.CRASHED):
            problem = _corrected_by_time(problem, wall, limits.wall_seconds)
        self._unusable = self._unusable or problem is not None or self._is_worn(cpu)
        cpu_used = None if cpu is None or cpu_before is None else cpu - cpu_before
        if problem is not None or isinstance(outcome, Fault):
            return BlockResult(fault=problem, output=printed.text, wall_seconds=wall, cpu_seconds=cpu_used)
        return BlockResult(outcome.json, outcome.size_bytes, None, printed.text, wall, cpu_used)

    def kill(self) -> None:
        """Kills the process immediately. A caller that waits for its answer receives an error.

        The inner process is killed, so that bubblewrap reaps it and exits. If bubblewrap died first, process 1 would
        have to reap the interpreter, and in a container process 1 may be this program.
        """
        self._unusable = True
        if self._interpreter is not None:
            with suppress(psutil.NoSuchProcess):
                self._interpreter.kill()

    def close(self) -> None:
        """Kills the process and releases the client."""
        self.kill()
        self._pool.__exit__(None, None, None)

    @property
    def _alive(self) -> bool:
        try:
            return str(self._launcher.status()) != psutil.STATUS_ZOMBIE and self._cpu_seconds() is not None
        except psutil.NoSuchProcess:
            return False

    def _is_worn(self, cpu: float | None) -> bool:
        """Returns whether the process may run out of CPU time or memory in the next run."""
        if cpu is None:
            return True
        cpu_limit = self._settings.cpu_seconds
        if cpu_limit is not None and cpu > cpu_limit - 2 * self._settings.ceiling.wall_seconds - 2:
            return True
        return self._data_bytes() - self._first_bytes > _MAX_GROWTH_BYTES

    def _cpu_seconds(self) -> float | None:
        """Returns the CPU time of the process since its start, or None if the process has ended."""
        try:
            if sys.platform != "linux":
                return sum(psutil.Process(self.pid).cpu_times()[:2])
            # The clock of another process, as in clock_getcpuclockid(3): nanosecond resolution in one call.
            return time.clock_gettime((~self.pid << 3) | 2)
        except (OSError, psutil.NoSuchProcess):
            return None

    def _data_bytes(self) -> int:
        """Returns the writable memory, used or not, that RLIMIT_DATA counts; 0 if the kernel does not report it."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0


def _corrected_by_time(problem: Fault, wall: float, limit: float) -> Fault:
    """Corrects the kind of a fault by the elapsed time. A block can raise a time-out itself, and a crash can be the end
    of its time."""
    if wall >= limit:
        return fault(FaultKind.TIME, f"the block exceeded its time limit of {limit:g} s", problem.line)
    kind = FaultKind.RAISED if problem.kind is FaultKind.TIME else problem.kind
    return fault(kind, problem.message, problem.line)


@dataclass(frozen=True, slots=True)
class Value:
    """A value that a block returned."""

    json: JsonValue
    size_bytes: int
    """Its length as JSON text."""


class InvalidValue(Exception):
    """A block's text is not a valid value. The message is for the model."""

    def __init__(self, message: str, kind: FaultKind = FaultKind.VALUE) -> None:
        super().__init__(message)
        self.kind = kind


def read_value(text: object, max_bytes: int) -> Value:
    """Parses the value and checks that Postgres can store it.

    The block controls the JSON text that the worker sent, so it is not trusted.

    Raises: InvalidValue.
    """
    if not isinstance(text, str):
        raise InvalidValue("the block hid the end marker of its output")
    if len(text) > max_bytes:  # `dumps` writes ASCII, so that one character is one byte
        raise InvalidValue(f"the return value exceeds {max_bytes} bytes as JSON", FaultKind.OUTPUT)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidValue("the return value is not valid JSON; a number may be too long") from None
    _check(value, MAX_DEPTH)
    return Value(value, len(text))


def _check(value: Any, depth: int) -> None:
    """Raises: InvalidValue for a value that cannot be stored."""
    if isinstance(value, str) and not is_clean(value):
        raise InvalidValue("a string in the return value contains a NUL character or a lone surrogate")
    if not isinstance(value, list | dict):
        return
    if depth == 0:
        raise InvalidValue(f"the return value is nested deeper than {MAX_DEPTH} levels")
    for part in value if isinstance(value, list) else (*value, *value.values()):
        _check(part, depth - 1)


class PrintLimitExceeded(Exception):
    """The block printed more than its limit."""


class PrintedText:
    """Collects printed text and calls `stop` at the first byte beyond the limit. Without it, a block that prints
    endlessly would run until its time limit."""

    def __init__(self, max_bytes: int, stop: Callable[[], None]) -> None:
        self._parts: list[str] = []
        self._bytes_left = max_bytes
        self._stop = stop

    def __call__(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Adds printed text.

        Raises: PrintLimitExceeded.
        """
        if self._bytes_left < 0:
            raise PrintLimitExceeded
        raw = text.encode(errors="replace")
        self._parts.append(raw[: self._bytes_left].decode(errors="ignore"))
        self._bytes_left -= len(raw)
        if self._bytes_left < 0:
            self._stop()
            raise PrintLimitExceeded

    @property
    def exceeded(self) -> bool:
        """True if the block printed more than its limit."""
        return self._bytes_left < 0

    @property
    def text(self) -> str:
        """The printed text, cut at the limit."""
        return "".join(self._parts)


_TAIL = """

perdure_value = run(**perdure_inputs)
from json import dumps as perdure_dumps
perdure_dumps(perdure_value, allow_nan=False, separators=(",", ":"))"""
"""Appended to the code, on separate lines. The interpreter's modules are read-only, so a block cannot replace `dumps`.
"""


def call_block(
    session: MontySession, code: str, inputs: Mapping[str, JsonValue], limits: Limits, printed: PrintedText
) -> Value | Fault:
    """Runs the code and returns the value, or why there is none. The program is one call of the block's `run`. Only
    JSON text is returned. A block's own value could be a few lists that represent 2^40 elements (measured: it arrives
    as a list that hangs any code that walks it). So `json.dumps` runs last in the worker, under its limits. The code is
    parsed in the worker only."""
    if len(code) > MAX_CODE_CHARACTERS:
        return fault(FaultKind.CODE, f"the block exceeds {MAX_CODE_CHARACTERS} characters")
    try:
        text = session.feed_run(code + _TAIL, inputs={"perdure_inputs": dict(inputs)}, print_callback=printed)
        return read_value(text, limits.output_bytes)
    except InvalidValue as invalid:
        return fault(invalid.kind, str(invalid))
    except (MontySyntaxError, MontyRuntimeError) as error:
        return _error_fault(error, code.count("\n") + 1)
    except (MontyConversionError, ValueError, TypeError, OverflowError) as error:
        return fault(FaultKind.INPUTS, f"the inputs cannot be passed to the block: {error}")
    except MontyError as error:
        return crash_fault(error)
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        return crash_fault(error)


def crash_fault(error: BaseException) -> Fault:
    """Returns the fault of a run whose worker has died."""
    return fault(FaultKind.CRASHED, f"the block ended its interpreter: {error}")


def _error_fault(error: MontySyntaxError | MontyRuntimeError, lines: int) -> Fault:
    """Returns the fault for an error that a block of `lines` lines raised."""
    cause, message = error.exception(), error.display("type-msg")
    line_numbers = [frame.line for frame in error.traceback()]
    line = next((line for line in reversed(line_numbers) if line <= lines), None)
    if isinstance(error, MontySyntaxError) or isinstance(cause, NotImplementedError):
        return fault(FaultKind.CODE, message, line)
    for limit, kind in _LIMITS.items():
        if isinstance(cause, limit):
            return fault(kind, message, line)
    if not line_numbers and message.startswith("UnicodeEncodeError"):  # the block had not started
        return fault(FaultKind.INPUTS, f"the inputs cannot be passed to the block: {message}")
    if line is None and lines + _CALL_LINE in line_numbers:
        kind = FaultKind.CODE if isinstance(cause, NameError) else FaultKind.INPUTS
        return fault(kind, f"the function `run` cannot be called: {message}")
    if line is None and lines + _DUMP_LINE in line_numbers:
        return fault(FaultKind.VALUE, f"the return value cannot be written as JSON: {message}")
    return fault(FaultKind.RAISED, message, line)
