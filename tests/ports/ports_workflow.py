"""A run's ports as the suites call them, and a workflow that holds a run's real ports and offers these calls."""

from temporalio import workflow

from perdure.contracts.activities import APPROVALS_OPEN, WAKE, TurnContext, Verdicts
from perdure.contracts.approvals import GatedCall, Question, RequestRef
from perdure.contracts.calls import ModelCallRequest, ModelReply, PlannedAsk, ToolCallRequest, ToolOutcome
from perdure.contracts.memory import FactsAnswer, FactsRequest
from perdure.contracts.turns import TurnInput, WakeSignal
from perdure.contracts.values import Frozen
from perdure.graph.ports import Ports
from perdure.workflows.mailbox import Mailbox
from perdure.workflows.ports import ports_of
from perdure.workflows.turn_segment import TurnSegment


class Asked(Frozen):
    gated: tuple[GatedCall, ...]
    unknown: tuple[GatedCall, ...]


class Round(Frozen):
    """What a node gives the tools port."""

    asks: tuple[ToolCallRequest, ...]
    waiting: tuple[RequestRef, ...]


class Calls:
    """Each takes one value at most and gives one, so that it can be an update."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def complete(self, ask: ModelCallRequest) -> ModelReply:
        return await self._ports.model.complete(ask)

    async def run_tools(self, given: Round) -> list[ToolOutcome]:
        return [*await self._ports.tools.run(given.asks, given.waiting)]

    async def make_calls(self, asks: list[PlannedAsk]) -> list[ToolOutcome]:
        return [*await self._ports.tools.make(asks)]

    async def question(self, question: Question) -> RequestRef:
        return self._ports.people.open_question(question)

    async def load(self) -> TurnContext:
        return await self._ports.memory.load()

    async def facts(self, ask: FactsRequest) -> FactsAnswer:
        return await self._ports.memory.facts(ask)

    async def ask(self, asked: Asked) -> list[RequestRef]:
        return [*self._ports.people.open_requests(asked.gated, asked.unknown, {})]

    async def verdicts(self, requests: list[RequestRef]) -> Verdicts:
        return await self._ports.people.verdicts(requests)


for _call in [call for name, call in vars(Calls).items() if name[0] != "_"]:
    workflow.update(_call)


@workflow.defn
class PortsRun(Calls):
    """One run over a turn, as TurnRun begins it, without a graph."""

    @workflow.init
    def __init__(self, turn: TurnInput) -> None:
        self._mailbox = Mailbox(turn.carried)
        self._stretch = TurnSegment(turn, self._mailbox)
        self._over = False
        super().__init__(ports_of(self._stretch))

    @workflow.run
    async def run(self, turn: TurnInput) -> None:
        await workflow.wait_condition(lambda: self._over and workflow.all_handlers_finished())

    @workflow.signal(name=WAKE)
    def wake(self, bell: WakeSignal) -> None:
        self._mailbox.put([bell.model_dump(mode="json")])

    @workflow.update
    async def heard_stop(self) -> None:
        """Back when a stop's bell is confirmed."""
        await workflow.wait_condition(lambda: self._mailbox.stop)

    @workflow.signal
    def end(self) -> None:
        self._over = True

    @workflow.update
    async def pause(self) -> None:
        """What TurnRun does at the end of a run that pauses."""
        assert self._stretch.to_open is not None
        await self._stretch.calls.make(APPROVALS_OPEN, self._stretch.to_open, summary="open requests", stoppable=False)
