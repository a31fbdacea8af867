"""The data of one segment of a turn: one run, from the start, a pause or a renewal to the next of them or to the end.

The ports of the run share it. It contains the engine's step counter, which names model calls and their tool calls, so
that a replay and a later run of the same turn use the same names. It also keeps the events of pure nodes for the next
activity, which writes them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from pydantic import JsonValue
from temporalio.exceptions import ActivityError

from perdure.contracts.activities import TURNS_READ, ActivityRef, OpenRequest
from perdure.contracts.approvals import RequestRef
from perdure.contracts.errors import Problem
from perdure.contracts.events import PendingEvent
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import Carried, StopRequest, TurnInput
from perdure.core.calls.ledger import STOPPED
from perdure.graph.nodes.fields import folded_patch, requests_of
from perdure.graph.spec import State
from perdure.workflows.activity_calls import Calls, problem_of
from perdure.workflows.mailbox import Mailbox


class EventCarrier(Protocol):
    """The input of an activity that writes the kept events."""

    @property
    def events(self) -> tuple[PendingEvent, ...]:
        """The events from `take_events`."""
        ...


In = TypeVar("In", bound=EventCarrier)
Out = TypeVar("Out")


class TurnSegment:
    """The shared part of one run's ports, and the data that the run leaves for the next."""

    def __init__(self, turn: TurnInput, mailbox: Mailbox, *, strict: bool = False, folds: bool = False) -> None:
        carried = turn.carried
        self.turn = turn
        self.strict = strict
        """The turn's topology calls no provider twice."""
        self.folds = folds
        """The turn's topology accepts settled rounds as ranges of steps."""
        self.mailbox = mailbox
        self.calls = Calls(turn.routing)
        self.steps = Steps(carried.step if carried else 0)
        self.to_open: OpenRequest | None = None
        """The requests that the pause opens if the run ends in it."""
        self.continues = False
        """The run does not wait for these requests, because other work can run in the meantime."""
        self.requests = carried.requests if carried else ()
        """The requests of the pause as they were opened, with their expiry dates."""
        self.check_times: dict[str, datetime | None] = {}
        """The time to check each request again, according to its last verdict."""
        self.unopened: frozenset[str] = frozenset()
        """Requests that could not be opened and that the run skips."""
        self.events: list[PendingEvent] = list(carried.events) if carried else []
        self.events_made = carried.events_made if carried else 0
        self._carrying = False
        mailbox.open(self._stop_requested, self.calls.cancel)

    def take_events(self, *, alone: bool = False) -> tuple[PendingEvent, ...]:
        """Returns the kept events for the next activity, which is called by `call` unless it runs `alone`.

        Returns none while an earlier call still carries some. Of two parallel calls, the one with the later events
        could write first. The earlier events would then count as written (perdure/store/events/event_log.py compares
        their numbers).
        """
        if self._carrying and not alone:
            return ()
        taken = tuple(self.events)
        self.events.clear()
        self._carrying = bool(taken) and not alone
        return taken

    async def call(
        self,
        ref: ActivityRef[In, Out],
        activity_input: In,
        *,
        summary: str,
        timeout: timedelta | None = None,
        patience: timedelta | None = None,
    ) -> Out | Problem:
        """Returns the activity's answer, or the problem with which it failed; after a stop, the problem is the stop.

        The events of a failed call are passed to the next one. Events that it did write are not written twice.
        """
        try:
            return await self.calls.make(ref, activity_input, summary=summary, timeout=timeout, patience=patience)
        except ActivityError as error:
            self.events[:0] = activity_input.events
            return STOPPED if self.mailbox.stop else problem_of(error)
        finally:
            if activity_input.events:
                self._carrying = False

    async def _stop_requested(self) -> bool:
        """Returns whether the record confirms a stop after a stop signal.

        While Postgres is unavailable, the read is retried and nothing is cancelled. If no attempt succeeds, the stop is
        not confirmed. For a recorded stop, the relay signals again.
        """
        request = StopRequest(address=self.turn.address)
        try:
            read = await self.calls.make(TURNS_READ, request, summary="read the stop request", stoppable=False)
        except ActivityError:
            return False
        return read.asked

    def skip_requests(self, request: OpenRequest) -> None:
        """Skips the requests of `request`, which were not opened. Its events go to the next activity."""
        turn_id = self.turn.address.turn_id
        self.unopened = frozenset(approval_id(turn_id, gated.call_id) for gated in request.gated)
        self.to_open = None
        self.events[:0] = request.events

    def awaited_requests(self, state: State) -> tuple[RequestRef, ...]:
        """Returns the requests of a pause that opens none: those that are already open, with the check times of their
        records."""
        known = self.requests or tuple(requests_of(state, "pending_requests"))
        return tuple(
            request.model_copy(update={"look_at": self.check_times.get(request.request_id, request.look_at)})
            for request in known
        )

    def carry(self, state: Mapping[str, JsonValue], requests: tuple[RequestRef, ...]) -> Carried:
        """Returns the start data of the next run, after a pause with these `requests` or a renewal without any."""
        before = self.turn.carried
        unchanged = before is not None and self.to_open is None and before.requests == requests
        return Carried(
            state={**state, **(folded_patch(state) if self.folds else {})},
            requests=requests,
            rung=self.mailbox.wake_pending,
            looks=before.looks + 1 if before is not None and unchanged else 0,
            stop=self.mailbox.stop,
            stop_rung=self.mailbox.stop_pending,
            step=self.steps.last,
            events=tuple(self.events),
            events_made=self.events_made,
        )


# Step numbers of a run name its model calls and their tool calls. Parallel branches count separately: of n branches,
# each takes every n-th number from the fork on. The names of their calls therefore depend on what each branch did, not
# on which was faster. A turn that is restarted from its records finds the answers of its calls under these names. A
# branch never finds another branch's answers.
class Steps:
    """A counter of steps. The counters of branches advance the counter at which they began."""

    def __init__(self, last: int = 0, *, stride: int = 1, parent: "Steps | None" = None) -> None:
        self._last = last
        self._stride = stride
        self._parent = parent

    @property
    def last(self) -> int:
        """The last number that was taken, here or in a branch."""
        return self._last

    def next_number(self) -> int:
        """Returns the next step number. Parallel branches take different numbers."""
        self.advance(self._last + self._stride)
        return self._last

    def advance(self, step: int) -> None:
        """Advances the counter to at least `step`."""
        if step > self._last:
            self._last = step
            if self._parent is not None:
                self._parent.advance(step)

    def for_branches(self, branches: int) -> Sequence["Steps"]:
        """Returns a counter for each of this many branches. Their numbers never overlap.

        This counter must not be used before all branches have ended.
        """
        stride = self._stride * branches
        firsts = (self._last + (index + 1) * self._stride for index in range(branches))
        return tuple(Steps(first - stride, stride=stride, parent=self) for first in firsts)
