"""What one stretch of a turn keeps in hand, from its start or a pause to the next pause or its end.

Its ports share it. The engine's step counter is here: it names model calls and their tool calls, so that a replay and
a later run of the same turn name them alike. Events of pure nodes wait here for the next activity, which writes them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from pydantic import JsonValue
from temporalio.exceptions import ActivityError

from perdure.contracts.activities import TURNS_READ, ActivityRef, OpenAsk
from perdure.contracts.approvals import RequestRef
from perdure.contracts.errors import Problem
from perdure.contracts.events import PendingEvent
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import Carried, StopAsk, TurnInput
from perdure.core.calls.ledger import STOPPED
from perdure.graph.nodes.fields import requests_of
from perdure.graph.spec import State
from perdure.workflows.activity_calls import Calls, problem_of
from perdure.workflows.mailbox import Mailbox


class Carrier(Protocol):
    """The input of an activity that writes the events which wait."""

    @property
    def events(self) -> tuple[PendingEvent, ...]:
        """Taken by `take_events`."""
        ...


Given = TypeVar("Given", bound=Carrier)
Out = TypeVar("Out")


class Stretch:
    """The shared part of one run's ports, and what the run leaves behind for the next."""

    def __init__(self, turn: TurnInput, mailbox: Mailbox, *, strict: bool = False) -> None:
        carried = turn.carried
        self.turn = turn
        self.strict = strict
        """The turn's topology asks no provider twice."""
        self.mailbox = mailbox
        self.calls = Calls(turn.routing)
        self.steps = Steps(carried.step if carried else 0)
        self.asked: OpenAsk | None = None
        """What the pause opens when the run ends in it."""
        self.goes_on = False
        """What is asked there is not waited for: there is something to run beside it."""
        self.requests = carried.requests if carried else ()
        """What the pause waits for, as it was opened; expiry dates are here."""
        self.look_at: dict[str, datetime | None] = {}
        """By request: when its last verdict said that it is worth a look."""
        self.unopened: frozenset[str] = frozenset()
        """Requests that could not be opened and that the run goes on without (S0-68)."""
        self.events: list[PendingEvent] = list(carried.events) if carried else []
        self.events_made = carried.events_made if carried else 0
        self._carrying = False
        mailbox.open(self._stop_asked, self.calls.cancel)

    def take_events(self, *, alone: bool = False) -> tuple[PendingEvent, ...]:
        """The events that wait, for the activity that is about to be called: by `call`, unless it runs `alone`.

        None while an earlier call still carries some: of two that run side by side the later events might be written
        first, and the earlier ones would be taken for written (perdure/store/events/event_log.py goes by their
        numbers).
        """
        if self._carrying and not alone:
            return ()
        taken = tuple(self.events)
        self.events.clear()
        self._carrying = bool(taken) and not alone
        return taken

    async def call(
        self,
        ref: ActivityRef[Given, Out],
        given: Given,
        *,
        summary: str,
        timeout: timedelta | None = None,
        patience: timedelta | None = None,
    ) -> Out | Problem:
        """What the activity answers, or why it failed; after a stop, that is why.

        The events of a call that failed go to the next one; those that it did write are not written twice.
        """
        try:
            return await self.calls.make(ref, given, summary=summary, timeout=timeout, patience=patience)
        except ActivityError as error:
            self.events[:0] = given.events
            return STOPPED if self.mailbox.stop else problem_of(error)
        finally:
            if given.events:
                self._carrying = False

    async def _stop_asked(self) -> bool:
        """What the record says after a stop's bell; while Postgres is away it is tried again, and nothing is cancelled.

        What no attempt can read confirms nothing either; for a stop that stands in the record the relay rings again.
        """
        ask = StopAsk(address=self.turn.address)
        try:
            read = await self.calls.make(TURNS_READ, ask, summary="asked to stop?", stoppable=False)
        except ActivityError:
            return False
        return read.asked

    def go_on_without(self, ask: OpenAsk) -> None:
        """What this would have opened was asked of nobody; its events go to the next activity."""
        turn_id = self.turn.address.turn_id
        self.unopened = frozenset(approval_id(turn_id, gated.call_id) for gated in ask.gated)
        self.asked = None
        self.events[:0] = ask.events

    def waits_for(self, state: State) -> tuple[RequestRef, ...]:
        """What a pause waits for that opens nothing: what is open already, with the looks that their records name."""
        known = self.requests or tuple(requests_of(state, "pending_requests"))
        return tuple(
            request.model_copy(update={"look_at": self.look_at.get(request.request_id, request.look_at)})
            for request in known
        )

    def carried(self, state: Mapping[str, JsonValue], requests: tuple[RequestRef, ...]) -> Carried:
        """What the next run begins with, after a pause that waits for `requests`."""
        before = self.turn.carried
        unchanged = before is not None and self.asked is None and before.requests == requests
        return Carried(
            state=dict(state),
            requests=requests,
            rung=self.mailbox.rung,
            looks=before.looks + 1 if before is not None and unchanged else 0,
            stop=self.mailbox.stop,
            stop_rung=self.mailbox.stop_rung,
            step=self.steps.last,
            events=tuple(self.events),
            events_made=self.events_made,
        )


# --- The numbers of a run's steps, which name its model calls and the calls of its tools.
# Branches that run side by side count apart: each takes every so-manieth number from where the fork began. So the names
# of their calls follow from what each of them did, not from which was faster; a turn that is started again over its
# records finds the answers of its own calls under them, and no branch another one's.


class Steps:
    """A counter; the counters of branches reach back to the one that they began at."""

    def __init__(self, last: int = 0, *, stride: int = 1, above: "Steps | None" = None) -> None:
        self._last = last
        self._stride = stride
        self._above = above

    @property
    def last(self) -> int:
        """The last number taken, here or in a branch."""
        return self._last

    def take(self) -> int:
        """The next number."""
        self.reach(self._last + self._stride)
        return self._last

    def reach(self, step: int) -> None:
        """Count on from `step` at least."""
        if step > self._last:
            self._last = step
            if self._above is not None:
                self._above.reach(step)

    def apart(self, branches: int) -> Sequence["Steps"]:
        """A counter for each of so many branches; none of them ever takes a number of another's. Nothing is taken here
        before all of them have ended."""
        stride = self._stride * branches
        firsts = (self._last + (place + 1) * self._stride for place in range(branches))
        return tuple(Steps(first - stride, stride=stride, above=self) for first in firsts)
