"""The ports of a run on top of Temporal: each call is one activity, its failure is data."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ActivityError

from contracts.activities import APPROVALS_READ, MEMORY_FACTS, MEMORY_LOAD, MODEL_COMPLETE
from contracts.approvals import OpenAsk, Verdicts, VerdictsAsk
from contracts.errors import Problem
from contracts.events import PendingEvent
from contracts.facts import FactsAnswer, FactsAsk, FactsCall
from contracts.ids import approval_id, forced_checkpoint_id, limit_id, model_call_id, question_id, step_of
from contracts.memory import LoadAsk, TurnContext
from contracts.messages import MessageRef
from contracts.model import ModelAsk, ModelCall, ModelReply
from contracts.people import GatedCall, Question, RequestKind, RequestRef, Verdict, VerdictState
from graph.ports import Ports
from graph.steps import Steps
from policy.gate import effect_request
from policy.refusals import STOPPED
from workflows.stretch import Stretch
from workflows.tools_port import ToolsPort


def ports_of(stretch: Stretch) -> Ports:
    """The six ports of a run."""
    people = PeoplePort(stretch)
    memory, events, clock = MemoryPort(stretch), EventsPort(stretch), ClockPort()

    def counted(steps: Steps) -> Ports:
        def apart(branches: int) -> Sequence[Ports]:
            return [counted(own) for own in steps.apart(branches)]

        model, tools = ModelPort(stretch, steps), ToolsPort(stretch, people, steps)
        return Ports(model, tools, memory, people, events, clock, apart)

    return counted(stretch.steps)


@dataclass(frozen=True, slots=True)
class ModelPort:
    """`model.complete`, a step further each time."""

    stretch: Stretch
    steps: Steps
    """Of the run, or of a branch of it."""

    async def complete(self, ask: ModelAsk) -> ModelReply:
        """One model call, under the id of its step."""
        if self.stretch.mailbox.stop:
            return ModelReply(problem=STOPPED)
        turn = self.stretch.turn
        call = ModelCall(
            address=turn.address,
            call_id=model_call_id(self.steps.take()),
            agent_id=turn.agent_id,
            agent_version=turn.agent_version,
            ask=ask.model_copy(update={"messages": tuple(_by_id(message) for message in ask.messages)}),
            events=self.stretch.take_events(),
            strict=self.stretch.strict,
        )
        patience = timedelta(seconds=ask.patience_seconds) if ask.patience_seconds else None
        reply = await self.stretch.call(MODEL_COMPLETE, call, summary=f"model call {call.call_id}", patience=patience)
        return ModelReply(problem=reply) if isinstance(reply, Problem) else reply


def _by_id(message: MessageRef) -> MessageRef:
    """A stored message needs only its id: the model call reads the rest from Postgres."""
    return MessageRef(id=message.id, role=message.role) if message.id else message


@dataclass(slots=True)
class MemoryPort:
    """`memory.load`, once a run, and `memory.facts`."""

    stretch: Stretch
    loaded: TurnContext | None = None

    async def load(self) -> TurnContext:
        """What was loaded first, a failure too."""
        if self.loaded is None:
            self.loaded = await self._load()
        return self.loaded

    async def _load(self) -> TurnContext:
        """A turn that is started again over its own records counts on from them."""
        turn = self.stretch.turn
        ask = LoadAsk(
            address=turn.address,
            agent_id=turn.agent_id,
            agent_version=turn.agent_version,
            events=self.stretch.take_events(),
        )
        found = await self.stretch.call(MEMORY_LOAD, ask, summary="memory and plan")
        if isinstance(found, Problem):
            return TurnContext(problem=found)
        self.stretch.events_made = max(self.stretch.events_made, found.events_written)
        if found.pending_round is not None and found.pending_round.calls:
            self.stretch.steps.reach(step_of(found.pending_round.calls[0].call_id))
        elif found.pending:
            self.stretch.steps.reach(step_of(found.pending[0].call_id))
        return found

    async def facts(self, ask: FactsAsk) -> FactsAnswer:
        """One operation; one that no attempt could make in its time is as one that failed. The events that wait stay
        for the next activity: what advises is not what they depend on."""
        turn = self.stretch.turn
        if self.stretch.mailbox.stop:
            return FactsAnswer(status=ask.failed())
        call = FactsCall(address=turn.address, agent_id=turn.agent_id, agent_version=turn.agent_version, ask=ask)
        summary = f"{'keep' if ask.write else 'read'} facts of the {ask.scope.value}"
        try:
            return await self.stretch.calls.make(MEMORY_FACTS, call, summary=summary)
        except ActivityError:
            return FactsAnswer(status=ask.failed())


def named(asked: GatedCall, step: int) -> GatedCall:
    """A request with its name: one that is about no call is named by the step after which it is asked."""
    if asked.call_id:
        return asked
    own = limit_id(step) if asked.kind is RequestKind.LIMIT else forced_checkpoint_id(step)
    return asked.model_copy(update={"call_id": own})


@dataclass(frozen=True, slots=True)
class PeoplePort:
    """Requests, opened when the run ends in its pause (ADR 2), and `approvals.read`."""

    stretch: Stretch

    def ask(
        self,
        gated: Sequence[GatedCall],
        unknown: Sequence[GatedCall],
        snapshot: dict[str, JsonValue],
        *,
        goes_on: bool = False,
    ) -> list[RequestRef]:
        """Keep what the pause opens; the requests' names are known by now, a checkpoint on the answer is named here."""
        turn = self.stretch.turn
        self.stretch.goes_on = goes_on
        gated = [named(call, self.stretch.steps.last) for call in gated]
        self.stretch.asked = OpenAsk(
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

    def question(self, question: Question) -> RequestRef:
        """Keep what the pause opens; it is named by the step after which it is asked."""
        turn = self.stretch.turn
        named = question.model_copy(update={"call_id": question.call_id or question_id(self.stretch.steps.last)})
        self.stretch.asked = OpenAsk(
            address=turn.address, agent_id=turn.agent_id, agent_version=turn.agent_version, questions=(named,)
        )
        request_id = approval_id(turn.address.turn_id, named.call_id)
        return RequestRef(request_id=request_id, kind=named.kind, call_id=named.call_id, tool="")

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        """What the records say now. Bells that rang before it have done their work."""
        if requests and self.stretch.unopened.issuperset(request.request_id for request in requests):
            return Verdicts(verdicts=tuple(map(_never_asked, requests)))
        self.stretch.mailbox.looked()
        ask = VerdictsAsk(
            address=self.stretch.turn.address, requests=tuple(requests), events=self.stretch.take_events()
        )
        found = await self.stretch.call(APPROVALS_READ, ask, summary="read verdicts")
        if isinstance(found, Problem):
            return Verdicts(problem=found)
        self.stretch.look_at |= {verdict.request_id: verdict.look_at for verdict in found.verdicts}
        return found


def _never_asked(request: RequestRef) -> Verdict:
    return Verdict(
        request_id=request.request_id, call_id=request.call_id, tool=request.tool, state=VerdictState.UNAVAILABLE
    )


@dataclass(frozen=True, slots=True)
class EventsPort:
    """Events of pure nodes, numbered, kept for the next activity."""

    stretch: Stretch

    def emit(self, kind: str, data: dict[str, JsonValue] | None = None, call_id: str | None = None) -> None:
        """Keep an event."""
        self.stretch.events_made += 1
        self.stretch.events.append(
            PendingEvent(
                kind=kind, at=workflow.now(), call_id=call_id, data=data or {}, number=self.stretch.events_made
            )
        )


class ClockPort:
    """The workflow's own time."""

    def now(self) -> datetime:
        """Now, the same in every replay."""
        return workflow.now()
