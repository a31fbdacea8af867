"""An agent as data, the card of a tool, and the compact plan that a turn pins at its start."""

from typing import Final, Literal

from pydantic import Field, JsonValue

from perdure.contracts.approvals import ApprovalPolicy
from perdure.contracts.calls import EffectClass
from perdure.contracts.context_assembly import ContextAssembly, PlannedAssembly
from perdure.contracts.memory import FactScope
from perdure.contracts.messages import WindowPolicy
from perdure.contracts.skills import PlanSkill, Rule, Skill, is_empty
from perdure.contracts.turns import Limits
from perdure.contracts.values import Frozen, Tolerant

MOST_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""No answer is allowed to be larger: it is held in a worker's memory, several times while it is read."""


class ToolCard(Frozen):
    """All that the engine knows of a tool; made from the decorated function, published with its agent."""

    name: str = Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$")
    description: str
    parameters: dict[str, JsonValue]
    """JSON Schema of the arguments, an object."""
    effect: EffectClass
    needs_approval: bool
    """True for everything that may change something, unless its author wrote otherwise."""
    capability: str = ""
    """Capability key that rules match on (S0-52); empty for most."""
    risk: str = "medium"
    """low, medium or high; shown to the reviewer."""
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    key_ttl_seconds: float | None = None
    """`keyed` only: how long the target honours a key; past it the call is treated as opaque."""
    wants_state: tuple[str, ...] = ()
    """State fields handed to a state-aware tool (S0-48)."""
    secrets: tuple[str, ...] = ()
    """Names of credentials that only the tools worker resolves."""
    toolset: str = Field(default="", exclude_if=is_empty)
    """The toolset that a server's tool belongs to (S2-33); empty for every other tool."""
    describe: str = Field(default="", exclude_if=is_empty)
    """A template for one sentence about a call, filled from its arguments, for reviewers:
    perdure/core/agents/templates.py."""
    previews: bool = Field(default=False, exclude_if=is_empty)
    """Whether its author has written a read-only preview of a call, for its reviewer."""
    max_answer_bytes: int | None = Field(default=None, gt=0, le=MOST_ANSWER_BYTES, exclude_if=is_empty)
    """The largest HTTP answer that the tool reads; None: as the operator has set it (PERDURE_ANSWER_BYTES)."""
    version: str
    """Digest of the card and the author's own version: an approval is for one version."""


class DayLimits(Frozen):
    """What all turns of an agent may use in one day of a tenant, UTC (S0-75). None is no limit."""

    max_tokens: int | None = Field(default=None, gt=0)
    max_cost_microusd: int | None = Field(default=None, gt=0)


class MemoryPolicy(Frozen):
    """What an agent remembers beyond its working memory (S0-25, S2-06)."""

    episodic: bool = False
    """Keep a summary of each completed turn, and put the nearest of the same user before a new one."""
    hits: int = Field(default=3, ge=1, le=10)
    """Of episodes."""
    documents: bool = Field(default=False, exclude_if=is_empty)
    """Put the documents that come near to what the user says before each turn."""
    facts: tuple[FactScope, ...] = Field(default=(), exclude_if=is_empty)
    """Whose facts its graph may read and keep while it runs; for topologies that do so."""


class Reasoning(Frozen):
    """How long a model may think before it answers (S2-30). With neither field: `high` where the model can think."""

    budget_tokens: int | None = Field(default=None, ge=1024, le=200_000)
    """Tokens of thinking; it decides where `effort` is there too."""
    effort: Literal["none", "minimal", "low", "medium", "high"] | None = None


class AgentStage(Frozen):
    """A step of a topology as an agent furnishes it: what its model is told, or which tool does its work."""

    prompt: str = ""
    """Instructions for the stage's model calls, beside the persona."""
    tool: str = ""
    """A tool of the agent that the stage's node calls itself; it needs nobody's approval."""
    window: WindowPolicy | None = None
    """How much of the past the stage's model calls see; None: as the agent's."""
    alone: bool = Field(default=False, exclude_if=is_empty)
    """The instructions stand by themselves: no persona, no memory and no prompt of the caller's is before them."""
    like: str = ""
    """Another stage whose model parameters this one begins with (S4-54)."""
    model_params: dict[str, JsonValue] = {}
    """Laid over the agent's; null takes one away."""


SCRIPTED: Final = "scripted"
"""The model that needs no key: a script of the agent's plays it."""


class AgentDefinition(Frozen):
    """An agent: topology, model, budget, tools and prompts. One YAML of an app; pinned by digest."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    title: str
    topology: str
    model: str = SCRIPTED
    """`scripted`, or a name for LiteLLM such as `openai/gpt-4o`."""
    fallback_model: str = Field(default="", exclude_if=is_empty)
    """Asked where `model` cannot answer (S0-76); empty for none. Beside the scripted model it waits for a real one."""
    model_params: dict[str, JsonValue] = {}
    """Passed to the provider: temperature, max_tokens and the like."""
    reasoning: Reasoning | None = Field(default=None, exclude_if=is_empty)
    """None leaves thinking to the provider's own default; `{}` asks for `high` of each model that can think."""
    persona: str = ""
    """Who the agent is; empty takes its root skill's persona, then the platform's (S0-17)."""
    persona_key: str = Field(default="", exclude_if=is_empty)
    """Name of the app's persona file whose text `persona` is; empty where the agent's own file has the text."""
    persona_template: str = Field(default="", pattern=r"^([a-z][a-z0-9_-]{0,63})?$", exclude_if=is_empty)
    """Key of a prompt template whose text each turn takes as its persona; where there is none, `persona` speaks."""
    core_tools: bool = True
    """Offer `entity_resolve` and `context_assemble` (S0-41)."""
    tools: tuple[str, ...] = ()
    toolsets: dict[str, bool] = Field(default={}, exclude_if=is_empty)
    """The toolsets that a conversation begins with, each with whether its tools that change something are offered too;
    the model loads others by `load_toolset` (S2-32). For topologies that load toolsets; others offer every tool."""
    root_skill: str | None = Field(default=None, exclude_if=is_empty)
    """The skill that is loaded from the start, with its dependencies; None for a general agent (S0-21)."""
    skills: tuple[Skill, ...] = ()
    """Whole, dependencies included. In a file: ids of the app's skill folders, or skills written out."""
    stages: dict[str, AgentStage] = Field(default={}, exclude_if=is_empty)
    """For topologies whose steps are furnished by name."""
    words: dict[str, str] = Field(default={}, exclude_if=is_empty)
    """Small texts that a topology's nodes read, by the names that it documents."""
    examples: tuple[str, ...] = Field(default=(), max_length=8, exclude_if=is_empty)
    """What a person may say to it, for whoever has not met it yet; nothing of the engine reads them."""
    files: tuple[str, ...] = Field(default=(), max_length=8, exclude_if=is_empty)
    """Media types of the uploads that its tools work with, for whoever offers a way to upload."""
    limits: Limits = Limits()
    entity_fields: dict[str, str] = Field(default={}, exclude_if=is_empty)
    """Working-memory fields that name an entity, each with the attribute that it is found by (`id`, `name`, or one of
    the app's own): what a skill is told of as it is injected (S0-62)."""
    day_limits: DayLimits | None = Field(default=None, exclude_if=is_empty)
    window: WindowPolicy = WindowPolicy()
    memory: MemoryPolicy | None = Field(default=None, exclude_if=is_empty)
    approvals: ApprovalPolicy = ApprovalPolicy()
    assembly: ContextAssembly | None = Field(default=None, exclude_if=is_empty)
    """For the topology `context_assembly`, which needs it; no other has it."""
    script: dict[str, JsonValue] | None = None
    """The scripted model's rules, for `model: scripted`."""

    @property
    def second_model(self) -> str:
        """The model that is asked where `model` is given up; empty for none. The scripted one is not given up: its
        script is as broken the next time, and no provider's library is loaded for it."""
        return "" if self.model == SCRIPTED else self.fallback_model


class PublishedAgent(Frozen):
    """An agent with the cards of its tools, as stored under its version and pinned by turns."""

    definition: AgentDefinition
    cards: tuple[ToolCard, ...]
    version: str
    """Digest of definition, cards, rules and tables."""
    rules: tuple[Rule, ...] = Field(default=(), exclude_if=is_empty)
    """The rules of its app; those of its skills are in the skills."""
    tables: dict[str, str] = Field(default={}, exclude_if=is_empty)
    """The digests of the tables that its code blocks need, by name; the tables are stored beside the agents."""

    def card(self, name: str) -> ToolCard | None:
        """The card of the tool `name`, or None where the agent has no such tool."""
        return next((card for card in self.cards if card.name == name), None)


class PlanCard(Tolerant):
    """What the graph needs to know of a tool."""

    name: str
    effect: EffectClass
    needs_approval: bool
    capability: str = ""
    timeout_seconds: float = 30.0
    wants_state: tuple[str, ...] = ()
    toolset: str = Field(default="", exclude_if=is_empty)


class TurnPlan(Tolerant):
    """An agent, cut down to what its graph decides with; pinned when the turn starts."""

    agent_id: str
    agent_version: str
    persona_key: str
    """`agent` where the definition has a text of its own, the persona's key, or `platform_default`."""
    limits: Limits
    cards: tuple[PlanCard, ...]
    skill_ids: tuple[str, ...] = ()
    # Left out where they are empty: plans ride in histories, and those of agents without skills are recorded so.
    model: str = Field(default="", exclude_if=is_empty)
    """The agent's model (S0-12); a call may fall back to its other one."""
    reviewers: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The users who alone may decide on its gated calls, where the agent names them (S0-15)."""
    root_skill: str = Field(default="", exclude_if=is_empty)
    persona_source: str = Field(default="", exclude_if=is_empty)
    """`root_skill` where the persona is that skill's; otherwise the key tells."""
    skills: tuple[PlanSkill, ...] = Field(default=(), exclude_if=is_empty)
    """The skills that bring more than their text."""
    entity_fields: dict[str, str] = Field(default={}, exclude_if=is_empty)
    stage_tools: dict[str, str] = Field(default={}, exclude_if=is_empty)
    """By stage: the tool that does its work."""
    words: dict[str, str] = Field(default={}, exclude_if=is_empty)
    toolsets: dict[str, bool] = Field(default={}, exclude_if=is_empty)
    """What its conversation has loaded when the turn starts, by toolset: whether with the tools that write."""
    facts: tuple[FactScope, ...] = Field(default=(), exclude_if=is_empty)
    """Whose facts the turn may read and keep."""
    rules: tuple[Rule, ...] = Field(default=(), exclude_if=is_empty)
    """Every rule of this turn, the platform's included, with the tenant's overrides in place; without those
    that none of its tools can set off."""
    waived: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The tools that the tenant lets run without the approval that their cards ask for (S2-41)."""
    assembly: PlannedAssembly | None = Field(default=None, exclude_if=is_empty)

    def card(self, name: str) -> PlanCard | None:
        """The card of the tool `name`, or None where this turn does not offer it."""
        return next((card for card in self.cards if card.name == name), None)
