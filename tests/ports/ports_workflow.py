"""A workflow that holds a run's real ports and does with them what the suites tell it."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.contracts.activities import APPROVALS_OPEN, WAKE, TurnContext, Verdicts
    from perdure.contracts.approvals import GatedCall, Question, RequestRef
    from perdure.contracts.calls import ModelCallRequest, ModelReply, PlannedAsk, ToolCallRequest, ToolOutcome
    from perdure.contracts.memory import FactsAnswer, FactsRequest
    from perdure.contracts.turns import TurnInput, WakeSignal
    from perdure.contracts.values import Frozen
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


@workflow.defn
class PortsRun:
    """One run over a turn, as TurnRun begins it, without a graph."""

    @workflow.init
    def __init__(self, turn: TurnInput) -> None:
        self._mailbox = Mailbox(turn.carried)
        self._stretch = TurnSegment(turn, self._mailbox)
        self._ports = ports_of(self._stretch)
        self._over = False

    @workflow.run
    async def run(self, turn: TurnInput) -> None:
        """Stays until it is told that it is over."""
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
    async def complete(self, ask: ModelCallRequest) -> ModelReply:
        return await self._ports.model.complete(ask)

    @workflow.update
    async def run_tools(self, given: Round) -> list[ToolOutcome]:
        return [*await self._ports.tools.run(given.asks, given.waiting)]

    @workflow.update
    async def make_calls(self, asks: list[PlannedAsk]) -> list[ToolOutcome]:
        return [*await self._ports.tools.make(asks)]

    @workflow.update
    async def question(self, question: Question) -> RequestRef:
        return self._ports.people.question(question)

    @workflow.update
    async def load(self) -> TurnContext:
        return await self._ports.memory.load()

    @workflow.update
    async def facts(self, ask: FactsRequest) -> FactsAnswer:
        return await self._ports.memory.facts(ask)

    @workflow.update
    async def ask(self, asked: Asked) -> list[RequestRef]:
        return [*self._ports.people.ask(asked.gated, asked.unknown, {})]

    @workflow.update
    async def verdicts(self, requests: list[RequestRef]) -> Verdicts:
        return await self._ports.people.verdicts(requests)

    @workflow.update
    async def pause(self) -> None:
        """What TurnRun does at the end of a run that pauses."""
        assert self._stretch.asked is not None
        await self._stretch.calls.make(APPROVALS_OPEN, self._stretch.asked, summary="open requests", stoppable=False)
