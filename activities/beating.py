"""Heartbeats: a killed worker is noticed when they stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

BEAT_SECONDS = 0.8
"""Under a second, so that a cancellation reaches the activity about as fast; a short activity never beats."""


@asynccontextmanager
async def beating() -> AsyncIterator[None]:
    """Beat for as long as the block runs."""
    beats = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beats.cancel()


async def _beat() -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        activity.heartbeat()


def stop_asked() -> bool:
    """Whether a cancellation that just arrived is the turn's stop, and not this worker's own shutdown."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


def this_attempt() -> tuple[str, int]:
    """(run id, attempt number) of the activity that runs here."""
    info = activity.info()
    return info.workflow_run_id or "", info.attempt
