"""A turn: its states, the input of its workflow, what a pause carries, how it ends."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, JsonValue

from perdure.contracts.approvals import RequestRef
from perdure.contracts.errors import Problem
from perdure.contracts.events import PendingEvent
from perdure.contracts.values import Tolerant


class TurnStatus(StrEnum):
    """The status of a turn as clients see it."""

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
"""Final statuses."""


class Kind(StrEnum):
    """Kinds of work, each of which can have a task queue of its own."""

    TURNS = "turns"
    LLM = "llm"
    TOOLS = "tools"
    MEMORY = "memory"
    APPROVALS = "approvals"


def waits_queue(turns_queue: str) -> str:
    """Returns the queue of paused turns that belongs to a turns queue."""
    return f"{turns_queue}-waits"


class Routing(Tolerant):
    """The task queue of each kind of activity. Fixed when the turn starts."""

    turns: str = "perdure-turns"
    llm: str = "perdure-llm"
    tools: str = "perdure-turns"
    memory: str = "perdure-turns"
    approvals: str = "perdure-turns"

    @classmethod
    def compact(cls) -> "Routing":
        """Returns the routing with all kinds except the model on the workflow's own queue, where activities run
        eagerly."""
        return cls()

    @classmethod
    def spread(cls) -> "Routing":
        """Returns the routing with a queue for each kind, so that each scales independently."""
        return cls(tools="perdure-tools", memory="perdure-memory", approvals="perdure-approvals")

    def queue(self, kind: Kind) -> str:
        """Returns the task queue of `kind`."""
        return str(getattr(self, kind.value))

    @property
    def waits(self) -> str:
        """The queue of paused turns. Workers that cache no workflows serve it in addition to the turns queue."""
        return waits_queue(self.turns)


class OnSpent(StrEnum):
    """The options for a turn that has used up its tokens or its budget."""

    END = "end"
    """The turn ends as limited."""
    ASK = "ask"
    """The turn waits for a reviewer to raise the limit."""


class Limits(Tolerant):
    """The limits of a turn. A limit is reached at equality."""

    max_tokens: int = Field(default=100_000, ge=0)
    max_cost_microusd: int = Field(default=5_000_000, ge=0)
    max_iterations: int = Field(default=20, ge=0)
    """Rounds of tool calls."""
    on_spent: OnSpent = Field(default=OnSpent.END, exclude_if=lambda on_spent: on_spent is OnSpent.END)


class Usage(Tolerant):
    """The usage of a call or a turn."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_microusd: int = 0
    thinking_tokens: int = Field(default=0, exclude_if=lambda tokens: not tokens)
    """Part of the output tokens. Known for a call, and not added up for its turn."""

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __sub__(self, other: "Usage") -> "Usage":
        """Returns the difference per field; negative if `other` is larger."""
        return Usage(**{name: getattr(self, name) - getattr(other, name) for name in Usage.model_fields})


class TurnAddress(Tolerant):
    """Identifies a turn; part of every activity input."""

    tenant_id: str
    conversation_id: str
    turn_id: str


class WakeSignal(Tolerant):
    """A wake signal: read the records again. It never carries a verdict."""

    kind: str
    """`request` or `stop`."""
    request_id: str = ""


class Carried(Tolerant):
    """The values that a run passes to the wait and back."""

    state: dict[str, JsonValue]
    requests: tuple[RequestRef, ...]
    rung: bool = False
    """True if a signal has arrived that no run has handled yet."""
    looks: int = 0
    """Number of successive reads without news."""
    stop: bool = False
    """True if the turn must stop, by its record or because its workflow was cancelled."""
    stop_rung: bool = Field(default=False, exclude_if=lambda stop_rung: not stop_rung)
    """True if a signal requests the stop. The run reads the record before it acts."""
    step: int = 0
    events: tuple[PendingEvent, ...] = ()
    """Events that the next activity's claim writes."""
    events_made: int = 0
    """Number of events that the nodes have made so far."""


class TurnInput(Tolerant):
    """The argument of both workflow types."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    topology: str
    topology_version: int | None = Field(default=None, exclude_if=lambda version: version is None)
    """The version of the topology that every run of the turn uses. None for a turn that started before versions were
    pinned (perdure/graph/registry.py)."""
    routing: Routing = Field(default_factory=Routing)
    entry: str = "fresh"
    """`fresh`, the kind of pause from which the run resumes, or the node before which a long run was renewed."""
    carried: Carried | None = None


class StuckTask(Tolerant):
    """The workflow task of a turn that fails at every attempt, so that the turn does not continue."""

    failures: int
    """The failed attempts. Signals make Temporal count again from one, so there may be more."""
    since: datetime
    """The first failure."""
    message: str
    """The first line of the failure."""
    given_up: bool = False
    """True if the relay is ending the workflow."""
    failed_event: int = 0
    """The event of the latest failure. Temporal records only the first one, and the first one after each signal."""
    run_id: str = ""
    """The workflow's run."""
    completed_event: int = 0
    """The event of the run's last workflow task that completed before the failures; 0 if there is none."""
    probed_at: datetime | None = None
    """When the relay last sent a signal, after which Temporal tries the task again and records its failure."""
    probed_event: int = 0
    """`failed_event` at that time."""


class StopRequest(Tolerant):
    """The turn whose record `turns.read` reads after a stop signal."""

    address: TurnAddress


class StopRead(Tolerant):
    """The content of the turn's record; the signal alone does not count."""

    asked: bool


class FinishRequest(Tolerant):
    """The end of a turn, for `turns.finish`."""

    address: TurnAddress
    status: TurnStatus
    problem: Problem | None = None
    transcript: tuple[str, ...] = ()
    """Ids of the turn's messages that stay in the conversation, in order; the others were removed."""
    rounds: tuple[tuple[int, int], ...] = Field(default=(), exclude_if=lambda rounds: not rounds)
    """Ranges of steps whose rounds stay in the conversation too (`MessageRef.rounds`)."""
    answer: str = Field(default="", exclude_if=lambda answer: not answer)
    """The final answer if no model wrote it, or its end. It is stored as the turn's last message."""
    extends: str = Field(default="", exclude_if=lambda extends: not extends)
    """The id of the model's message that `answer` ends, as another paragraph. Empty if `answer` is the whole."""
    output: dict[str, JsonValue] = Field(default={}, exclude_if=lambda output: not output)
    """Values that the turn returns in addition to its answer."""
    events: tuple[PendingEvent, ...] = ()


class Finished(Tolerant):
    """The result of `turns.finish`."""

    status: TurnStatus
    admitted_turn_id: str | None = None
    """The queued turn that starts now, if there was one."""
