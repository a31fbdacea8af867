"""A brief call that breaks once inside the workflow task, in the workers of this process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import ModuleType
from typing import Any

import pytest
from temporalio import activity

from perdure.activities import approvals, turns
from perdure.contracts.errors import UpstreamUnavailable
from perdure.store.turns import context


class Breaks(StrEnum):
    FAILS = "fails"
    HANGS = "hangs"
    """Past the time that a call inside the workflow task has."""


class Brief(StrEnum):
    """The brief calls, by the activity's name."""

    FINISH = "turns.finish"
    LOAD = "memory.load"
    READ = "approvals.read"
    STOP = "turns.read"


_WORK: dict[Brief, tuple[ModuleType, str]] = {
    Brief.FINISH: (turns, "finish"),
    Brief.LOAD: (context, "load_turn"),
    Brief.READ: (approvals, "read_verdicts"),
    Brief.STOP: (turns, "stop_requested"),
}
"""Where each has its transaction's work: `(tx, ask)` first."""


@contextmanager
def broken_inside(way: Breaks, brief: Brief = Brief.FINISH) -> Iterator[list[str]]:
    """The ids of the turns whose call broke; made as an ordinary activity it does its work."""
    broken: list[str] = []
    module, name = _WORK[brief]
    work = getattr(module, name)

    async def outside(tx: Any, ask: Any, *more: Any) -> Any:
        if not activity.info().is_local:
            return await work(tx, ask, *more)
        broken.append(ask.address.turn_id)
        if way is Breaks.HANGS:
            await asyncio.sleep(3600)
        raise UpstreamUnavailable("store_unavailable", "Postgres is not available.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, outside)
        yield broken
