"""Reads an exception of a tool: its place, its line for people, whether another attempt can end otherwise, and what is
known of an effect."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType, MappingProxyType

from pydantic import JsonValue, ValidationError

from perdure.contracts.calls import KnownEnd

CODE_ERRORS: tuple[type[Exception], ...] = (
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    NotImplementedError,
    AssertionError,
    ArithmeticError,
    RecursionError,
    LookupError,
    ValueError,
    StopIteration,
    StopAsyncIteration,
)
"""Errors of the tool's own code, so that another attempt changes nothing."""
_UNREADABLE_NAMES = frozenset({"JSONDecodeError", "DecodeError", "TOMLDecodeError"})
"""The names of ValueErrors of simplejson, ujson, python-rapidjson, msgspec and tomllib for a text in another format."""
_UNREADABLE_TYPE = "json_invalid"
"""The type of pydantic's error for a text that is not JSON."""
MAX_MESSAGE_CHARACTERS = 200
_MAX_CAUSES = 8
_FIRST_FRAMES, _LAST_FRAMES = 5, 15
_ENGINE = ("perdure", "asyncio")
_STOPS = (StopIteration, StopAsyncIteration)
_STOP_SENTENCES = tuple(
    (f"{raiser} raised {stop.__name__}",) for raiser in ("coroutine", "generator", "async generator") for stop in _STOPS
)
"""The arguments of the RuntimeErrors that Python raises in place of these two."""
_SENTENCES: Mapping[KnownEnd, str] = MappingProxyType(
    {
        KnownEnd.RAISED_BEFORE_SEND: "the tool raised an error before context.send sent a request that can change "
        "something; another client of the tool may have sent one",
        KnownEnd.RAISED_AFTER_SEND: "the tool raised an error after its request was sent",
        KnownEnd.RAISED: "the tool raised an error; which requests it had sent is not known",
        KnownEnd.ANSWERED_ERROR: "the target answered with an error",
        KnownEnd.ANSWER_NOT_READ: "the target answered, but its answer could not be read",
        KnownEnd.NO_ANSWER: "the connection ended before the target answered",
        KnownEnd.TIMED_OUT: "the call exceeded its time limit",
        KnownEnd.STOPPED: "the turn was stopped while the call was running",
        KnownEnd.EARLIER_ATTEMPT: "an earlier attempt may have reached the target; the last one did nothing",
        KnownEnd.WORKER_LOST: "the worker that ran the call was lost, or could not record its end",
        KnownEnd.WORKER_HUNG: "the call made its worker hang, which was ended before it could record the end",
        KnownEnd.TURN_ENDED: "the turn ended before the end of the call was recorded",
    }
)


_MAX_NAME_CHARACTERS = 100


def is_permanent(error: BaseException, retried: Sequence[type[Exception]] = (), *, has_answer: bool = False) -> bool:
    """Returns whether another attempt would raise the same error. `retried` are the errors that the tool declares as
    worth another attempt. `has_answer` is true if the target has answered a request of this attempt.

    An OSError is never permanent, also if it is a ValueError: a certificate that is not valid yet, and the errors of
    some HTTP clients, are both. What is not an Exception is always permanent, such as the SystemExit of `sys.exit()` or
    the CancelledError of a task that the tool cancelled itself. A group is permanent if all its errors are.
    """

    def is_one(error: BaseException) -> bool:
        if isinstance(error, (OSError, *retried)) or (has_answer and is_unreadable(error)):
            return False
        return isinstance(error, CODE_ERRORS) or not isinstance(error, Exception)

    return all(is_one(each) for each in errors_in(error))


def is_unreadable(error: BaseException) -> bool:
    """Returns whether a text is in another format, such as HTML in place of JSON. The next answer may be readable. An
    error of pydantic counts if all its parts are of that kind: a readable answer without a field is not."""
    if isinstance(error, ValidationError):
        parts = error.errors(include_url=False, include_context=False, include_input=False)
        return all(part["type"] == _UNREADABLE_TYPE for part in parts)
    is_own = isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
    return is_own or type(error).__name__ in _UNREADABLE_NAMES


def class_name(error: BaseException) -> str:
    """Returns the name of the error's class, of a group its first. It is a Python name, also if the class was made with
    another text as its name, which can contain data."""
    name = type(unwrapped(error)).__name__
    return name if name.isidentifier() and len(name) <= _MAX_NAME_CHARACTERS else "Exception"


def unwrapped(error: BaseException) -> BaseException:
    """Returns the first error of a group, as a TaskGroup raises it, or the error that a RuntimeError replaces."""
    return errors_in(error)[0]


class Replacement(RuntimeError):
    """Replaces an error that a future or the worker's loop cannot carry. Its cause is that error."""


class UnusableResult(TypeError):
    """A function returned what cannot be its result. It has ended then, so no frame shows it."""

    def __init__(self, message: str, function: Callable[..., object]) -> None:
        super().__init__(message)
        self.function = function


def replaced(error: BaseException) -> Replacement:
    """Returns a RuntimeError in place of what a future or the worker's loop cannot carry, such as StopIteration or
    SystemExit. Its cause is that error, which has the place."""
    replacement = Replacement(f"the tool raised {type(error).__name__}")
    replacement.__cause__ = error
    return replacement


def errors_in(error: BaseException) -> list[BaseException]:
    """Returns the errors of a group, of a RuntimeError that replaces one its cause, and of any other error itself."""
    if isinstance(error, BaseExceptionGroup):
        return [each for part in error.exceptions for each in errors_in(part)]
    cause = error.__cause__
    is_of_python = type(error) is RuntimeError and isinstance(cause, _STOPS) and error.args in _STOP_SENTENCES
    return errors_in(cause) if cause is not None and (isinstance(error, Replacement) or is_of_python) else [error]


@dataclass(frozen=True, slots=True)
class Frame:
    """A line that was running when an error was raised."""

    place: str
    """The file below the app's folder, or the module of other code."""
    line: int
    function: str
    in_app: bool

    def __str__(self) -> str:
        return f"{self.place}:{self.line} in {self.function}"


def frames_of(error: BaseException, folder: Path | None) -> list[Frame]:
    """Returns the frames of the author's code and of what it called, outermost first, without values.

    If the error has none in the app's `folder`, those of its cause count, and then those of its group. The time limit
    of a call is raised outside the tool, and its cause where the tool waited. An unusable result without a cause in the
    app has the line at which its function begins, with its decorators.
    """
    first = unwrapped(error)
    found = [_author_frames(each, folder) for each in (*_causes(first), *_causes(error))]
    function = first.function if isinstance(first, UnusableResult) else None
    code: CodeType | None = getattr(function, "__code__", None)
    if code is not None:
        found.append([_frame(code, code.co_firstlineno, getattr(function, "__module__", "?"), _root(folder))])
    usual = found[0] if code is None else found[-1]
    frames = next((each for each in found if any(frame.in_app for frame in each)), usual)
    return frames if len(frames) <= _FIRST_FRAMES + _LAST_FRAMES else frames[:_FIRST_FRAMES] + frames[-_LAST_FRAMES:]


def failure_text(error: BaseException, message: str, frames: Sequence[Frame]) -> str:
    """Returns the line for people: `KeyError: 'missing' at tools/desk.py:41`. Of a group, it names the first error."""
    errors = errors_in(error)
    name = class_name(error)
    place = next((frame for frame in reversed(frames) if frame.in_app), frames[-1] if frames else None)
    where, count = f" at {place.place}:{place.line}" if place else "", len(errors)
    return f"{name}{f': {message}' if message else ''}{where}{f' (first of {count} errors)' if count > 1 else ''}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        context = None if cause.__suppress_context__ else cause.__context__
        cause = context if cause.__cause__ is None else cause.__cause__


def _author_frames(error: BaseException, folder: Path | None) -> list[Frame]:
    walked, root = [(frame, line) for frame, line in walk_tb(error.__traceback__)], _root(folder)
    read = [_frame(frame.f_code, line, _module(frame), root) for frame, line in walked]
    of_app = next((number for number, frame in enumerate(read) if frame.in_app), None)
    of_others = (number for number, (frame, _) in enumerate(walked) if _module(frame).split(".")[0] not in _ENGINE)
    first = of_app if of_app is not None else next(of_others, 0)
    return read[first:]


def _root(folder: Path | None) -> Path | None:
    return folder.resolve() if folder is not None else None


def _frame(code: CodeType, line: int, module: str, root: Path | None) -> Frame:
    path, function = Path(code.co_filename).resolve(), code.co_name
    if root is not None and path.is_relative_to(root) and "site-packages" not in path.relative_to(root).parts:
        return Frame(path.relative_to(root).as_posix(), line, function, in_app=True)
    return Frame(module, line, function, in_app=False)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))


def known(code: KnownEnd, request: str = "", words: str = "") -> dict[str, JsonValue]:
    """Returns what is known of an effect, as it is stored: its code, and a sentence with the request that was sent and
    the target's words, if there are any."""
    details = f"{f': {words}' if words else ''}{f'; {request}' if request else ''}"
    return {"code": code.value, "message": f"{_SENTENCES[code]}{details}"}


def known_of_attempts(ends: Sequence[Mapping[str, JsonValue]], *, lost: int, hung: int = 0) -> dict[str, JsonValue]:
    """Returns `known`, and `failure` if there is one, of a call from those of its attempts, newest first. `lost` is the
    number of attempts that did not end. In `hung` of them, the call made its worker hang. The code is that of the
    newest attempt that ended, if any."""
    others = [known(KnownEnd.WORKER_HUNG if hung > 0 else KnownEnd.WORKER_LOST)] if lost > 0 else []
    every = [*ends, *others] or [known(KnownEnd.EARLIER_ATTEMPT)]
    code, sentences = every[0]["code"], dict.fromkeys(str(end["message"]) for end in every)
    if len(sentences) > 1 and code == KnownEnd.RAISED_BEFORE_SEND.value:
        code = KnownEnd.EARLIER_ATTEMPT.value
    failures = [end["failure"] for end in ends if end.get("failure")]
    data: dict[str, JsonValue] = {"known": {"code": code, "message": "; another attempt: ".join(sentences)}}
    return {**data, "failure": failures[0]} if failures else data
