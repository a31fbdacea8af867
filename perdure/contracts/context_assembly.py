"""The tools that put a turn's context together: how each is declared, what an agent makes of them, what they leave.

Dependencies are names, so that a registry is a file and adding a tool is a line in it (S1-17 to S1-20).
"""

from typing import Self

from pydantic import Field, JsonValue, model_validator

from perdure.contracts.errors import Problem
from perdure.contracts.events import PendingEvent
from perdure.contracts.skills import is_empty
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import Frozen, Tolerant

TOPOLOGY = "context_assembly"
"""The topology whose agents have a context assembly."""
THRESHOLD = 0.4
"""The completeness from which a tool's earlier output is kept (S1-33)."""
SLICE_MESSAGES = 12
"""How many of the user's newest messages feed the tools that hear the conversation."""


class PipelineToolConfig(Frozen):
    """One tool of a registry; the names of its fields and their defaults are the source's (S1-17)."""

    name: str = Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$")
    dependencies: tuple[str, ...] = ()
    """Tools that must have ended before it starts."""
    inject_inputs: tuple[str, ...] = ()
    """Keys of the outputs of earlier phases that become its arguments (S1-27)."""
    defaults: dict[str, JsonValue] = {}
    """Arguments that it has unless something else says otherwise; copied for every call (S1-18)."""
    max_retries: int = Field(default=1, ge=0, le=10)
    """Attempts are one more (S1-28)."""
    retry_backoff: float = Field(default=0.5, ge=0, le=30, allow_inf_nan=False)
    """Seconds before the first retry; each further wait is twice the one before (S1-30)."""
    timeout: float = Field(default=30.0, gt=0, le=600, allow_inf_nan=False)
    """Seconds of one attempt."""
    optional: bool = False
    """Whether the turn goes on without it (S1-37)."""
    hears: bool = False
    """Whether the user's newest messages are among its arguments, as `said`."""


class ListedTool(Frozen):
    """A tool in an agent's own list."""

    name: str
    arguments: dict[str, JsonValue] = {}
    """The caller's own: over defaults and injected values (S1-26)."""


class ContextAssembly(Frozen):
    """What an agent of the topology `context_assembly` is made of, beside its persona and tools."""

    pipeline: str
    """The registry, by name."""
    tools: tuple[ListedTool, ...] = ()
    """Those of the registry that this agent runs; in a file nothing means all of them."""
    registry: tuple[PipelineToolConfig, ...] = ()
    """Their configurations, put in place when the app is read."""
    threshold: float = Field(default=THRESHOLD, ge=0, le=1, allow_inf_nan=False)
    slice_messages: int = Field(default=SLICE_MESSAGES, ge=1, le=50)
    acknowledgements: tuple[str, ...] = ()
    """Messages that say nothing new, such as "thanks": they change no slice."""
    patience_seconds: float = Field(default=30.0, gt=0, le=300, allow_inf_nan=False)
    """Of a question's attempts together; its instructions are the agent's stage of that name."""
    intents: tuple[str, ...] = Field(min_length=1)
    default_intent: str
    """What stands where the intent cannot be told (S1-16)."""
    intervention: str = Field(min_length=1)
    """What a turn answers that the safety check has taken over: this text, and no model's (S1-14)."""
    danger: dict[str, tuple[str, ...]] = Field(default={}, exclude_if=is_empty)
    """By category: phrases by which a message is taken over before a model is asked
    (perdure/core/agents/safety_keywords.py)."""

    @model_validator(mode="after")
    def _default_is_known(self) -> Self:
        if self.default_intent not in self.intents:
            raise ValueError(f"default_intent: {self.default_intent!r} is none of the intents")
        return self

    def config(self, name: str) -> PipelineToolConfig | None:
        """The configuration of the tool `name`."""
        return next((each for each in self.registry if each.name == name), None)

    def listed(self, name: str) -> ListedTool:
        """What the agent says of the tool `name`."""
        return next((each for each in self.tools if each.name == name), ListedTool(name=name))


class PlannedTool(Tolerant):
    """What the graph needs to know of a tool of the pipeline."""

    name: str
    dependencies: tuple[str, ...] = ()
    """Those that run in the same turn."""
    optional: bool = False
    hears: bool = False
    timeout_seconds: float = 30.0
    injects: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Keys of earlier outputs that become its arguments."""
    basis: str
    """Digest of its card and of all that is fixed about it: another basis is another tool."""


class PlannedAssembly(Tolerant):
    """A context assembly, cut down to what its graph decides with."""

    tools: tuple[PlannedTool, ...]
    threshold: float
    intents: tuple[str, ...]
    default_intent: str
    intervention: str
    patience_seconds: float = 30.0
    """Of a question's attempts together."""


class Bundle(Tolerant):
    """An output that is kept in Postgres, by reference: the turn that made it, and what it was made from."""

    tool: str
    turn_id: str
    completeness: float
    slice_hash: str
    """Of what the user had said when it was made."""
    upstream: str
    """Digest of all that fed it."""
    digest: str
    """Of the output."""
    gives: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Those of its keys that tools of the registry have injected."""


class ContextMemory(Tolerant):
    """What a conversation's earlier turns have left for the assembly of this one."""

    slice_hash: str
    """Of what the user has said now."""
    kept: tuple[Bundle, ...] = ()
    """The newest of each tool."""
    danger: str = Field(default="", exclude_if=is_empty)
    """The category of the agent's words of danger that the message has; empty where it has none."""


class Source(Tolerant):
    """Where an earlier phase's output is."""

    tool: str
    turn_id: str


class AssembleAsk(Tolerant):
    """One tool of a phase, as the graph asks for it."""

    tool: str
    timeout_seconds: float
    slice_hash: str
    upstream: str
    sources: tuple[Source, ...] = ()
    """The outputs of all earlier phases, in their order."""


class AssembleCall(Tolerant):
    """The input of `tools.assemble`. Arguments are put together from Postgres."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    ask: AssembleAsk
    events: tuple[PendingEvent, ...] = ()


class Assembled(Tolerant):
    """What a tool came to: its bundle, or why there is none."""

    tool: str
    bundle: Bundle | None = None
    attempts: int = 1
    problem: Problem | None = None
