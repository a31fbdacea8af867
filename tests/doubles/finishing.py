"""A finish that breaks once inside the workflow task, in the workers of this process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import pytest
from temporalio import activity

from activities import turns
from contracts.errors import UpstreamUnavailable
from contracts.turns import FinishAsk, Finished
from store.database import Connection
from store.finish import finish
from store.outbox import Note


class Breaks(StrEnum):
    """How it breaks."""

    FAILS = "fails"
    HANGS = "hangs"
    """Past the time that a call inside the workflow task has."""


@contextmanager
def broken_inside(way: Breaks) -> Iterator[list[str]]:
    """The ids of the turns whose finish broke; made as an ordinary activity it does its work."""
    broken: list[str] = []

    async def finish_outside(tx: Connection, ask: FinishAsk) -> tuple[Finished, Note | None]:
        if not activity.info().is_local:
            return await finish(tx, ask)
        broken.append(ask.address.turn_id)
        if way is Breaks.HANGS:
            await asyncio.sleep(3600)
        raise UpstreamUnavailable("store_unavailable", "Postgres is not available.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "finish", finish_outside)
        yield broken
