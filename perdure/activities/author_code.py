"""Runs the code of a tool's author within its time limit. What it raises becomes a value, so that every kind of call
treats time limits, cancellations and mistakes alike."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from perdure.activities.guard import is_cancelled
from perdure.core.calls.failures import errors_in, replaced
from perdure.sdk.outcomes import CallTimeout, ToolRefused, ToolUnavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Raised:
    """An error that the code raised in place of its result."""

    error: Exception
    timed_out: bool = False
    """True if the engine's time limit ended the code, not a limit in the code."""

    @property
    def answer(self) -> ToolRefused | ToolUnavailable | None:
        """The tool's own answer, if the code raised nothing else. Of a group, as a TaskGroup raises it, the first
        refusal counts, because another attempt would be refused again. Without one, its first error counts."""
        errors = errors_in(self.error)
        answers = [each for each in errors if isinstance(each, ToolRefused | ToolUnavailable)]
        refusals = (each for each in answers if isinstance(each, ToolRefused))
        return next(refusals, answers[0]) if len(answers) == len(errors) else None


class NotStarted(asyncio.CancelledError):
    """The current task was cancelled before the code ran."""


@dataclass(frozen=True, slots=True)
class _Error:
    """An error of the code, as the result of its task."""

    error: Exception | asyncio.CancelledError


async def run_author_code(work: Coroutine[Any, Any, T], seconds: float) -> T | Raised:
    """Returns the result of `work`, or what it raised. The code's own CancelledError counts as a mistake. It runs in a
    separate task, because it can cancel its current task. A cancellation after its end changes nothing.

    Raises: CancelledError if the current task is being cancelled, unless the code still returns or answers. Any other
    error counts as that cancellation, because the code may have raised it in its place. NotStarted if it never ran.
    """
    has_started = False

    async def attempt() -> T | _Error:
        nonlocal has_started
        has_started = True
        try:
            return await work
        except (Exception, asyncio.CancelledError) as error:
            return _Error(error)  # a task cannot carry every error
        except BaseException as error:
            return _Error(replaced(error))

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            end = await _end_of(asyncio.create_task(attempt()))
            if isinstance(end, _Error):
                raise end.error
            return end
    except asyncio.CancelledError as error:
        if not is_cancelled():
            return Raised(replaced(error))
        if has_started:
            raise
        raise NotStarted from None
    except Exception as error:  # an author's code can raise anything
        ended = Raised(error, _is_time_limit(error, limit))
        if ended.answer is None and is_cancelled():
            raise asyncio.CancelledError from None  # no cause: Temporal would store its text
        return ended
    finally:
        if not has_started:
            work.close()


async def _end_of(task: asyncio.Task[T]) -> T:
    """Returns the result of the task, also if a cancellation arrives between the task's end and this function's next
    step."""
    try:
        return await task
    except asyncio.CancelledError:
        if task.cancelled() or not task.done():
            raise
        return task.result()


def _is_time_limit(error: Exception, limit: asyncio.Timeout) -> bool:
    """Returns whether the engine's time limit ended the code. `context.send` may notice it first."""
    kind = TimeoutError if limit.expired() else CallTimeout
    return all(isinstance(each, kind) for each in errors_in(error))
