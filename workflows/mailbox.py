"""The mailbox of a turn: whether a bell rang, and whether a stop was asked. It rides through every continue-as-new."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from temporalio import workflow

from contracts.turns import Carried

T = TypeVar("T")
STOP = "stop"


class Mailbox:
    """Filled by sync signal handlers. However many bells ring, they say one thing: look again."""

    def __init__(self, carried: Carried | None) -> None:
        self.rung = carried.rung if carried else False
        self.stop = carried.stop if carried else False
        self._on_stop: Callable[[], None] | None = None

    def put(self, heard: Sequence[object]) -> None:
        """Take a signal's arguments, meant to be one `Bell`. Anyone may ring, any number of times, with anything: what
        is not a stop is a ring, and nothing of it may fail, or the run would hang on it for ever."""
        bell = heard[0] if heard else None
        if not isinstance(bell, Mapping) or bell.get("kind") != STOP:
            self.rung = True
            return
        self._stop()

    async def uncancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. A cancel of the workflow from outside does not break it off: it is heard as a stop, so
        that the turn ends as stopped, with its records closed.

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

    def when_stopped(self, act: Callable[[], None]) -> None:
        """What a stop does at once to the run that is under way."""
        self._on_stop = act

    def looked(self) -> None:
        """The records are read after the bells so far: these have done their work."""
        self.rung = False

    def _stop(self) -> None:
        self.stop = True
        if self._on_stop is not None:
            self._on_stop()
