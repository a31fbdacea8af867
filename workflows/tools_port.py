"""The tools port: the calls of a round side by side, each as soon as it may.

While calls run, the round hears its bells: a verdict that comes meanwhile starts its call beside them, so an approval
never waits for a sibling that happens to be slow. policy/gate.py says what starts; here it is only waited and started.

Determinism: calls are started and taken back in the order of the round, whichever ends first. The wait sets no timer
and adds no event; each look at the records is one activity.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from temporalio import workflow

from contracts.activities import TOOLS_ASSEMBLE, TOOLS_RUN
from contracts.approvals import Verdicts
from contracts.errors import Problem
from contracts.events import PendingEvent
from contracts.ids import tool_call_id
from contracts.people import RequestRef
from contracts.pipeline import AssembleAsk, AssembleCall, Assembled
from contracts.tools import CallState, PlannedAsk, ToolAsk, ToolCall, ToolOutcome
from graph.steps import Steps
from policy.gate import effect_request, startable
from policy.refusals import STOPPED
from workflows.stretch import Stretch

TOOL_MARGIN = timedelta(seconds=30)
"""Beside a tool's own time-out: reserving, recording, and a busy database."""


class Reader(Protocol):
    """Whoever reads verdicts."""

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        """As the people port does."""
        ...


@dataclass(frozen=True, slots=True)
class ToolsPort:
    """`tools.run` for each call of a round, `tools.assemble` for each tool of a phase."""

    stretch: Stretch
    people: Reader
    steps: Steps
    """Of the run, or of a branch of it."""

    async def run(self, asks: Sequence[ToolAsk], waiting: Sequence[RequestRef] = ()) -> list[ToolOutcome]:
        """All of them side by side; the first carries the events that wait."""
        if self.stretch.mailbox.stop:
            return [_not_run(ask, STOPPED) for ask in asks]
        under_way = UnderWay(self, asks, {request.call_id: request for request in waiting})
        return await under_way.outcomes()

    async def make(self, asks: Sequence[PlannedAsk]) -> list[ToolOutcome]:
        """Calls of the graph's own, under the ids of a step of their own."""
        step = self.steps.take()
        return await self.run(
            [
                ToolAsk(
                    call_id=tool_call_id(step, index),
                    tool=ask.tool,
                    timeout_seconds=ask.timeout_seconds,
                    args=ask.args,
                )
                for index, ask in enumerate(asks)
            ]
        )

    async def assemble(self, asks: Sequence[AssembleAsk]) -> list[Assembled]:
        """All of a phase side by side; the first carries the events that wait."""
        if self.stretch.mailbox.stop:
            return [Assembled(tool=ask.tool, problem=STOPPED) for ask in asks]
        events = self.stretch.take_events() if asks else ()
        tasks = [asyncio.create_task(self._assembled(ask, () if place else events)) for place, ask in enumerate(asks)]
        return [await task for task in tasks]

    async def _assembled(self, ask: AssembleAsk, events: tuple[PendingEvent, ...]) -> Assembled:
        turn = self.stretch.turn
        call = AssembleCall(
            address=turn.address, agent_id=turn.agent_id, agent_version=turn.agent_version, ask=ask, events=events
        )
        timeout = timedelta(seconds=ask.timeout_seconds) + TOOL_MARGIN
        outcome = await self.stretch.call(TOOLS_ASSEMBLE, call, summary=f"assemble {ask.tool}", timeout=timeout)
        return Assembled(tool=ask.tool, problem=outcome) if isinstance(outcome, Problem) else outcome

    async def one(self, ask: ToolAsk, events: tuple[PendingEvent, ...]) -> ToolOutcome:
        """One call."""
        turn = self.stretch.turn
        call = ToolCall(
            address=turn.address, agent_id=turn.agent_id, agent_version=turn.agent_version, ask=ask, events=events
        )
        timeout = timedelta(seconds=ask.timeout_seconds) + TOOL_MARGIN
        outcome = await self.stretch.call(TOOLS_RUN, call, summary=f"{ask.tool} {ask.call_id}", timeout=timeout)
        return _not_run(ask, outcome) if isinstance(outcome, Problem) else outcome


@dataclass(slots=True)
class UnderWay:
    """A round while any call of it runs."""

    port: ToolsPort
    asks: Sequence[ToolAsk]
    waiting: dict[str, RequestRef]
    """By call: what it waits for."""
    running: dict[str, asyncio.Task[ToolOutcome]] = field(default_factory=dict)
    ended: dict[str, ToolOutcome] = field(default_factory=dict)

    async def outcomes(self) -> list[ToolOutcome]:
        """Back when nothing runs and no bell is unheard; a call that still waits is `planned`, without a problem."""
        ready: Sequence[str] = [ask.call_id for ask in self.asks if ask.call_id not in self.waiting]
        while self._start(ready):
            await workflow.wait_condition(lambda: self._rung() or any(task.done() for task in self.running.values()))
            self._take_back()
            ready = await self._decided() if self._rung() else []
        return [self.ended.get(ask.call_id) or _not_run(ask, None) for ask in self.asks]

    def _start(self, ready: Sequence[str]) -> bool:
        """Start these; whether anything runs."""
        events = self.port.stretch.take_events() if ready else ()
        for place, ask in enumerate(ask for ask in self.asks if ask.call_id in ready):
            self.waiting.pop(ask.call_id, None)
            self.running[ask.call_id] = asyncio.create_task(self.port.one(ask, () if place else events))
        return bool(self.running)

    def _take_back(self) -> None:
        for ask in self.asks:
            task = self.running.get(ask.call_id)
            if task is None or not task.done():
                continue
            del self.running[ask.call_id]
            outcome = self.ended[ask.call_id] = task.result()
            if outcome.state is CallState.OUTCOME_UNKNOWN:
                turn_id = self.port.stretch.turn.address.turn_id
                self.waiting[ask.call_id] = effect_request(turn_id, ask.call_id, ask.tool)

    def _rung(self) -> bool:
        """Whether a bell may have freed a call. After a stop or a problem that ends the turn nothing more starts."""
        mailbox = self.port.stretch.mailbox
        hopeless = any(outcome.problem is not None for outcome in self.ended.values())
        return mailbox.rung and bool(self.waiting) and not mailbox.stop and not hopeless

    async def _decided(self) -> Sequence[str]:
        """The calls that may start by what the records say now. What cannot be read frees nothing: the pause looks
        again."""
        requests = [*self.waiting.values()]
        read = await self.port.people.verdicts(requests)
        if read.problem is not None or self.port.stretch.mailbox.stop:
            return ()
        calls = [ask.call_id for ask in self.asks if ask.call_id in self.waiting]
        return startable(calls, requests, read.verdicts, begun={*self.ended, *self.running} - self.waiting.keys())


def _not_run(ask: ToolAsk, problem: Problem | None) -> ToolOutcome:
    return ToolOutcome(call_id=ask.call_id, state=CallState.PLANNED, problem=problem)
