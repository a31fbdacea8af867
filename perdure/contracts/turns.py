"""A turn: its states, what starts its workflow, what a pause carries, how it ends."""

from enum import StrEnum

from pydantic import Field, JsonValue

from perdure.contracts.approvals import RequestRef
from perdure.contracts.errors import Problem
from perdure.contracts.events import PendingEvent
from perdure.contracts.values import Tolerant


class TurnStatus(StrEnum):
    """What a client sees of a turn (api.md)."""

    ACCEPTED = "accepted"
    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_APPROVAL = "awaiting_approval"
    AWAITING_ANSWER = "awaiting_answer"
    COMPLETED = "completed"
    FAILED = "failed"
    LIMITED = "limited"
    STOPPED = "stopped"
    REPLACED = "replaced"


ENDED = frozenset(
    {TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.LIMITED, TurnStatus.STOPPED, TurnStatus.REPLACED}
)
"""No status follows one of these."""


class Kind(StrEnum):
    """The kinds of work, each routed to a task queue of its own choosing."""

    TURNS = "turns"
    LLM = "llm"
    TOOLS = "tools"
    MEMORY = "memory"
    APPROVALS = "approvals"


def waits_queue(turns_queue: str) -> str:
    """The queue of paused turns that belongs to a turns queue."""
    return f"{turns_queue}-waits"


class Routing(Tolerant):
    """Which task queue each kind of activity goes to: a value of the turn, fixed at its start (design section 2)."""

    turns: str = "perdure-turns"
    llm: str = "perdure-llm"
    tools: str = "perdure-turns"
    memory: str = "perdure-turns"
    approvals: str = "perdure-turns"

    @classmethod
    def compact(cls) -> "Routing":
        """All but the model on the workflow's own queue, where activities run eagerly."""
        return cls()

    @classmethod
    def spread(cls) -> "Routing":
        """A queue for each kind, so that each scales apart."""
        return cls(tools="perdure-tools", memory="perdure-memory", approvals="perdure-approvals")

    def queue(self, kind: Kind) -> str:
        """The task queue of `kind`."""
        return str(getattr(self, kind.value))

    @property
    def waits(self) -> str:
        """The queue of paused turns, served beside the turns queue by workers that cache nothing."""
        return waits_queue(self.turns)


class OnSpent(StrEnum):
    """What becomes of a turn whose tokens or money are spent."""

    END = "end"
    """It ends as limited."""
    ASK = "ask"
    """It waits for a reviewer to raise the limit."""


class Limits(Tolerant):
    """What a turn may use. A limit is reached at equality (S0-40)."""

    max_tokens: int = Field(default=100_000, ge=0)
    max_cost_microusd: int = Field(default=5_000_000, ge=0)
    max_iterations: int = Field(default=20, ge=0)
    """Rounds of tool calls (S0-60)."""
    on_spent: OnSpent = Field(default=OnSpent.END, exclude_if=lambda on_spent: on_spent is OnSpent.END)


class Usage(Tolerant):
    """What a call or a turn used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_microusd: int = 0
    thinking_tokens: int = Field(default=0, exclude_if=lambda tokens: not tokens)
    """Of the output tokens; known of a call, and not added up for its turn."""

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def less(self, other: "Usage") -> "Usage":
        """How much more than `other` this is; negative where it is less."""
        return Usage(**{name: getattr(self, name) - getattr(other, name) for name in Usage.model_fields})


class TurnAddress(Tolerant):
    """Whose turn it is; rides on every activity input."""

    tenant_id: str
    conversation_id: str
    turn_id: str


class Bell(Tolerant):
    """A signal: look again. It never carries a verdict."""

    kind: str
    """`request` or `stop`."""
    request_id: str = ""


class Carried(Tolerant):
    """What goes from a run to the wait and back (design section 2, step 5)."""

    state: dict[str, JsonValue]
    requests: tuple[RequestRef, ...]
    rung: bool = False
    """A bell rang that nobody has looked after yet."""
    looks: int = 0
    """How often in a row a look changed nothing."""
    stop: bool = False
    """It is to stop: its record says so, or its workflow was cancelled."""
    stop_rung: bool = Field(default=False, exclude_if=lambda stop_rung: not stop_rung)
    """A bell says so; the run reads the record before it believes it."""
    step: int = 0
    events: tuple[PendingEvent, ...] = ()
    """Written by the next activity's claim."""
    events_made: int = 0
    """How many events the nodes have made so far."""


class TurnInput(Tolerant):
    """The argument of both workflow types."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    topology: str
    routing: Routing = Field(default_factory=Routing)
    entry: str = "fresh"
    """`fresh`, or the kind of pause that the run resumes from."""
    carried: Carried | None = None


class StopAsk(Tolerant):
    """Whose record `turns.read` reads, after a stop's bell."""

    address: TurnAddress


class StopRead(Tolerant):
    """What the record says; a bell is none."""

    asked: bool


class FinishAsk(Tolerant):
    """How a turn ended, for `turns.finish`."""

    address: TurnAddress
    status: TurnStatus
    problem: Problem | None = None
    transcript: tuple[str, ...] = ()
    """Ids of the turn's messages that stay in the conversation, in order; the others were stripped."""
    answer: str = Field(default="", exclude_if=lambda answer: not answer)
    """The last word where no model said it: it is written as the turn's last message."""
    output: dict[str, JsonValue] = Field(default={}, exclude_if=lambda output: not output)
    """What the turn hands out beside its answer."""
    events: tuple[PendingEvent, ...] = ()


class Finished(Tolerant):
    """What `turns.finish` did."""

    status: TurnStatus
    admitted_turn_id: str | None = None
    """The queued turn that now starts, if one waited."""
