"""A skill as data: what the model is told of it, its code blocks and its rules. Published with its agent and pinned by
turns, so a turn keeps the skills that it began with.

A field that is empty is left out of what is stored: an agent without skills of this kind keeps the version and the
recorded turns that it had before there were any.
"""

from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue

from perdure.contracts.values import Frozen, Tolerant

SKILL_ID_PATTERN = r"^[a-z][a-z0-9_]{0,63}$"


def is_empty(value: object) -> bool:
    """Whether a field says nothing beyond its default."""
    return not value


class RuleTrigger(StrEnum):
    """When a rule is asked (S0-52, S0-65)."""

    BEFORE_TOOL_CALL = "before_tool_call"
    AFTER_TOOL_CALL = "after_tool_call"


class RuleAction(StrEnum):
    """What a rule asks for."""

    REQUIRE_HITL = "require_hitl"
    """A person decides."""
    ABORT = "abort"
    """The turn ends here."""


class Rule(Tolerant):
    """A rule of the platform, of an app or of a skill. How it is read: perdure/core/agents/rules.py."""

    id: str
    """`platform:ID`, `APP:ID` or `APP/SKILL:ID`: no two rules share one."""
    on: str
    """A RuleTrigger. Text, as `do` and `when` are: a worker of today may meet a rule of tomorrow, and stops for it."""
    when: dict[str, JsonValue] = {}
    """Conditions by name; all must hold."""
    do: str
    """A RuleAction."""
    checkpoint: str = Field(default="", exclude_if=is_empty)
    """The label of the approval that it opens (S0-65)."""
    message: str = Field(default="", exclude_if=is_empty)
    """Why, for the person or in the turn's error."""
    app: str = Field(default="", exclude_if=is_empty)
    skill_id: str = Field(default="", exclude_if=is_empty)


class Checkpoint(Frozen):
    """A point at which a person looks, opened by a rule of the skill (S0-65)."""

    name: str = Field(pattern=SKILL_ID_PATTERN)
    go_on_when_unavailable: bool = Field(default=False, exclude_if=is_empty)
    """Where no approval can be opened, go on with a warning instead of failing (S0-68)."""


class SkillText(Frozen):
    """A text that belongs to a skill: a context template, or a reference document."""

    name: str
    text: str


class CodeBlock(Frozen):
    """A function that runs in the sandbox: the source defines `run`, whose parameters are the input's properties."""

    name: str = Field(pattern=SKILL_ID_PATTERN)
    description: str
    source: str
    llm_visible: bool
    """Offered to the model once its skill is loaded (S0-41)."""
    effect: Literal["read", "local"] = "read"
    """What is sandboxed reaches nothing outside, so it is never `keyed` or `opaque`."""
    capability: str = ""
    risk: str = Field(default="", exclude_if=is_empty)
    """low, medium or high, for the reviewer; empty is low for a `read`, medium for the others."""
    input: dict[str, JsonValue]
    """JSON Schema of the arguments, an object."""
    output: dict[str, JsonValue]
    """JSON Schema of what `run` returns, an object."""
    needs: tuple[str, ...] = ()
    """Tables of the app, handed in as data[table]: `run` then has the parameter `data` too."""


class DataTable(Frozen):
    """A table of an app, stored once however many agents and versions name it."""

    name: str
    digest: str
    """Of `body`; published agents name a table by it."""
    body: dict[str, JsonValue]


class Skill(Frozen):
    """Instructions that an agent's model may ask for by `SKILL_SELECT:<id>` (S0-61)."""

    id: str = Field(pattern=SKILL_ID_PATTERN)
    name: str
    description: str
    """One line, always in the system prompt (S0-64, tier 1)."""
    body: str
    """What the model reads once the skill is injected (tier 2)."""
    triggers: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """What a user says who needs it; in tier 1."""
    domain_tags: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    persona_key: str = Field(default="", exclude_if=is_empty)
    """The persona of an agent whose root skill this is, unless the agent names its own (S0-17)."""
    persona: str = Field(default="", exclude_if=is_empty)
    """The text of that persona."""
    dependencies: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Skills that come with it; an agent that has the one has the others."""
    templates: tuple[SkillText, ...] = Field(default=(), exclude_if=is_empty)
    """Facts of the domain, a system message each while the skill is loaded (S0-19)."""
    artifacts: tuple[SkillText, ...] = Field(default=(), exclude_if=is_empty)
    """Reference documents (tier 3)."""
    checkpoints: tuple[Checkpoint, ...] = Field(default=(), exclude_if=is_empty)
    rules: tuple[Rule, ...] = Field(default=(), exclude_if=is_empty)
    blocks: tuple[CodeBlock, ...] = Field(default=(), exclude_if=is_empty)


class PlanSkill(Tolerant):
    """What the graph needs to know of a skill that brings more than its text."""

    id: str
    dependencies: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    tools: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Its blocks that the model is offered while it is loaded."""
    templates: int = Field(default=0, exclude_if=is_empty)
    artifacts: int = Field(default=0, exclude_if=is_empty)
    checkpoints: tuple[Checkpoint, ...] = Field(default=(), exclude_if=is_empty)
