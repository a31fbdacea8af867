"""The wrapper of every activity: heartbeats while it runs, and errors that are safe for Temporal's history."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from temporalio import activity
from temporalio import exceptions as temporal
from temporalio.exceptions import FailureError

from perdure.activities.providers.errors import store_error
from perdure.contracts.errors import PerdureError
from perdure.core.calls.retries import next_delay

T = TypeVar("T")
HEARTBEAT_SECONDS = 0.8
"""Less than a second, so that a cancellation reaches the activity within that time. A short activity never sends a
heartbeat."""
SENDING_SECONDS = 0.3
"""The time in which a heartbeat reaches Temporal, also if the SDK holds it back after another (0.2 s)."""
WAITS = frozenset({"tool_not_here", "on_hold"})
"""Codes of calls that wait and did not fail: the SDK writes no traceback for each of their attempts."""
MAX_MESSAGE_CHARACTERS = 300
"""Maximum length of a problem's message in Temporal's history."""


@asynccontextmanager
async def activity_guard() -> AsyncIterator["Heartbeats"]:
    """Sends heartbeats while the block runs, so that Temporal notices a killed worker when they stop.

    Perdure's and the database's errors become Temporal errors without the vendor's text, which may quote rows and which
    Temporal would store.

    Raises: FailureError in place of every other exception of the block.
    """
    heartbeats = Heartbeats()
    try:
        yield heartbeats
    except PerdureError as error:
        raise to_temporal(error) from None
    except FailureError as error:
        error.__cause__ = None  # and no context: Temporal would store either
        raise
    except Exception as error:  # any error text may quote a row or a payload
        raise to_temporal(store_error(error)) from None
    finally:
        heartbeats.end()


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`. A cancellation that arrives while it runs does not interrupt it."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    return task.result()


class Heartbeats:
    """Sends heartbeats from a timer, not a task, because most activities end before it fires. Local activities have no
    heartbeat.

    A heartbeat carries what the activity has recorded. Temporal gives it to the next attempt, also if this one's worker
    is lost.
    """

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        info = activity.info()
        self._recorded: tuple[object, ...] = () if info.is_local else tuple(info.heartbeat_details)
        if not info.is_local:
            self._schedule()

    @property
    def recorded(self) -> object:
        """The value that this attempt or an earlier one recorded; None if there is none."""
        return self._recorded[0] if self._recorded else None

    async def record(self, value: object) -> None:
        """Sends a heartbeat with `value`, before the caller can block the loop. A repeated attempt also waits until it
        has arrived, because the caller may have ended the process of the first. Not for local activities."""
        self._recorded = (value,)
        activity.heartbeat(value)
        # The SDK's own task hands it over, to a thread that needs no Python.
        await asyncio.sleep(SENDING_SECONDS if activity.info().attempt > 1 else 0)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_SECONDS, self._send)

    def _send(self) -> None:
        activity.heartbeat(*self._recorded)
        self._schedule()


def cancelled_by_stop() -> bool:
    """Returns whether a cancellation that just arrived is the turn's stop, not this worker's shutdown."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


def is_cancelled() -> bool:
    """Returns whether the current task is being cancelled. If not, a CancelledError that arrives is of the code that it
    awaits, such as a tool that awaits a task which it cancelled itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def current_attempt() -> tuple[str, int]:
    """Returns (run id, attempt number) of the current activity."""
    info = activity.info()
    return info.workflow_run_id or "", info.attempt


def to_temporal(error: PerdureError) -> temporal.ApplicationError:
    """Converts `error` for an activity to raise. The type is the code; a requested delay becomes the next delay (60 s
    at most).

    The chain of causes is removed, because Temporal would store the vendor's text with it.

    A vendor's exception becomes one of Perdure's (perdure/activities/providers/errors.py), which becomes Temporal's
    here, in the last step of an activity. The workflow turns the error back into data
    (perdure/workflows/activity_calls.py). The exceptions of tools are handled in perdure/activities/tool_execution.py,
    those of Valkey in perdure/store/. Losing Valkey fails no activity.

    A vendor's text is never included: it may quote the payload, and Temporal stores failures unencrypted and cuts them
    at 4 KiB. Only code, message, delay, class name and status are kept.
    """
    problem = error.as_problem()
    detail = problem.model_copy(update={"message": problem.message[:MAX_MESSAGE_CHARACTERS]}).model_dump(mode="json")
    failure = temporal.ApplicationError(
        detail["message"],
        {**detail, "family": type(error).__name__, **_limited(error.details)},
        type=error.code,
        non_retryable=not error.retryable,
        next_retry_delay=next_delay(problem.retry_after_seconds),
        category=temporal.ApplicationErrorCategory.BENIGN
        if error.code in WAITS
        else temporal.ApplicationErrorCategory.UNSPECIFIED,
    )
    failure.__suppress_context__ = True
    return failure


def _limited(details: Mapping[str, object]) -> dict[str, object]:
    """Returns the details whose size is limited: numbers, flags and short strings; at most eight."""
    small = {
        name: value
        for name, value in details.items()
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 120)
    }
    return dict(list(small.items())[:8])
