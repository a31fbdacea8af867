"""The ports: everything that a node can reach. In a workflow a port is an activity; in a unit test it is a fake.

No port raises for an external failure. The answer has a `problem`, which the node turns into state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pydantic import JsonValue

from perdure.contracts.activities import Checked, TurnContext, Verdicts
from perdure.contracts.approvals import GatedCall, Question, RequestRef
from perdure.contracts.calls import ModelCallRequest, ModelReply, PlannedAsk, ToolCallRequest, ToolOutcome
from perdure.contracts.context_assembly import AssembleAsk, Assembled
from perdure.contracts.memory import FactsAnswer, FactsRequest


class Model(Protocol):
    """The model of this turn's agent."""

    async def complete(self, request: ModelCallRequest) -> ModelReply:
        """Makes one model call and returns its settled reply. A call repeated for the same step is paid once."""
        ...


class Tools(Protocol):
    """The tools of this turn."""

    async def run(
        self, requests: Sequence[ToolCallRequest], waiting: Sequence[RequestRef] = ()
    ) -> Sequence[ToolOutcome]:
        """Runs calls in parallel and returns their outcomes in the order of `requests`. A settled call returns its
        stored result.

        Calls of a gated round whose requests are `waiting` do not start. While others run, every wake signal makes the
        port read the records again. A call that is decided by then starts immediately. If the outcome of a call
        became unknown, its request opens there too. The port returns when no call runs; calls that still wait are
        `planned` without a problem.
        """
        ...

    async def check(self, call_ids: Sequence[str]) -> Checked:
        """Checks planned calls by the types of their tools, before a person is asked about them.

        Refused calls are settled as failed. If the answer has a problem, nothing can be assumed.
        """
        ...

    async def make(self, calls: Sequence[PlannedAsk]) -> Sequence[ToolOutcome]:
        """Makes the graph's own calls in parallel. Returns outcomes in their order, each with the tool's whole
        `output`.

        Like model calls, they are in the ledger. A tool that needs an approval does not run; its outcome has a
        `problem`.
        """
        ...

    async def assemble(self, calls: Sequence[AssembleAsk]) -> Sequence[Assembled]:
        """Runs the tools of one phase in parallel and returns their results in the order of `calls`. Each tool is
        retried as its registry defines."""
        ...


class Memory(Protocol):
    """The context of a new turn, and the facts that a turn can read and store."""

    async def load(self) -> TurnContext:
        """Loads the plan, the user message, the working memory and requests opened before, in one activity."""
        ...

    async def facts(self, request: FactsRequest) -> FactsAnswer:
        """Reads or stores facts. An external failure is the answer's status. No operation is retried."""
        ...


class People(Protocol):
    """Requests to people, and their verdicts."""

    def open_requests(
        self,
        gated: Sequence[GatedCall],
        unknown: Sequence[GatedCall],
        snapshot: dict[str, JsonValue],
        *,
        continues: bool = False,
    ) -> Sequence[RequestRef]:
        """Opens requests about these calls: for approval, or for the outcome of an unknown effect.

        All requests of a pause open in one transaction when the run ends in it, with all earlier events. Their ids
        derive from turn and call, so they are known here. A run that ends in any other way opens none. Asking again for
        an open request changes nothing. With `continues`, the turn checks the records immediately instead of waiting,
        because other calls can run.
        """
        ...

    def open_question(self, question: Question) -> RequestRef:
        """Opens a question to the turn's own user. It replaces any earlier request of this run and opens like those of
        `open_requests`."""
        ...

    async def verdicts(self, requests: Sequence[RequestRef]) -> Verdicts:
        """Reads the current verdicts from the durable records. If the answer has a problem, nothing can be assumed."""
        ...


class Events(Protocol):
    """The event log. Events are not sent immediately; the next activity writes them."""

    def emit(self, kind: str, data: dict[str, JsonValue] | None = None, call_id: str | None = None) -> None:
        """Adds an event to the log."""
        ...


class Clock(Protocol):
    """The time, identical in every replay."""

    def now(self) -> datetime:
        """Returns the current time in UTC, with its time zone."""
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
    """Returns the same ports for each of several parallel branches, with separate numbers for their calls
    (perdure/workflows/turn_segment.py)."""
    is_long: Callable[[str, bool], bool]
    """Returns whether a new run should continue at this entry: because the history is long or, as the second argument
    says, because the run has taken many steps."""
