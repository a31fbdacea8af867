"""What the suites of the tools, memory and people ports ask of either side: a turn, and the runs over it.

`double_side.py` has the double of tests/doubles/ports.py, `real_side.py` the workflow's own ports on a real server.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from pydantic import JsonValue

from perdure.contracts.activities import TurnContext, Verdicts
from perdure.contracts.approvals import GatedCall, Question, RequestRef, VerdictState
from perdure.contracts.calls import ModelCallRequest, ModelReply, PlannedAsk, ToolCallRequest, ToolOutcome
from perdure.contracts.memory import FactsAnswer, FactsRequest
from tests.doubles.spoken import Line

Args = dict[str, JsonValue]
OFFERED = ("look", "slow_look", "pay", "book", "post", "shout", "entity_resolve")
"""The tools of the desk (tests/apps/desk) that the suites use; `nobodys` is none of them."""


class Run(Protocol):
    """One run's ports. What nodes await is awaited here; `ask` too, since the real run is in another thread."""

    async def complete(self, ask: ModelCallRequest) -> ModelReply:
        """The model port."""
        ...

    async def run_tools(
        self, asks: Sequence[ToolCallRequest], waiting: Sequence[RequestRef] = ()
    ) -> Sequence[ToolOutcome]:
        """The tools port."""
        ...

    async def make_calls(self, asks: Sequence[PlannedAsk]) -> Sequence[ToolOutcome]:
        """The tools port: calls of the graph's own."""
        ...

    async def question(self, question: Question) -> RequestRef:
        """The people port, in place of `ask`."""
        ...

    async def load(self) -> TurnContext:
        """The memory port."""
        ...

    async def facts(self, ask: FactsRequest) -> FactsAnswer:
        """The memory port, while a run goes on."""
        ...

    async def ask(self, gated: Sequence[GatedCall], unknown: Sequence[GatedCall] = ()) -> Sequence[RequestRef]:
        """The people port, first half."""
        ...

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        """The people port, second half."""
        ...

    async def pause(self) -> None:
        """End in a pause: what was asked for is opened."""
        ...

    async def wake(self) -> None:
        """Let the run hear that somebody has decided."""
        ...

    async def wake_stop(self) -> None:
        """Let the run hear that the turn is stopped."""
        ...


class Turn(Protocol):
    async def run(self, *, step: int = 0, gone: bool = False) -> Run:
        """A new run over it, at this step; `gone`: of an agent version that nobody has any more."""
        ...

    async def decide(
        self, call_id: str, state: VerdictState, comment: str = "", args: Mapping[str, JsonValue] | None = None
    ) -> None:
        """Bring the approval of a call into that state, by the name of `reviewer` where a person decides."""
        ...

    async def answer(self, call_id: str, answer: Args) -> None:
        """The turn's own user answers."""
        ...

    async def forge(self, call_id: str) -> None:
        """Make the approval's record one of another call than the one that it was opened for."""
        ...

    async def garble(self, call_id: str) -> None:
        """Make the approval's record one that cannot be read at all."""
        ...

    async def settle(self, call_id: str, *, happened: bool) -> None:
        """A person says what became of a call."""
        ...

    async def stop(self) -> None:
        """Ask for a stop; nobody has told the runs yet."""
        ...

    async def remember(self, fields: Args) -> None:
        """Put fields in the conversation's working memory."""
        ...

    async def dispatched(self, call_id: str) -> int:
        """How often a call was sent to its target."""
        ...


NewTurn = Callable[..., Awaitable[Turn]]
"""`await new_turn(Line(...), Line(...))`: a turn whose model says these lines; `metadata` is the request's."""


def line(*calls: tuple[str, Args], text: str = "asking") -> Line:
    """An answer that asks for these calls."""
    return Line(text, calls)


async def planned(turn: Turn, run: Run | None = None) -> Run:
    """The run, once its model has asked for its calls."""
    run = run or await turn.run()
    reply = await run.complete(ModelCallRequest(messages=(), tools=OFFERED))
    assert reply.message is not None and reply.problem is None
    return run


def asks(*tools: str, step: int = 1, **state: JsonValue) -> list[ToolCallRequest]:
    """A node's asks for the calls of a step, in their order."""
    return [ToolCallRequest(call_id=f"t{step}.{index}", tool=tool, state=state) for index, tool in enumerate(tools)]


def gated(*tools: str, step: int = 1) -> list[GatedCall]:
    """The gate's entries for the calls of a step, in their order."""
    return [GatedCall(call_id=f"t{step}.{index}", tool=tool, rule="test") for index, tool in enumerate(tools)]


async def paused(turn: Turn, *tools: str) -> tuple[Run, Sequence[RequestRef]]:
    """A run that has asked for leave for all calls of its first step and ended in the pause."""
    run = await planned(turn)
    requests = await run.ask(gated(*tools))
    await run.pause()
    return run, requests


async def approved(turn: Turn, *tools: str) -> Run:
    """A run of a turn whose first calls are all approved."""
    run, requests = await paused(turn, *tools)
    for request in requests:
        await turn.decide(request.call_id, VerdictState.APPROVED)
    return run
