"""The interface of both sides for the suites of the tools, memory and people ports: a turn and its runs.

`sides.py` has both: the double of tests/doubles/ports.py, and the workflow's own ports on a real server.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from pydantic import JsonValue

from perdure.contracts.activities import TurnContext, Verdicts
from perdure.contracts.approvals import GatedCall, Question, RequestRef, VerdictState
from perdure.contracts.calls import ModelCallRequest, ModelReply, PlannedAsk, ToolCallRequest, ToolOutcome
from perdure.contracts.memory import FactsAnswer, FactsRequest
from tests.doubles.message_script import Line
from tests.ports.ports_workflow import Asked, Calls, Round

Args = dict[str, JsonValue]
T = TypeVar("T")
OFFERED = ("look", "slow_look", "pay", "book", "post", "shout", "entity_resolve")
"""The tools of tests/apps/desk that the suites use; `nobodys` is none of them."""
ASK = ModelCallRequest(messages=(), tools=OFFERED)
SCHEMA: Args = {
    "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False,
}  # fmt: skip


class Run(ABC):
    """One run's ports. What nodes await is awaited here; `ask` too, since the real run is in another thread."""

    @abstractmethod
    async def do(self, call: Callable[..., Awaitable[T]], *given: object) -> T:
        """Make one of `Calls`."""

    @abstractmethod
    async def pause(self) -> None:
        """End in a pause: the requests are opened."""

    @abstractmethod
    async def wake(self) -> None:
        """Signals the run after a decision."""

    @abstractmethod
    async def wake_stop(self) -> None:
        """Let the run receive the turn's stop."""

    async def complete(self, ask: ModelCallRequest) -> ModelReply:
        return await self.do(Calls.complete, ask)

    async def run_tools(self, asks: Sequence[ToolCallRequest], waiting: Sequence[RequestRef] = ()) -> list[ToolOutcome]:
        return await self.do(Calls.run_tools, Round(asks=tuple(asks), waiting=tuple(waiting)))

    async def make_calls(self, *asks: PlannedAsk) -> list[ToolOutcome]:
        return await self.do(Calls.make_calls, [*asks])

    async def question(self, question: Question) -> RequestRef:
        return await self.do(Calls.question, question)

    async def load(self) -> TurnContext:
        return await self.do(Calls.load)

    async def facts(self, ask: FactsRequest) -> FactsAnswer:
        return await self.do(Calls.facts, ask)

    async def ask(self, gated: Sequence[GatedCall], unknown: Sequence[GatedCall] = ()) -> list[RequestRef]:
        return await self.do(Calls.ask, Asked(gated=tuple(gated), unknown=tuple(unknown)))

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        return await self.do(Calls.verdicts, [*requests])


class Turn(Protocol):
    """A turn, and the actions of others on it.

    `decide` brings the approval of a call into a state, by `reviewer` if a person decides. `forge` makes its record one
    of another call, `garble` makes it unreadable. After `stop` the runs have not received it yet.
    """

    async def run(self, *, step: int = 0, gone: bool = False) -> Run:
        """A new run over it, at this step; `gone`: of an agent version that no worker has any more."""
        ...

    async def decide(self, call_id: str, state: VerdictState, comment: str = "", args: Args | None = None) -> None: ...
    async def answer(self, call_id: str, answer: Args) -> None: ...
    async def forge(self, call_id: str) -> None: ...
    async def garble(self, call_id: str) -> None: ...
    async def settle(self, call_id: str, *, happened: bool) -> None: ...
    async def stop(self) -> None: ...
    async def remember(self, fields: Args) -> None: ...
    async def dispatched(self, call_id: str) -> int: ...


NewTurn = Callable[..., Awaitable[Turn]]
"""`await new_turn(Line(...), Line(...))`: a turn whose model says these lines; `metadata` is the request's."""


def line(*calls: tuple[str, Args], text: str = "asking") -> Line:
    return Line(text, calls)


async def planned(turn: Turn, run: Run | None = None) -> Run:
    run = run or await turn.run()
    reply = await run.complete(ASK)
    assert reply.message is not None and reply.problem is None
    return run


def asks(*tools: str, step: int = 1, **state: JsonValue) -> list[ToolCallRequest]:
    return [ToolCallRequest(call_id=f"t{step}.{index}", tool=tool, state=state) for index, tool in enumerate(tools)]


def gated(*tools: str, step: int = 1) -> list[GatedCall]:
    return [GatedCall(call_id=f"t{step}.{index}", tool=tool, rule="test") for index, tool in enumerate(tools)]


async def paused(turn: Turn, *tools: str) -> tuple[Run, Sequence[RequestRef]]:
    """A run that has opened requests for all calls of its first step and ended in the pause."""
    run = await planned(turn)
    requests = await run.ask(gated(*tools))
    await run.pause()
    return run, requests


async def approved(turn: Turn, *tools: str) -> Run:
    run, requests = await paused(turn, *tools)
    for request in requests:
        await turn.decide(request.call_id, VerdictState.APPROVED)
    return run


def problem(given: ModelReply | ToolOutcome | TurnContext) -> str:
    return given.problem.code if given.problem is not None else ""
