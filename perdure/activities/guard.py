"""What surrounds every activity: heartbeats while it runs, and errors made fit for a history when it fails."""

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
BEAT_SECONDS = 0.8
"""Under a second, so that a cancellation reaches the activity about as fast; a short activity never beats."""


@asynccontextmanager
async def edge() -> AsyncIterator[None]:
    """Beat for as long as the block runs; a killed worker is noticed when the beats stop.

    Our own errors and the database's leave as Temporal's, without the vendor's text: it may quote rows, and Temporal
    would store it.
    """
    beat = _Beat()
    try:
        yield
    except PerdureError as error:
        raise to_temporal(error) from None
    except FailureError:
        raise
    except Exception as error:  # whatever it is, its text may quote a row or a payload
        raise to_temporal(store_error(error)) from None
    finally:
        beat.end()


async def uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which a cancellation that arrives meanwhile does not break off."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    return task.result()


class _Beat:
    """A timer and no task: most activities end before it fires. A call inside a workflow task has no heartbeat."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        if not activity.info().is_local:
            self._wait()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        activity.heartbeat()
        self._wait()


def stop_asked() -> bool:
    """Whether a cancellation that just arrived is the turn's stop, and not this worker's own shutdown."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


def this_attempt() -> tuple[str, int]:
    """(run id, attempt number) of the activity that runs here."""
    info = activity.info()
    return info.workflow_run_id or "", info.attempt


# --- Errors at the edge: a vendor's exception becomes one of ours, ours becomes Temporal's.
# Two doors in a row. perdure/activities/providers/errors.py is the first. `to_temporal` is the last thing an activity
# does with an error; perdure/workflows/activity_calls.py makes data of it again. What a tool raises is read by
# perdure/activities/tool_execution.py, and what Valkey raises where it is used (perdure/store/): losing it fails
# nothing.
#
# Nothing of a vendor's text passes: it may quote the payload, and Temporal stores failures unencrypted and cuts them
# at 4 KiB. What passes is code, sentence, wait, class name and status.

MESSAGE_CHARACTERS = 300
"""A problem's sentence is cut here on its way into a history."""


def to_temporal(error: PerdureError) -> temporal.ApplicationError:
    """`error` as an activity raises it: type is the code, a wait that was asked for is the next delay (60 s at most).

    The chain of causes is left out: Temporal would store the vendor's text with it.
    """
    problem = error.as_problem()
    detail = problem.model_copy(update={"message": problem.message[:MESSAGE_CHARACTERS]}).model_dump(mode="json")
    failure = temporal.ApplicationError(
        detail["message"],
        {**detail, "family": type(error).__name__, **_small(error.details)},
        type=error.code,
        non_retryable=not error.retryable,
        next_retry_delay=next_delay(problem.retry_after_seconds),
    )
    failure.__suppress_context__ = True
    return failure


def _small(details: Mapping[str, object]) -> dict[str, object]:
    """Details that are surely small: numbers, flags, short strings; eight of them at most."""
    small = {
        name: value
        for name, value in details.items()
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 120)
    }
    return dict(list(small.items())[:8])
