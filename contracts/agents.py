"""An agent as data, the card of a tool, and the compact plan that a turn pins at its start."""

from enum import StrEnum

from pydantic import Field, JsonValue

from contracts.frozen import Frozen, Tolerant
from contracts.messages import WindowPolicy
from contracts.turns import Limits


class EffectClass(StrEnum):
    """What a tool promises about its effect (design section 4)."""

    READ = "read"
    """Changes nothing; retried freely."""
    LOCAL = "local"
    """Changes our Postgres; effect and ledger row in one transaction: exactly once."""
    KEYED = "keyed"
    """The target honours an idempotency key: once in effect."""
    OPAQUE = "opaque"
    """The target knows no key: at most once; a crash in between ends in `outcome_unknown`."""


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
    version: str
    """Digest of the card and the author's own version: an approval is for one version."""


class ApprovalPolicy(Frozen):
    """Who decides and by when."""

    expires_seconds: int = Field(default=604_800, gt=0)
    """PENDING_MUTATION_TTL_SECONDS, 7 days (S0-54)."""
    reviewer_role: str = "reviewer"
    allow_self_approval: bool = False


class Skill(Frozen):
    """Instructions that an agent's model may ask for by `SKILL_SELECT:<id>` (S0-61)."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    name: str
    description: str
    """One line, always in the system prompt (S0-64, tier 1)."""
    body: str
    """What the model reads once the skill is injected (tier 2)."""


class AgentDefinition(Frozen):
    """An agent: topology, model, budget, tools and prompts. One YAML of an app; pinned by digest."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    title: str
    topology: str
    model: str = "scripted"
    """`scripted`, or a name for LiteLLM such as `openai/gpt-4o`."""
    model_params: dict[str, JsonValue] = {}
    """Passed to the provider: temperature, max_tokens and the like."""
    persona: str = ""
    """Who the agent is; empty takes the platform's default persona."""
    core_tools: bool = True
    """Offer `entity_resolve` and `context_assemble` (S0-41)."""
    tools: tuple[str, ...] = ()
    skills: tuple[Skill, ...] = ()
    limits: Limits = Limits()
    window: WindowPolicy = WindowPolicy()
    approvals: ApprovalPolicy = ApprovalPolicy()
    script: dict[str, JsonValue] | None = None
    """The scripted model's rules, for `model: scripted`."""


class PublishedAgent(Frozen):
    """An agent with the cards of its tools, as stored under its version and pinned by turns."""

    definition: AgentDefinition
    cards: tuple[ToolCard, ...]
    version: str
    """Digest of definition and cards."""

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


class TurnPlan(Tolerant):
    """An agent, cut down to what its graph decides with; pinned when the turn starts."""

    agent_id: str
    agent_version: str
    persona_key: str
    """`agent` where the definition has a persona, `platform_default` otherwise."""
    limits: Limits
    cards: tuple[PlanCard, ...]
    skill_ids: tuple[str, ...] = ()

    def card(self, name: str) -> PlanCard | None:
        """The card of the tool `name`, or None where this turn does not offer it."""
        return next((card for card in self.cards if card.name == name), None)
