"""Agents as data, the cards of their tools, and the compact plan that a turn pins when it starts."""

from enum import StrEnum
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

MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Upper limit for one answer, in bytes. A worker holds an answer in memory several times while it reads it."""
ANSWER_SECONDS: Final = 570.0
"""Limit of one whole answer of a model. It leaves 30 s of the activity's time limit for the database."""
SCRIPTED: Final = "scripted"
"""The model that needs no key: it plays the agent's script."""


def _is_first_rule(rule: int) -> bool:
    return rule == 1


class ToolCard(Frozen):
    """The engine's knowledge of a tool. Made from the decorated function and published with its agent."""

    name: str = Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$")
    description: str
    parameters: dict[str, JsonValue]
    """JSON Schema of the arguments; an object."""
    effect: EffectClass
    needs_approval: bool
    """True for every tool that can change something, unless its author decided otherwise."""
    capability: str = ""
    """The capability that rules match; empty for most tools."""
    risk: str = "medium"
    """low, medium or high; the reviewer sees it."""
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    key_ttl_seconds: float | None = None
    """`keyed` only: how long the target honors a key, in seconds. After that, the call is treated as opaque."""
    wants_state: tuple[str, ...] = ()
    """State fields that a state-aware tool receives."""
    secrets: tuple[str, ...] = ()
    """Names of secrets, which only the tools worker resolves."""
    toolset: str = Field(default="", exclude_if=is_empty)
    """The toolset that a server's tool belongs to; empty for every other tool."""
    describe: str = Field(default="", exclude_if=is_empty)
    """A template for one sentence about a call, for reviewers. The call's arguments fill it
    (perdure/core/agents/templates.py)."""
    previews: bool = Field(default=False, exclude_if=is_empty)
    """True if the tool has a read-only preview of a call for the reviewer."""
    checks: bool = Field(default=False, exclude_if=is_empty)
    """True if the tool's own types may refuse arguments that fit `parameters`. A tools worker then checks a call before
    a person is asked (ADR 35)."""
    max_answer_bytes: int | None = Field(default=None, gt=0, le=MAX_ANSWER_BYTES, exclude_if=is_empty)
    """The largest HTTP answer that the tool reads, in bytes. None: the operator's setting (PERDURE_ANSWER_BYTES)."""
    version: str
    """The version of the tool, by `version_rule`. An approval is valid for one version."""
    version_rule: int = Field(default=1, exclude_if=_is_first_rule)
    """The rule by which `version` was made (docs/adr/0037). Cards from before rule 2 do not name one."""
    version_1: str = Field(default="", exclude_if=is_empty)
    """The version by rule 1, so that cards and approvals from before rule 2 stay valid. Empty if `version` is that."""
    code: dict[str, str] = Field(default={}, exclude_if=is_empty)
    """Digests of the code that `version` covers, by place, such as `tools.invoices.pay`."""

    @property
    def versions(self) -> frozenset[str]:
        """The version by each rule."""
        return frozenset((self.version, self.version_1)) if self.version_1 else frozenset((self.version,))

    def is_version(self, version: str) -> bool:
        """Returns whether `version` names this tool as it is, by any rule."""
        return version in self.versions


class SkillScope(StrEnum):
    """The time for which a loaded skill stays loaded."""

    CONVERSATION = "conversation"
    """Later turns of the conversation start with the skill."""
    TURN = "turn"
    """The skill is unloaded when its turn ends. A later turn loads it again."""


SKILL_TOKENS: Final = 16_000
"""Default of the maximum tokens of the skills that a turn starts with."""


class DayLimits(Frozen):
    """The limits of all turns of an agent in one day of a tenant (UTC). None is unlimited."""

    max_tokens: int | None = Field(default=None, gt=0)
    max_cost_microusd: int | None = Field(default=None, gt=0)


class MemoryPolicy(Frozen):
    """An agent's memory beyond its working memory."""

    episodic: bool = False
    """Keep a summary of each completed turn, and put the nearest ones of the same user before a new turn."""
    hits: int = Field(default=3, ge=1, le=10)
    """Number of episodes."""
    min_similarity: float | None = Field(default=None, ge=-1, le=1, exclude_if=lambda value: value is None)
    """The least cosine similarity of an episode to the user's message. None is 0.2: with the local embedding model,
    sentences that have nothing in common are below it."""
    documents: bool = Field(default=False, exclude_if=is_empty)
    """Put the documents that match the user's message before each turn."""
    facts: tuple[FactScope, ...] = Field(default=(), exclude_if=is_empty)
    """Scopes of facts that the graph may read and write, for topologies that use facts."""


class Reasoning(Frozen):
    """The limit of a model's reasoning before it answers. Without both fields: `high` if the model can reason."""

    budget_tokens: int | None = Field(default=None, ge=1024, le=200_000)
    """Tokens of reasoning. Takes precedence over `effort`."""
    effort: Literal["none", "minimal", "low", "medium", "high"] | None = None


class AgentStage(Frozen):
    """An agent's settings for a step of its topology: the model's instructions, or the tool that does the work."""

    prompt: str = ""
    """Instructions for the stage's model calls, in addition to the persona."""
    tool: str = ""
    """A tool of the agent that the stage's node calls itself. It needs no approval."""
    window: WindowPolicy | None = None
    """The history that the stage's model calls receive. None: the agent's setting."""
    alone: bool = Field(default=False, exclude_if=is_empty)
    """Sends the instructions alone: without persona, memory and the caller's prompt."""
    like: str = ""
    """Another stage whose model parameters are the defaults of this one."""
    model_params: dict[str, JsonValue] = {}
    """Merged over the agent's parameters; null removes one."""


class OnLength(StrEnum):
    """The options for an answer that the model's output limit has cut."""

    CONTINUE = "continue"
    """The model is called again to continue it, at most twice. The parts are one answer."""
    TRUNCATE = "truncate"
    """The turn completes with the cut answer, and is marked as truncated."""
    FAIL = "fail"
    """The turn fails with `output_limit`."""


class FallbackModel(Frozen):
    """The model that is called after an agent's own model was given up, with its own parameters and key."""

    model: str = Field(min_length=1)
    """A LiteLLM name such as `anthropic/claude-sonnet-4-5`."""
    params: dict[str, JsonValue] = {}
    """Passed to its provider. Of the parameters of the agent's stages it receives those that every provider knows,
    unless it sets them; null removes one. The agent's own `model_params` are not used."""
    credential: str = ""
    """Name of the secret with its API key. Empty: the key of its provider's environment variable."""


class AgentDefinition(Frozen):
    """An agent: topology, model, budget, tools and prompts. One YAML file of an app, pinned by digest."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    title: str
    topology: str
    model: str = SCRIPTED
    """`scripted`, or a LiteLLM name such as `openai/gpt-4o`."""
    fallback_model: str = Field(default="", exclude_if=is_empty)
    """Used if `model` fails; empty for none. Has no effect while `model` is `scripted`. It receives the agent's
    parameters; from another provider, only those that every provider knows, so neither address nor key."""
    fallback: FallbackModel | None = Field(default=None, exclude_if=is_empty)
    """A fallback model with its own parameters and key. Excludes `fallback_model`."""
    model_params: dict[str, JsonValue] = {}
    """Passed to the provider: temperature, max_tokens and similar."""
    on_length: OnLength = Field(default=OnLength.CONTINUE, exclude_if=lambda value: value is OnLength.CONTINUE)
    """The rule for an answer that the model's output limit has cut. A topology that asks its model once, such as
    `context_assembly`, keeps the cut answer under `continue` too."""
    answer_seconds: float | None = Field(default=None, gt=0, le=ANSWER_SECONDS, exclude_if=is_empty)
    """Limit of one whole answer of a model, in seconds. None: `ANSWER_SECONDS`. A step's own limit takes precedence."""
    reasoning: Reasoning | None = Field(default=None, exclude_if=is_empty)
    """The limit of reasoning. None: the provider's default. `{}`: `high` for each model that can reason."""
    persona: str = ""
    """The agent's persona. Empty: that of its root skill, or else the platform's."""
    persona_key: str = Field(default="", exclude_if=is_empty)
    """Name of the app's persona file that `persona` was read from; empty if the agent's own file has the text."""
    persona_template: str = Field(default="", pattern=r"^([a-z][a-z0-9_-]{0,63})?$", exclude_if=is_empty)
    """Key of the prompt template that each turn uses as its persona. If it does not exist, `persona` is used."""
    core_tools: bool = True
    """Offers the tools `entity_resolve` and `context_assemble`."""
    tools: tuple[str, ...] = ()
    toolsets: dict[str, bool] = Field(default={}, exclude_if=is_empty)
    """The toolsets that a conversation starts with, each with whether its tools that change something are offered too.
    The model loads others with `load_toolset`. Only for topologies that load toolsets; others offer every tool."""
    root_skill: str | None = Field(default=None, exclude_if=is_empty)
    """The skill that is loaded from the start with its dependencies; None for a general agent."""
    skills: tuple[Skill, ...] = ()
    """Complete, with dependencies. In a file: ids of the app's skill folders, or whole skills."""
    skill_scope: SkillScope = Field(
        default=SkillScope.CONVERSATION, exclude_if=lambda value: value is SkillScope.CONVERSATION
    )
    """The time for which a skill that the model loads stays loaded."""
    skill_turns: int | None = Field(default=None, ge=1, exclude_if=is_empty)
    """The number of turns for which a skill stays loaded after the turn that loaded it, if its scope is the
    conversation. None: no limit."""
    skill_tokens: int = Field(default=SKILL_TOKENS, ge=0, exclude_if=lambda value: value == SKILL_TOKENS)
    """The maximum tokens of the texts of the skills that a turn starts with. Those that were loaded first are left out.
    """
    stages: dict[str, AgentStage] = Field(default={}, exclude_if=is_empty)
    """Settings by step, for topologies with named steps."""
    words: dict[str, str] = Field(default={}, exclude_if=is_empty)
    """Short texts that a topology's nodes read, by the names that the topology documents."""
    examples: tuple[str, ...] = Field(default=(), max_length=8, exclude_if=is_empty)
    """Example messages for new users; the engine does not read them."""
    files: tuple[str, ...] = Field(default=(), max_length=8, exclude_if=is_empty)
    """Media types of uploads that its tools accept, for clients that offer an upload."""
    limits: Limits = Limits()
    entity_fields: dict[str, str] = Field(default={}, exclude_if=is_empty)
    """Working-memory fields that name an entity, each with the attribute that identifies it (`id`, `name`, or one of
    the app's own). An injected skill receives these entities."""
    day_limits: DayLimits | None = Field(default=None, exclude_if=is_empty)
    window: WindowPolicy = WindowPolicy()
    memory: MemoryPolicy | None = Field(default=None, exclude_if=is_empty)
    approvals: ApprovalPolicy = ApprovalPolicy()
    assembly: ContextAssembly | None = Field(default=None, exclude_if=is_empty)
    """The context assembly, which the topology `context_assembly` requires and other topologies do not allow."""
    script: dict[str, JsonValue] | None = None
    """The rules of the scripted model, for `model: scripted`."""

    @property
    def second_model(self) -> str:
        """The model that is used if `model` keeps failing; empty if there is none. A scripted
        model has no fallback: its script would fail again, and no provider's library is loaded for it."""
        return "" if self.model == SCRIPTED else self.named_fallback

    @property
    def named_fallback(self) -> str:
        """The name of the fallback model, from either of its two fields; empty for none."""
        return self.fallback.model if self.fallback is not None else self.fallback_model


class PublishedAgent(Frozen):
    """An agent with the cards of its tools, as stored under its version and pinned by turns."""

    definition: AgentDefinition
    cards: tuple[ToolCard, ...]
    version: str
    """Digest of definition, cards, rules and tables."""
    rules: tuple[Rule, ...] = Field(default=(), exclude_if=is_empty)
    """The rules of its app. Those of its skills are in the skills."""
    tables: dict[str, str] = Field(default={}, exclude_if=is_empty)
    """Digests of the tables that its code blocks need, by name. The tables are stored with the agents."""
    unavailable: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The names in its tools for which its MCP servers offered none when it was published. It is degraded: its turns
    run without them until a start finds the tools."""
    unreached: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The names in `unavailable` whose server could not be used. The others are not
    listed, or left out."""

    def card(self, name: str) -> ToolCard | None:
        """Returns the card of the tool `name`, or None if the agent has no such tool."""
        return next((card for card in self.cards if card.name == name), None)


class PlanCard(Tolerant):
    """A tool's card, reduced to the fields that the graph needs."""

    name: str
    effect: EffectClass
    needs_approval: bool
    capability: str = ""
    timeout_seconds: float = 30.0
    wants_state: tuple[str, ...] = ()
    toolset: str = Field(default="", exclude_if=is_empty)
    checks: bool = Field(default=False, exclude_if=is_empty)


class TurnPlan(Tolerant):
    """An agent, reduced to what its graph decides with. Pinned when the turn starts."""

    agent_id: str
    agent_version: str
    persona_key: str
    """`agent` if the definition has its own text; otherwise the persona's key or `platform_default`."""
    limits: Limits
    cards: tuple[PlanCard, ...]
    skill_ids: tuple[str, ...] = ()
    # Left out if empty: plans are part of histories, and agents without skills were recorded that way.
    model: str = Field(default="", exclude_if=is_empty)
    """The agent's model; a call can fall back to the other one."""
    reviewers: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The named reviewers: the only users that can decide on its gated calls. Empty if the agent names none."""
    root_skill: str = Field(default="", exclude_if=is_empty)
    persona_source: str = Field(default="", exclude_if=is_empty)
    """`root_skill` if the persona is that skill's; otherwise see the key."""
    loaded_skills: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The skills that the conversation has loaded when the turn starts, a dependency before its dependents."""
    skills: tuple[PlanSkill, ...] = Field(default=(), exclude_if=is_empty)
    """The skills that contain more than text."""
    entity_fields: dict[str, str] = Field(default={}, exclude_if=is_empty)
    stage_tools: dict[str, str] = Field(default={}, exclude_if=is_empty)
    """The tool that does the work of each stage, by stage."""
    words: dict[str, str] = Field(default={}, exclude_if=is_empty)
    toolsets: dict[str, bool] = Field(default={}, exclude_if=is_empty)
    """The toolsets that the conversation has loaded when the turn starts, each with whether its tools that write are
    included."""
    facts: tuple[FactScope, ...] = Field(default=(), exclude_if=is_empty)
    """Scopes of facts that the turn may read and write."""
    rules: tuple[Rule, ...] = Field(default=(), exclude_if=is_empty)
    """Every rule of this turn, including the platform's, with the tenant's overrides applied. Rules that none of its
    tools can trigger are left out."""
    waived: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The tools that the tenant exempted from the approval that their cards require."""
    assembly: PlannedAssembly | None = Field(default=None, exclude_if=is_empty)

    def card(self, name: str) -> PlanCard | None:
        """Returns the card of the tool `name`, or None if this turn does not offer it."""
        return next((card for card in self.cards if card.name == name), None)
