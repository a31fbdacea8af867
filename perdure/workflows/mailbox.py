"""The mailbox of a turn: whether a bell rang, and whether the turn is to stop. It rides through every continue-as-new.

A bell only says "look", also the bell of a stop: anyone may ring it. The run that hears one reads the turn's record, by
one look at a time however many rang, and stops where the record says that it was asked to; else it was a ring.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from perdure.contracts.activities import search_values
from perdure.contracts.turns import Carried, TurnInput

T = TypeVar("T")
Look = Callable[[], Coroutine[Any, Any, bool]]
STOP = "stop"


class Mailbox:
    """Filled by sync signal handlers. However many bells ring, they say one thing: look again."""

    def __init__(self, carried: Carried | None) -> None:
        self.rung = carried.rung if carried else False
        self.stop = carried.stop if carried else False
        """The turn is to stop: its record says so, or its workflow was cancelled."""
        self.stop_rung = carried.stop_rung if carried else False
        """A bell says so, and the record has not been looked at since."""
        self._look: Look | None = None
        self._looking: asyncio.Task[None] | None = None
        self._on_stop: Callable[[], None] | None = None

    def put(self, heard: Sequence[object]) -> None:
        """Take a signal's arguments, meant to be one `Bell`. Anyone may ring, any number of times, with anything: what
        is not a stop is a ring, and nothing of it may fail, or the run would hang on it for ever."""
        bell = heard[0] if heard else None
        if not isinstance(bell, Mapping) or bell.get("kind") != STOP:
            self.rung = True
            return
        self.stop_rung = True
        self._look_soon()

    async def uncancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. A cancel of the workflow from outside does not break it off: it is a stop of its own,
        so that the turn ends as stopped, with its records closed.

        A worker that drops the run cancels `work` too, which then ends. Signals are handed over before anything else of
        a workflow task, so none comes between the end of `work` and the end of the run.
        """
        task = asyncio.create_task(work)
        while not task.done():
            try:
                await workflow.wait([task])
            except asyncio.CancelledError:
                self._stop()
        return task.result()

    def open(self, look: Look, on_stop: Callable[[], None]) -> None:
        """From now on a stop's bell is confirmed by `look`, also one that rang before; `on_stop` is what a stop does at
        once to the run that is under way."""
        self._look, self._on_stop = look, on_stop
        self._look_soon()

    async def confirmed(self) -> None:
        """Back when the look that is under way, if any, has ended; bells that rang meanwhile are for the next."""
        if self._looking is not None:
            await self._looking

    async def close(self) -> None:
        """No look begins from now on, so none is under way when the run ends; a stop that still rings is carried on."""
        self._look = None
        await self.confirmed()

    def looked(self) -> None:
        """The records are read after the bells so far: these have done their work."""
        self.rung = False

    def _look_soon(self) -> None:
        if self._look is not None and self._looking is None and self.stop_rung and not self.stop:
            self._looking = asyncio.create_task(self._confirm(self._look))

    async def _confirm(self, look: Look) -> None:
        self.stop_rung = False
        asked = await look()
        self._looking = None
        if asked:
            self._stop()
            return
        self.rung = True
        self._look_soon()

    def _stop(self) -> None:
        self.stop = True
        if self._on_stop is not None:
            self._on_stop()


# --- Search attributes in Temporal's own form.


def attributes(turn: TurnInput, status: str) -> TypedSearchAttributes:
    """Tenant, agent, conversation and status of a turn."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_keyword(name), value)
            for name, value in search_values(turn, status).items()
        ]
    )
