"""The ports of a run on top of Temporal: each call is one activity, its failure is data.

The engine's step counter lives here: it names model calls and their tool calls, so that a replay and a later run of
the same turn name them alike. Events of pure nodes wait here for the next activity, which writes them.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ActivityError

from contracts.activities import APPROVALS_READ, MEMORY_LOAD, MODEL_COMPLETE, TOOLS_RUN
from contracts.approvals import OpenAsk, Verdicts, VerdictsAsk
from contracts.errors import Problem
from contracts.events import PendingEvent
from contracts.ids import approval_id, effect_key, model_call_id, step_of
from contracts.memory import LoadAsk, TurnContext
from contracts.messages import MessageRef
from contracts.model import ModelAsk, ModelCall, ModelReply
from contracts.people import GatedCall, RequestKind, RequestRef
from contracts.tools import CallState, ToolAsk, ToolCall, ToolOutcome
from contracts.turns import TurnInput
from graph.ports import Ports
from workflows.calls import Calls, problem_of
from workflows.mailbox import Mailbox

STOPPED = Problem(code="stopped", message="the turn was stopped")
TOOL_MARGIN = timedelta(seconds=30)
"""Beside a tool's own time-out: reserving, recording, and a busy database."""


class TurnPorts:
    """What one run's nodes reach, and what the run leaves behind for the next."""

    def __init__(self, turn: TurnInput, mailbox: Mailbox) -> None:
        self._turn = turn
        self._mailbox = mailbox
        self.calls = Calls(turn.routing)
        self.step = turn.carried.step if turn.carried else 0
        self.events: list[PendingEvent] = list(turn.carried.events) if turn.carried else []
        self.events_made = turn.carried.events_made if turn.carried else 0
        self.asked: OpenAsk | None = None
        self._context: TurnContext | None = None
        mailbox.when_stopped(self.calls.cancel)

    def as_ports(self) -> Ports:
        """The six ports."""
        return Ports(_Model(self), _Tools(self), _Memory(self), _People(self), _Events(self), _Clock())

    def take_events(self) -> tuple[PendingEvent, ...]:
        """The events that wait, for the activity that is about to be called."""
        taken = tuple(self.events)
        self.events.clear()
        return taken

    def give_back(self, events: tuple[PendingEvent, ...]) -> None:
        """Keep events of a call that failed for the next one; those that it did write are not written twice."""
        self.events[:0] = events

    async def complete(self, ask: ModelAsk) -> ModelReply:
        """`model.complete` for the next step."""
        if self._mailbox.stop:
            return ModelReply(problem=STOPPED)
        self.step += 1
        call = ModelCall(
            address=self._turn.address,
            call_id=model_call_id(self.step),
            agent_id=self._turn.agent_id,
            agent_version=self._turn.agent_version,
            ask=ask.model_copy(update={"messages": tuple(_by_id(message) for message in ask.messages)}),
            events=self.take_events(),
        )
        try:
            return await self.calls.make(MODEL_COMPLETE, call, summary=f"model call {call.call_id}")
        except ActivityError as error:
            self.give_back(call.events)
            return ModelReply(problem=self._problem(error))

    async def run_tools(self, asks: Sequence[ToolAsk]) -> list[ToolOutcome]:
        """`tools.run` for each ask, side by side; the first carries the events that wait."""
        if self._mailbox.stop:
            return [ToolOutcome(call_id=ask.call_id, state=CallState.PLANNED, problem=STOPPED) for ask in asks]
        events = self.take_events()
        return await asyncio.gather(
            *(self._run_tool(ask, events if index == 0 else ()) for index, ask in enumerate(asks))
        )

    async def _run_tool(self, ask: ToolAsk, events: tuple[PendingEvent, ...]) -> ToolOutcome:
        call = ToolCall(
            address=self._turn.address,
            agent_id=self._turn.agent_id,
            agent_version=self._turn.agent_version,
            ask=ask,
            events=events,
        )
        timeout = timedelta(seconds=ask.timeout_seconds) + TOOL_MARGIN
        try:
            return await self.calls.make(TOOLS_RUN, call, summary=f"{ask.tool} {ask.call_id}", timeout=timeout)
        except ActivityError as error:
            self.give_back(events)
            return ToolOutcome(call_id=ask.call_id, state=CallState.PLANNED, problem=self._problem(error))

    async def load(self) -> TurnContext:
        """`memory.load`, once a run."""
        if self._context is None:
            ask = LoadAsk(
                address=self._turn.address,
                agent_id=self._turn.agent_id,
                agent_version=self._turn.agent_version,
                events=self.take_events(),
            )
            try:
                self._context = await self.calls.make(MEMORY_LOAD, ask, summary="memory and plan")
            except ActivityError as error:
                self.give_back(ask.events)
                self._context = TurnContext(problem=self._problem(error))
            self._take_up(self._context)
        return self._context

    def _problem(self, error: ActivityError) -> Problem:
        """Why a call failed; after a stop, that is why."""
        return STOPPED if self._mailbox.stop else problem_of(error)

    def _take_up(self, context: TurnContext) -> None:
        """A turn that is started again over its own records counts on from them."""
        self.events_made = max(self.events_made, context.events_written)
        if context.pending_round is not None and context.pending_round.calls:
            self.step = max(self.step, step_of(context.pending_round.calls[0].call_id))

    def ask(
        self, gated: Sequence[GatedCall], unknown: Sequence[GatedCall], snapshot: dict[str, JsonValue]
    ) -> list[RequestRef]:
        """Keep what the pause opens when the run ends in it."""
        self.asked = OpenAsk(
            address=self._turn.address,
            agent_id=self._turn.agent_id,
            agent_version=self._turn.agent_version,
            gated=tuple(gated),
            unknown=tuple(unknown),
            snapshot=snapshot,
        )
        turn_id = self._turn.address.turn_id
        return [
            *(
                RequestRef(request_id=approval_id(turn_id, call.call_id), call_id=call.call_id, tool=call.tool)
                for call in gated
            ),
            *(
                RequestRef(
                    request_id=effect_key(turn_id, call.call_id),
                    kind=RequestKind.EFFECT,
                    call_id=call.call_id,
                    tool=call.tool,
                )
                for call in unknown
            ),
        ]

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        """`approvals.read`. Bells that rang before it have done their work."""
        self._mailbox.looked()
        ask = VerdictsAsk(address=self._turn.address, requests=tuple(requests), events=self.take_events())
        try:
            return await self.calls.make(APPROVALS_READ, ask, summary="read verdicts")
        except ActivityError as error:
            self.give_back(ask.events)
            return Verdicts(problem=self._problem(error))

    def emit(self, kind: str, data: dict[str, JsonValue] | None, call_id: str | None) -> None:
        """Keep an event for the next activity."""
        self.events_made += 1
        event = PendingEvent(kind=kind, at=workflow.now(), call_id=call_id, data=data or {}, number=self.events_made)
        self.events.append(event)


def _by_id(message: MessageRef) -> MessageRef:
    """A stored message needs only its id: the model call reads the rest from Postgres."""
    return MessageRef(id=message.id, role=message.role) if message.id else message


class _Model:
    def __init__(self, turn: TurnPorts) -> None:
        self._turn = turn

    async def complete(self, ask: ModelAsk) -> ModelReply:
        return await self._turn.complete(ask)


class _Tools:
    def __init__(self, turn: TurnPorts) -> None:
        self._turn = turn

    async def run(self, asks: Sequence[ToolAsk]) -> list[ToolOutcome]:
        return await self._turn.run_tools(asks)


class _Memory:
    def __init__(self, turn: TurnPorts) -> None:
        self._turn = turn

    async def load(self) -> TurnContext:
        return await self._turn.load()


class _People:
    def __init__(self, turn: TurnPorts) -> None:
        self._turn = turn

    def ask(
        self, gated: Sequence[GatedCall], unknown: Sequence[GatedCall], snapshot: dict[str, JsonValue]
    ) -> Sequence[RequestRef]:
        return self._turn.ask(gated, unknown, snapshot)

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        return await self._turn.verdicts(requests)


class _Events:
    def __init__(self, turn: TurnPorts) -> None:
        self._turn = turn

    def emit(self, kind: str, data: dict[str, JsonValue] | None = None, call_id: str | None = None) -> None:
        self._turn.emit(kind, data, call_id)


class _Clock:
    def now(self) -> datetime:
        return workflow.now()
