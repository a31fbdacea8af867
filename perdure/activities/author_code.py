"""Runs the code of a tool's author within its time limit. What it raises becomes a value, so that every kind of call
treats time limits, cancellations and mistakes alike."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar, cast

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


async def run_author_code(work: Awaitable[T], seconds: float) -> T | Raised:
    """Returns the result of `work`, or what it raised. The code's own CancelledError counts as a mistake. It runs in a
    separate task, because it can cancel its current task.

    Raises: CancelledError if the current task is being cancelled, unless the code still returns or answers. Any other
    error counts as that cancellation, because the code may have raised it in its place.
    """
    raised: list[BaseException] = []

    async def attempt() -> T | None:
        try:
            return await work
        except BaseException as error:
            raised.append(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return None  # a task cannot carry every error

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            result = await asyncio.create_task(attempt())
            if raised:
                raise raised[0]
            return cast("T", result)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        return Raised(replaced(raised[0] if raised else error))
    except Exception as error:  # an author's code can raise anything
        if limit.expired() and raised and error is not raised[0]:
            error.__cause__ = raised[0]  # it has the line that waited
        ended = Raised(error, _is_time_limit(error, limit))
        if ended.answer is None and is_cancelled():
            raise asyncio.CancelledError from None  # no cause: Temporal would store its text
        return ended


def _is_time_limit(error: Exception, limit: asyncio.Timeout) -> bool:
    """Returns whether the engine's time limit ended the code. `context.send` may notice it first."""
    kind = TimeoutError if limit.expired() else CallTimeout
    return all(isinstance(each, kind) for each in errors_in(error))
