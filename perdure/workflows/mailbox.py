"""The mailbox of a turn: pending wake signals, and whether the turn must stop. Every continue-as-new carries it on.

A wake signal only means "read the record", also if it announces a stop, because any client can send it. The run reads
the turn's record, with one read at a time however many signals arrive. It stops if the record contains a stop request.
Otherwise the signal counts as an ordinary one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from perdure.contracts.activities import search_values
from perdure.contracts.turns import Carried, TurnInput

T = TypeVar("T")
ConfirmStop = Callable[[], Coroutine[Any, Any, bool]]
STOP = "stop"


class Mailbox:
    """The mailbox, filled by sync signal handlers. Any number of signals means the same: read the records again."""

    def __init__(self, carried: Carried | None) -> None:
        self.wake_pending = carried.rung if carried else False
        self.stop = carried.stop if carried else False
        """The turn must stop: its record contains a stop request, or its workflow was cancelled."""
        self.stop_pending = carried.stop_rung if carried else False
        """A signal announced a stop, and the record has not been read since."""
        self._confirm_stop: ConfirmStop | None = None
        self._confirming: asyncio.Task[None] | None = None
        self._on_stop: Callable[[], None] | None = None

    def put(self, arguments: Sequence[object]) -> None:
        """Handles the arguments of a signal, which should be one `WakeSignal`.

        Any client can send any number of signals with any arguments. All except a stop count as ordinary wake signals.
        The handler must not raise, because a failing handler would block the run forever.
        """
        signal = arguments[0] if arguments else None
        if not isinstance(signal, Mapping) or signal.get("kind") != STOP:
            self.wake_pending = True
            return
        self.stop_pending = True
        self._confirm_soon()

    async def uncancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`. A cancellation of the workflow does not abort it but counts as a stop.

        The turn then ends as stopped, with its records closed. If a worker drops the run, `work` is cancelled, too, and
        ends. Signals are delivered before anything else of a workflow task, so none arrives between the end of `work`
        and the end of the run.
        """
        task = asyncio.create_task(work)
        while not task.done():
            try:
                await workflow.wait([task])
            except asyncio.CancelledError:
                self._stop()
        return task.result()

    def open(self, confirm_stop: ConfirmStop, on_stop: Callable[[], None]) -> None:
        """Sets the functions for stop signals: `confirm_stop` confirms each one, earlier ones included.

        `on_stop` is the immediate effect of a stop on the current run.
        """
        self._confirm_stop, self._on_stop = confirm_stop, on_stop
        self._confirm_soon()

    async def await_confirmation(self) -> None:
        """Waits for the current read of the record, if there is one. Signals that arrive during it are for the next
        read."""
        if self._confirming is not None:
            await self._confirming

    async def close(self) -> None:
        """Starts no further reads, so that none is active when the run ends. A stop signal that is still pending is
        carried on."""
        self._confirm_stop = None
        await self.await_confirmation()

    def clear(self) -> None:
        """Clears the wake signals so far, because the records are read after them."""
        self.wake_pending = False

    def _confirm_soon(self) -> None:
        if self._confirm_stop is not None and self._confirming is None and self.stop_pending and not self.stop:
            self._confirming = asyncio.create_task(self._confirm(self._confirm_stop))

    async def _confirm(self, confirm_stop: ConfirmStop) -> None:
        self.stop_pending = False
        confirmed = await confirm_stop()
        self._confirming = None
        if confirmed:
            self._stop()
            return
        self.wake_pending = True
        self._confirm_soon()

    def _stop(self) -> None:
        self.stop = True
        if self._on_stop is not None:
            self._on_stop()


def attributes(turn: TurnInput, status: str) -> TypedSearchAttributes:
    """Returns the tenant, agent, conversation and status of a turn as search attributes."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_keyword(name), value)
            for name, value in search_values(turn, status).items()
        ]
    )
