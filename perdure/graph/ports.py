"""The ports: all that a node may reach. In a workflow a port is an activity; in a unit test it is a fake.

No port raises for a failure outside: the answer carries a `problem`, which the node turns into state (design
section 3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pydantic import JsonValue

from perdure.contracts.activities import TurnContext, Verdicts
from perdure.contracts.approvals import GatedCall, Question, RequestRef
from perdure.contracts.calls import ModelAsk, ModelReply, PlannedAsk, ToolAsk, ToolOutcome
from perdure.contracts.context_assembly import AssembleAsk, Assembled
from perdure.contracts.memory import FactsAnswer, FactsAsk


class Model(Protocol):
    """The model behind this turn's agent."""

    async def complete(self, ask: ModelAsk) -> ModelReply:
        """One model call, settled: asked twice for the same step, it is paid once."""
        ...


class Tools(Protocol):
    """The tools of this turn."""

    async def run(self, asks: Sequence[ToolAsk], waiting: Sequence[RequestRef] = ()) -> Sequence[ToolOutcome]:
        """Run calls side by side; outcomes in the order of `asks`. A settled call answers with its stored result.

        Of a gated round those do not start whose requests are `waiting`. While others run, every bell has the records
        read, and a call that is decided by then starts at once; one whose outcome became unknown is asked about there
        too. Back when nothing runs: what waits still is `planned` without a problem.
        """
        ...

    async def make(self, asks: Sequence[PlannedAsk]) -> Sequence[ToolOutcome]:
        """Make calls of the graph's own side by side; outcomes in their order, each with the tool's whole `output`.

        They are in the ledger as a model's are. A tool that needs an approval is not run: that is a `problem`.
        """
        ...

    async def assemble(self, asks: Sequence[AssembleAsk]) -> Sequence[Assembled]:
        """Run the tools of one phase side by side, each tried as its registry says; outcomes in the order of `asks`."""
        ...


class Memory(Protocol):
    """What a fresh turn starts from, and what it may remember while it runs."""

    async def load(self) -> TurnContext:
        """Plan, user message, working memory and requests opened before, in one hop."""
        ...

    async def facts(self, ask: FactsAsk) -> FactsAnswer:
        """Read or keep facts. Whatever happens outside is the answer's status; nothing is asked for twice."""
        ...


class People(Protocol):
    """Requests to people, and their verdicts."""

    def ask(
        self,
        gated: Sequence[GatedCall],
        unknown: Sequence[GatedCall],
        snapshot: dict[str, JsonValue],
        *,
        goes_on: bool = False,
    ) -> Sequence[RequestRef]:
        """Ask people about these calls: for leave to run, or what became of an unknown effect.

        All requests of a pause are opened in one transaction when the run ends in it, with every event before it;
        their ids derive from turn and call, so they are known here. A run that ends otherwise opens none. To ask again
        for what is open changes nothing of it. With `goes_on` the turn does not wait once they are open: it looks at
        once, since there is something to run beside them.
        """
        ...

    def question(self, question: Question) -> RequestRef:
        """Ask the turn's own user, in place of anything asked before in this run; it opens as what `ask` asks does."""
        ...

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        """What the durable records say now; a problem means that nothing may be assumed."""
        ...


class Events(Protocol):
    """The event log; nothing is sent at once, the next activity writes it."""

    def emit(self, kind: str, data: dict[str, JsonValue] | None = None, call_id: str | None = None) -> None:
        """Put an event in the log."""
        ...


class Clock(Protocol):
    """The time, the same in every replay."""

    def now(self) -> datetime:
        """Now, aware, UTC."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one run."""

    model: Model
    tools: Tools
    memory: Memory
    people: People
    events: Events
    clock: Clock
    apart: Callable[[int], "Sequence[Ports]"]
    """The same ports for each of so many branches that run side by side: their calls are numbered apart
    (perdure/workflows/turn_segment.py)."""
