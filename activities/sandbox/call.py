"""One call of a block's `run`: the program that is fed, and what its end means.

Invariants:
- Only JSON text comes back. A block's own value could be a few lists that stand for 2^40 (measured: it arrives as a
  list that hangs whatever walks it), so the last thing that runs in the worker is `json.dumps`, under its limits.
- The code is never parsed here, only there.
"""

from collections.abc import Mapping

from pydantic import JsonValue
from pydantic_monty import MontyConversionError, MontyError, MontyRuntimeError, MontySession, MontySyntaxError

from activities.sandbox.limits import Limits
from activities.sandbox.printed import Printed
from activities.sandbox.ran import Fault, FaultKind, fault
from activities.sandbox.value import Unfit, Value, read_value

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
