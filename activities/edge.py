"""What surrounds every activity: heartbeats while it runs, and errors made fit for a history when it fails."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import FailureError

from activities.boundary import store_error, to_temporal
from contracts.errors import PerdureError

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
