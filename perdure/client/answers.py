"""What the API answers, typed as far as the contract goes. Fields added later are kept and can be read as well."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from contracts.turns import ENDED

_ENDED = frozenset(status.value for status in ENDED)
_AWAITING = "awaiting_"

Item = TypeVar("Item")


class Answer(BaseModel):
    """An immutable answer; `model_dump` gives all of it back, unknown fields included."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())


class Page(Answer, Generic[Item]):
    """A part of a list."""

    items: list[Item]
    next: str | None = None
    """The cursor of the part that follows."""


class Conversation(Answer):
    """A conversation with one agent."""

    id: str
    agent: str
    title: str = ""
    metadata: Mapping[str, Any] = {}


class Message(Answer):
    """A message of the transcript."""

    id: str
    role: str
    content: str = ""
    turn_id: str | None = None


class Failure(Answer):
    """Why a turn did not complete."""

    code: str
    message: str


class Waiting(Answer):
    """What a turn waits for."""

    kind: str
    ids: list[str] = []
    since: datetime | None = None
    expires_at: datetime | None = None


class TurnUsage(Answer):
    """What a turn used so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    tokens_used: int = 0
    cost_usd: float = 0.0


class Turn(Answer):
    """A turn; just started, it has its ids, status and `events` only."""

    turn_id: str
    conversation_id: str
    status: str
    agent: str = ""
    topology: str = ""
    answer: str | None = None
    error: Failure | None = None
    usage: TurnUsage = TurnUsage()
    waiting_for: Waiting | None = None
    nodes: list[str] = []
    attempts: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    events: str | None = None

    @property
    def has_ended(self) -> bool:
        """No status follows this one."""
        return self.status in _ENDED

    @property
    def is_paused(self) -> bool:
        """It waits for a person."""
        return self.status.startswith(_AWAITING)


class Approval(Answer):
    """A call that waits for, or has got, a reviewer's decision."""

    id: str
    status: str
    tool: str
    """Empty at a checkpoint on an answer."""
    kind: str = "approval"
    """`approval` of a call, or a `checkpoint` on what came of one."""
    turn_id: str = ""
    conversation_id: str = ""
    agent: str = ""
    args: dict[str, Any] = {}
    """The frozen arguments: exactly these will run."""
    digest: str = ""
    """What a decision must name, so that it is about this call and no other."""
    effect: str = ""
    risk: str = ""
    description: str = ""
    rule: str = ""
    checkpoint: str = ""
    reason: str = ""
    """The rule's message: why a person is asked."""
    result: Any = None
    """At a checkpoint: what there is to look at."""
    prompt_excerpt: str = ""
    requested_by: str = ""
    requested_at: datetime | None = None
    expires_at: datetime | None = None
    version: int = 1
    allowed_decisions: list[str] = []
    decision: dict[str, Any] | None = None
    decided_by: str | None = None
    decided_at: datetime | None = None
    history: list[dict[str, Any]] = []
    """Only where one approval is asked for."""
    links: dict[str, str] = {}


class Effect(Answer):
    """An effect in the ledger."""

    key: str
    tool: str
    state: str
    turn_id: str = ""
    args: dict[str, Any] = {}
    effect: str = ""
    deadline: datetime | None = None
    """Until then a frozen worker may still send it, so nobody may say that it did not happen."""


class Settled(Answer):
    """What a person stated about an effect."""

    key: str
    outcome: str


class User(Answer):
    """A person or a program that has access."""

    name: str
    roles: list[str] = []


class PromptVersion(Answer):
    """A version of a prompt template; in a list it has no text."""

    id: str
    template: str
    stage: str
    author: str = ""
    digest: str = ""
    """What a promotion must name, so that it is about this text and no other."""
    characters: int = 0
    changed_at: datetime | None = None
    text: str = ""


class Token(Answer):
    """A new token; Perdure keeps only its hash."""

    name: str
    token: str = Field(repr=False)


class Budget(Answer):
    """A day's budget: its limits, what is used, and what calls under way have reserved."""

    agent: str = ""
    """Empty: all agents of the tenant together."""
    max_tokens: int | None = None
    used_tokens: int = 0
    reserved_tokens: int = 0
    max_cost_usd: float | None = None
    used_cost_usd: float = 0.0
    reserved_cost_usd: float = 0.0


class Budgets(Answer):
    """Today's budgets; a day is one of UTC."""

    day: str
    resets_at: datetime | None = None
    tenant: Budget | None = None
    """None where it never had a limit, so that nothing is counted."""
    agents: list[Budget] = []


class Rule(Answer):
    """A rule as the tenant has it."""

    id: str
    on: str = ""
    when: dict[str, Any] = {}
    do: str
    """The tenant's own action where `overridden`."""
    overridden: bool = False
    checkpoint: str = ""
    message: str = ""


class Agent(Answer):
    """An agent that turns can be started with."""

    id: str
    title: str = ""
    topology: str = ""
    model: str = ""


class Topology(Answer):
    """A graph that agents run on."""

    name: str
