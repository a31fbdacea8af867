"""The tools that build a turn's context: their declarations, an agent's settings, and their outputs.

Dependencies are names. A registry is therefore a file, and a new tool is one entry in it.
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
"""The completeness from which a tool's earlier output is reused."""
SLICE_MESSAGES = 12
"""Number of the user's newest messages that tools with `hears` receive."""


class PipelineToolConfig(Frozen):
    """One tool of a registry. The fields are the keys of a tool in an app's `pipelines/<name>.yaml`."""

    name: str = Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$")
    dependencies: tuple[str, ...] = ()
    """Tools that must have ended before this one starts."""
    inject_inputs: tuple[str, ...] = ()
    """Keys of the outputs of earlier phases that become arguments of this tool."""
    defaults: dict[str, JsonValue] = {}
    """Default arguments, copied for every call."""
    max_retries: int = Field(default=1, ge=0, le=10)
    """Number of retries; the number of attempts is one higher."""
    retry_backoff: float = Field(default=0.5, ge=0, le=30, allow_inf_nan=False)
    """Seconds before the first retry. Each further wait is twice as long."""
    timeout: float = Field(default=30.0, gt=0, le=600, allow_inf_nan=False)
    """Time limit of one attempt, in seconds."""
    optional: bool = False
    """True if the turn can continue without this tool's output."""
    hears: bool = False
    """Passes the user's newest messages in the argument `said`."""


class ListedTool(Frozen):
    """A tool in an agent's own list."""

    name: str
    arguments: dict[str, JsonValue] = {}
    """The agent's own arguments; they override defaults and injected values."""


class ContextAssembly(Frozen):
    """The parts of an agent of the topology `context_assembly`, in addition to its persona and tools."""

    pipeline: str
    """Name of the registry."""
    tools: tuple[ListedTool, ...] = ()
    """The tools of the registry that this agent runs. A file without this list runs all of them."""
    registry: tuple[PipelineToolConfig, ...] = ()
    """Their configurations, filled in when the app is loaded."""
    threshold: float = Field(default=THRESHOLD, ge=0, le=1, allow_inf_nan=False)
    slice_messages: int = Field(default=SLICE_MESSAGES, ge=1, le=50)
    acknowledgements: tuple[str, ...] = ()
    """Messages without new information, such as "thanks"; they do not change a slice."""
    patience_seconds: float = Field(default=30.0, gt=0, le=300, allow_inf_nan=False)
    """Time limit of all attempts of a question together, in seconds. Its instructions are the agent's stage of that
    name."""
    intents: tuple[str, ...] = Field(min_length=1)
    default_intent: str
    """Used if the intent cannot be determined."""
    intervention: str = Field(min_length=1)
    """The fixed answer of a turn that the safety check took over; no model writes it."""
    danger: dict[str, tuple[str, ...]] = Field(default={}, exclude_if=is_empty)
    """Phrases by category. A message that contains one is taken over before a model is called
    (perdure/core/agents/safety_keywords.py)."""

    @model_validator(mode="after")
    def _default_is_known(self) -> Self:
        if self.default_intent not in self.intents:
            raise ValueError(f"default_intent: {self.default_intent!r} is not one of the intents")
        return self

    def config(self, name: str) -> PipelineToolConfig | None:
        """Returns the configuration of the tool in the registry, or None if the tool is not in it."""
        return next((tool_config for tool_config in self.registry if tool_config.name == name), None)

    def tool_entry(self, name: str) -> ListedTool:
        """Returns the agent's entry for the tool; an entry with defaults if the agent has none."""
        return next((tool for tool in self.tools if tool.name == name), ListedTool(name=name))


class PlannedTool(Tolerant):
    """A tool of the pipeline, reduced to the fields that the graph needs."""

    name: str
    dependencies: tuple[str, ...] = ()
    """Names of its dependencies that run in the same turn."""
    optional: bool = False
    hears: bool = False
    timeout_seconds: float = 30.0
    injects: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Keys of earlier outputs that become its arguments."""
    basis: str
    """Digest of the tool's card and of all its fixed settings. A different basis is a different tool."""


class PlannedAssembly(Tolerant):
    """A context assembly, reduced to what its graph decides with."""

    tools: tuple[PlannedTool, ...]
    threshold: float
    intents: tuple[str, ...]
    default_intent: str
    intervention: str
    patience_seconds: float = 30.0
    """Time limit of all attempts of a question together, in seconds."""


class Bundle(Tolerant):
    """Reference to an output in Postgres: the turn that made it, and its inputs."""

    tool: str
    turn_id: str
    completeness: float
    slice_hash: str
    """Hash of the user's messages at the time of the output."""
    upstream: str
    """Digest of all inputs."""
    digest: str
    """Digest of the output."""
    gives: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Keys of the output that other tools of the registry receive."""


class ContextMemory(Tolerant):
    """The outputs and state that earlier turns of the conversation left for this turn's assembly."""

    slice_hash: str
    """Hash of what the user has said now."""
    kept: tuple[Bundle, ...] = ()
    """The newest output of each tool."""
    danger: str = Field(default="", exclude_if=is_empty)
    """The category of the agent's safety phrases that the message contains; empty if there is none."""


class Source(Tolerant):
    """The location of an earlier phase's output."""

    tool: str
    turn_id: str


class AssembleAsk(Tolerant):
    """One tool of a phase, as the graph requests it."""

    tool: str
    timeout_seconds: float
    slice_hash: str
    upstream: str
    sources: tuple[Source, ...] = ()
    """The outputs of all earlier phases, in order."""


class AssembleCall(Tolerant):
    """The input of `tools.assemble`. The activity reads the arguments from Postgres."""

    address: TurnAddress
    agent_id: str
    agent_version: str
    ask: AssembleAsk
    events: tuple[PendingEvent, ...] = ()


class Assembled(Tolerant):
    """The result of a tool: its bundle, or why there is none."""

    tool: str
    bundle: Bundle | None = None
    attempts: int = 1
    problem: Problem | None = None
