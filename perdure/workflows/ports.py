"""The ports of a run on Temporal: each call is one activity, and its failure is data."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ActivityError

from perdure.contracts.activities import (
    APPROVALS_READ,
    MEMORY_FACTS,
    MEMORY_LOAD,
    MODEL_COMPLETE,
    TOOLS_ASSEMBLE,
    TOOLS_CHECK,
    TOOLS_RUN,
    Checked,
    CheckRequest,
    LoadRequest,
    OpenRequest,
    TurnContext,
    Verdicts,
    VerdictsRequest,
)
from perdure.contracts.approvals import GatedCall, Question, RequestKind, RequestRef, Verdict, VerdictState
from perdure.contracts.calls import (
    CallState,
    ModelCall,
    ModelCallRequest,
    ModelReply,
    PlannedAsk,
    ToolCall,
    ToolCallRequest,
    ToolOutcome,
)
from perdure.contracts.context_assembly import AssembleAsk, AssembleCall, Assembled
from perdure.contracts.errors import Problem
from perdure.contracts.events import PendingEvent
from perdure.contracts.ids import (
    approval_id,
    forced_checkpoint_id,
    limit_id,
    model_call_id,
    question_id,
    step_of,
    tool_call_id,
)
from perdure.contracts.memory import FactsAnswer, FactsCall, FactsRequest
from perdure.contracts.messages import MessageRef
from perdure.core.approvals.gates import effect_request, startable_calls
from perdure.core.calls.ledger import STOPPED
from perdure.graph.ports import Ports
from perdure.graph.spec import RENEWED
from perdure.workflows.turn_segment import Steps, TurnSegment

RUN_EVENTS = 1_000
"""A run with this many events is renewed before its next model call; a round of 64 calls adds at most 400. After a
restart, a worker replays eight runs at once, each within the 5 s of a workflow task. On two cores at load 8 that takes
2.3 s for runs of 1,000 events, 4.0 s for 2,000 and 6.7 s for 4,000 (measured). A change needs a patch, as below."""
RUN_EVENTS_BEFORE = 4_000
"""The value for a run that began before the patch."""
RENEWED_EARLIER = "renew-earlier"
REOPENED_IN_ROUND = "reopened-in-round"
TOOL_MARGIN = timedelta(seconds=30)
"""The time beyond a tool's own timeout for reserving, recording and a busy database."""


def ports_of(segment: TurnSegment) -> Ports:
    """Returns the ports through which the graph's nodes reach model, tools, memory, people, events and clock."""
    people = PeoplePort(segment)
    memory, events, clock = MemoryPort(segment), EventsPort(segment), ClockPort()

    def make_ports(steps: Steps) -> Ports:
        def apart(branches: int) -> Sequence[Ports]:
            return [make_ports(branch_steps) for branch_steps in steps.for_branches(branches)]

        model, tools = ModelPort(segment, steps), ToolsPort(segment, people, steps)
        return Ports(model, tools, memory, people, events, clock, apart, _is_long)

    return make_ports(segment.steps)


def _is_long(entry: str, many_steps: bool) -> bool:
    """Returns whether a new run should continue at this entry: after many events or steps, or when the server suggests
    it, also by size.

    Determinism: a run that passed such a place before the patch passes it in a replay too. It is renewed by the rule
    from before.
    """
    info = workflow.info()
    events, suggested = info.get_current_history_length(), info.is_continue_as_new_suggested()
    if entry == RENEWED and (events >= RUN_EVENTS_BEFORE or suggested):
        return True
    return (many_steps or suggested or events >= RUN_EVENTS) and workflow.patched(RENEWED_EARLIER)


@dataclass(frozen=True, slots=True)
class ModelPort:
    """The port for `model.complete`. Each call takes the next step."""

    segment: TurnSegment
    steps: Steps
    """The counter of the run or of a branch."""

    async def complete(self, ask: ModelCallRequest) -> ModelReply:
        """Makes one model call under the id of its step."""
        if self.segment.mailbox.stop:
            return ModelReply(problem=STOPPED)
        turn = self.segment.turn
        call = ModelCall(
            address=turn.address,
            call_id=model_call_id(self.steps.next_number()),
            agent_id=turn.agent_id,
            agent_version=turn.agent_version,
            ask=ask.model_copy(update={"messages": tuple(_by_id(message) for message in ask.messages)}),
            events=self.segment.take_events(),
            strict=self.segment.strict,
        )
        patience = timedelta(seconds=ask.patience_seconds) if ask.patience_seconds else None
        reply = await self.segment.call(MODEL_COMPLETE, call, summary=f"model call {call.call_id}", patience=patience)
        return ModelReply(problem=reply) if isinstance(reply, Problem) else reply


def _by_id(message: MessageRef) -> MessageRef:
    """Reduces a stored message to its id and role: the model call reads the rest from Postgres."""
    return MessageRef(id=message.id, role=message.role) if message.id else message


@dataclass(slots=True)
class MemoryPort:
    """The port for `memory.load`, called once per run, and `memory.facts`."""

    segment: TurnSegment
    loaded: TurnContext | None = None

    async def load(self) -> TurnContext:
        """Returns the result of the first load, also if it failed."""
        if self.loaded is None:
            self.loaded = await self._load()
        return self.loaded

    async def _load(self) -> TurnContext:
        """Loads the context. A turn that is restarted from its own records continues their numbers."""
        turn = self.segment.turn
        request = LoadRequest(
            address=turn.address,
            agent_id=turn.agent_id,
            agent_version=turn.agent_version,
            events=self.segment.take_events(),
        )
        context = await self.segment.call(MEMORY_LOAD, request, summary="memory and plan")
        if isinstance(context, Problem):
            return TurnContext(problem=context)
        self.segment.events_made = max(self.segment.events_made, context.events_written)
        if context.pending_round is not None and context.pending_round.calls:
            self.segment.steps.advance(step_of(context.pending_round.calls[0].call_id))
        elif context.pending:
            self.segment.steps.advance(step_of(context.pending[0].call_id))
        return context

    async def facts(self, ask: FactsRequest) -> FactsAnswer:
        """Runs one operation on facts. If no attempt succeeds in time, it counts as failed.

        The kept events stay for the next activity: facts are optional, so the events must not depend on this call.
        """
        turn = self.segment.turn
        if self.segment.mailbox.stop:
            return FactsAnswer(status=ask.failed())
        call = FactsCall(address=turn.address, agent_id=turn.agent_id, agent_version=turn.agent_version, ask=ask)
        summary = f"{'keep' if ask.write else 'read'} facts of the {ask.scope.value}"
        try:
            return await self.segment.calls.make(MEMORY_FACTS, call, summary=summary)
        except ActivityError:
            return FactsAnswer(status=ask.failed())


def name_request(gated: GatedCall, step: int) -> GatedCall:
    """Returns a request with its name. A request without a call is named by the step before it."""
    if gated.call_id:
        return gated
    name = limit_id(step) if gated.kind is RequestKind.LIMIT else forced_checkpoint_id(step)
    return gated.model_copy(update={"call_id": name})


@dataclass(frozen=True, slots=True)
class PeoplePort:
    """The port for requests, which are opened when the run ends in its pause (ADR 2), and for `approvals.read`."""

    segment: TurnSegment

    def open_requests(
        self,
        gated: Sequence[GatedCall],
        unknown: Sequence[GatedCall],
        snapshot: dict[str, JsonValue],
        *,
        continues: bool = False,
    ) -> list[RequestRef]:
        """Records the requests that the pause opens and returns their references. A checkpoint on the answer gets its
        name here."""
        turn = self.segment.turn
        self.segment.continues = continues
        gated = [name_request(call, self.segment.steps.last) for call in gated]
        self.segment.to_open = OpenRequest(
            address=turn.address,
            agent_id=turn.agent_id,
            agent_version=turn.agent_version,
            gated=tuple(gated),
            unknown=tuple(unknown),
            snapshot=snapshot,
        )
        turn_id = turn.address.turn_id
        approvals = [
            RequestRef(
                request_id=approval_id(turn_id, call.call_id), kind=call.kind, call_id=call.call_id, tool=call.tool
            )
            for call in gated
        ]
        return [*approvals, *(effect_request(turn_id, call.call_id, call.tool) for call in unknown)]

    def open_question(self, question: Question) -> RequestRef:
        """Records the question that the pause opens. It is named by the step before it."""
        turn = self.segment.turn
        named = question.model_copy(update={"call_id": question.call_id or question_id(self.segment.steps.last)})
        self.segment.to_open = OpenRequest(
            address=turn.address, agent_id=turn.agent_id, agent_version=turn.agent_version, questions=(named,)
        )
        request_id = approval_id(turn.address.turn_id, named.call_id)
        return RequestRef(request_id=request_id, kind=named.kind, call_id=named.call_id, tool="")

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        """Returns the current verdicts. Earlier wake signals are cleared."""
        if requests and self.segment.unopened.issuperset(request.request_id for request in requests):
            return Verdicts(verdicts=tuple(map(_unavailable_verdict, requests)))
        self.segment.mailbox.clear()
        ask = VerdictsRequest(
            address=self.segment.turn.address, requests=tuple(requests), events=self.segment.take_events()
        )
        verdicts = await self.segment.call(APPROVALS_READ, ask, summary="read verdicts")
        if isinstance(verdicts, Problem):
            return Verdicts(problem=verdicts)
        self.segment.check_times |= {verdict.request_id: verdict.look_at for verdict in verdicts.verdicts}
        return verdicts


def _unavailable_verdict(request: RequestRef) -> Verdict:
    return Verdict(
        request_id=request.request_id, call_id=request.call_id, tool=request.tool, state=VerdictState.UNAVAILABLE
    )


@dataclass(frozen=True, slots=True)
class EventsPort:
    """The port for events of pure nodes, which are numbered and kept for the next activity."""

    segment: TurnSegment

    def emit(self, kind: str, data: dict[str, JsonValue] | None = None, call_id: str | None = None) -> None:
        """Keeps an event for the next activity."""
        self.segment.events_made += 1
        self.segment.events.append(
            PendingEvent(
                kind=kind, at=workflow.now(), call_id=call_id, data=data or {}, number=self.segment.events_made
            )
        )


class ClockPort:
    """The port for the workflow's own time."""

    def now(self) -> datetime:
        """Returns the current time, the same in every replay."""
        return workflow.now()


class Reader(Protocol):
    """A reader of verdicts."""

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        """Returns the current verdicts, like `PeoplePort.verdicts`."""
        ...


# The calls of a round run in parallel, each as soon as it is allowed. While calls run, the round handles its wake
# signals. A verdict that arrives in the meantime starts its call at once: an approved call never waits for a slow one.
# perdure/core/approvals/gates.py decides what can start. The port only waits and starts.
#
# Determinism: calls are started and collected in the order of the round, whichever ends first. The wait sets no timer
# and adds no event. Each read of the records is one activity.
@dataclass(frozen=True, slots=True)
class ToolsPort:
    """The port for `tools.run`, for each call of a round, `tools.check`, once for a round, and `tools.assemble`, for
    each tool of a phase."""

    segment: TurnSegment
    people: Reader
    steps: Steps
    """The counter of the run or of a branch."""

    async def run(self, asks: Sequence[ToolCallRequest], waiting: Sequence[RequestRef] = ()) -> list[ToolOutcome]:
        """Runs all calls in parallel. The first one carries the kept events."""
        if self.segment.mailbox.stop:
            return [_not_run(ask, STOPPED) for ask in asks]
        running_round = RunningRound(self, asks, {request.call_id: request for request in waiting})
        return await running_round.await_outcomes()

    async def check(self, call_ids: Sequence[str]) -> Checked:
        """Checks calls of a round in one activity. Without a tools worker, the round waits."""
        if self.segment.mailbox.stop:
            return Checked(problem=STOPPED)
        request = CheckRequest(
            address=self.segment.turn.address, calls=tuple(call_ids), events=self.segment.take_events()
        )
        checked = await self.segment.call(TOOLS_CHECK, request, summary=f"check {len(call_ids)} calls")
        return Checked(problem=checked) if isinstance(checked, Problem) else checked

    async def make(self, asks: Sequence[PlannedAsk]) -> list[ToolOutcome]:
        """Runs calls that the graph itself makes, under the ids of a separate step."""
        step = self.steps.next_number()
        return await self.run(
            [
                ToolCallRequest(
                    call_id=tool_call_id(step, index),
                    tool=ask.tool,
                    timeout_seconds=ask.timeout_seconds,
                    args=ask.args,
                )
                for index, ask in enumerate(asks)
            ]
        )

    async def assemble(self, asks: Sequence[AssembleAsk]) -> list[Assembled]:
        """Runs all tools of a phase in parallel. The first one carries the kept events."""
        if self.segment.mailbox.stop:
            return [Assembled(tool=ask.tool, problem=STOPPED) for ask in asks]
        events = self.segment.take_events() if asks else ()
        tasks = [asyncio.create_task(self._assemble(ask, () if index else events)) for index, ask in enumerate(asks)]
        return [await task for task in tasks]

    async def _assemble(self, request: AssembleAsk, events: tuple[PendingEvent, ...]) -> Assembled:
        turn = self.segment.turn
        call = AssembleCall(
            address=turn.address, agent_id=turn.agent_id, agent_version=turn.agent_version, ask=request, events=events
        )
        timeout = timedelta(seconds=request.timeout_seconds) + TOOL_MARGIN
        outcome = await self.segment.call(TOOLS_ASSEMBLE, call, summary=f"assemble {request.tool}", timeout=timeout)
        return Assembled(tool=request.tool, problem=outcome) if isinstance(outcome, Problem) else outcome

    async def run_one(self, request: ToolCallRequest, events: tuple[PendingEvent, ...]) -> ToolOutcome:
        """Runs the activity of one call. The timeout is the call's own plus a margin. Returns an outcome also if the
        activity failed."""
        turn = self.segment.turn
        call = ToolCall(
            address=turn.address, agent_id=turn.agent_id, agent_version=turn.agent_version, ask=request, events=events
        )
        timeout = timedelta(seconds=request.timeout_seconds) + TOOL_MARGIN
        outcome = await self.segment.call(TOOLS_RUN, call, summary=f"{request.tool} {request.call_id}", timeout=timeout)
        return _not_run(request, outcome) if isinstance(outcome, Problem) else outcome


@dataclass(slots=True)
class RunningRound:
    """A round while its calls run."""

    port: ToolsPort
    asks: Sequence[ToolCallRequest]
    waiting: dict[str, RequestRef]
    """The open request of each waiting call."""
    running: dict[str, asyncio.Task[ToolOutcome]] = field(default_factory=dict)
    ended: dict[str, ToolOutcome] = field(default_factory=dict)

    async def await_outcomes(self) -> list[ToolOutcome]:
        """Returns when no call runs and no wake signal is pending. A call that still waits is `planned`, without a
        problem."""
        ready: Sequence[str] = [ask.call_id for ask in self.asks if ask.call_id not in self.waiting]
        while self._start(ready):
            await workflow.wait_condition(
                lambda: self._may_release() or any(task.done() for task in self.running.values())
            )
            self._collect_ended()
            ready = await self._startable_calls() if self._may_release() else []
        return [self.ended.get(ask.call_id) or _not_run(ask, None) for ask in self.asks]

    def _start(self, ready: Sequence[str]) -> bool:
        """Starts these calls. Returns whether any call runs."""
        events = self.port.segment.take_events() if ready else ()
        for index, ask in enumerate(ask for ask in self.asks if ask.call_id in ready):
            self.waiting.pop(ask.call_id, None)
            self.running[ask.call_id] = asyncio.create_task(self.port.run_one(ask, () if index else events))
        return bool(self.running)

    def _collect_ended(self) -> None:
        for ask in self.asks:
            task = self.running.get(ask.call_id)
            if task is None or not task.done():
                continue
            del self.running[ask.call_id]
            outcome = self.ended[ask.call_id] = task.result()
            request = self._new_request(ask, outcome)
            if request is not None:
                self.waiting[ask.call_id] = request

    def _new_request(self, ask: ToolCallRequest, outcome: ToolOutcome) -> RequestRef | None:
        """Returns the request for which an ended call waits: to settle it, or to approve it in a new version of its
        tool. None if the call has its answer."""
        turn_id = self.port.segment.turn.address.turn_id
        if outcome.state is CallState.OUTCOME_UNKNOWN:
            return effect_request(turn_id, ask.call_id, ask.tool)
        is_reopened = outcome.state is CallState.PLANNED and outcome.problem is None
        if is_reopened and workflow.patched(REOPENED_IN_ROUND):
            return RequestRef(request_id=approval_id(turn_id, ask.call_id), call_id=ask.call_id, tool=ask.tool)
        return None

    def _may_release(self) -> bool:
        """Returns whether a wake signal may have released a call. After a stop or a problem that ends the turn, no call
        starts."""
        mailbox = self.port.segment.mailbox
        turn_ends = any(outcome.problem is not None for outcome in self.ended.values())
        return mailbox.wake_pending and bool(self.waiting) and not mailbox.stop and not turn_ends

    async def _startable_calls(self) -> Sequence[str]:
        """Returns the calls that the current records allow to start. An unreadable record releases none; the pause
        reads it again."""
        requests = [*self.waiting.values()]
        read = await self.port.people.verdicts(requests)
        if read.problem is not None or self.port.segment.mailbox.stop:
            return ()
        calls = [ask.call_id for ask in self.asks if ask.call_id in self.waiting]
        return startable_calls(calls, requests, read.verdicts, begun={*self.ended, *self.running} - self.waiting.keys())


def _not_run(request: ToolCallRequest, problem: Problem | None) -> ToolOutcome:
    return ToolOutcome(call_id=request.call_id, state=CallState.PLANNED, problem=problem)
