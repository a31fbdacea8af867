"""A skill as data: its text for the model, its code blocks and its rules. Published with its agent and pinned by
turns, so a turn keeps the skills that it began with.

An empty field is left out of the stored value. An agent without skills of this kind therefore keeps the version and
the recorded turns that it had before the field existed.
"""

from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue

from perdure.contracts.values import Frozen, Tolerant

SKILL_ID_PATTERN = r"^[a-z][a-z0-9_]{0,63}$"


def is_empty(value: object) -> bool:
    """Returns whether a field is empty, so that it can be left out of the stored JSON."""
    return not value


class RuleTrigger(StrEnum):
    """When a rule is evaluated."""

    BEFORE_TOOL_CALL = "before_tool_call"
    AFTER_TOOL_CALL = "after_tool_call"


class RuleAction(StrEnum):
    """The action that a rule requires."""

    REQUIRE_HITL = "require_hitl"
    """A reviewer decides."""
    ABORT = "abort"
    """The turn ends."""


class Rule(Tolerant):
    """A rule of the platform, of an app or of a skill. perdure/core/agents/rule_matching.py evaluates it."""

    id: str
    """`platform:ID`, `APP:ID` or `APP/SKILL:ID`; unique."""
    on: str
    """A RuleTrigger. Text, like `do` and `when`, because a worker may find a rule of a newer version; it stops then."""
    when: dict[str, JsonValue] = {}
    """Conditions by name; all must be true."""
    do: str
    """A RuleAction."""
    checkpoint: str = Field(default="", exclude_if=is_empty)
    """The label of the approval that it opens."""
    message: str = Field(default="", exclude_if=is_empty)
    """The reason, for the reviewer or in the turn's error."""
    app: str = Field(default="", exclude_if=is_empty)
    skill_id: str = Field(default="", exclude_if=is_empty)


class Checkpoint(Frozen):
    """A point at which a reviewer must look, opened by a rule of the skill."""

    name: str = Field(pattern=SKILL_ID_PATTERN)
    go_on_when_unavailable: bool = Field(default=False, exclude_if=is_empty)
    """If no approval can be opened, continue with a warning instead of failing."""


class SkillText(Frozen):
    """A text that belongs to a skill: a context template or a reference document."""

    name: str
    text: str


class CodeBlock(Frozen):
    """A function that runs in the sandbox. Its source defines `run`; its parameters are the input's properties."""

    name: str = Field(pattern=SKILL_ID_PATTERN)
    description: str
    source: str
    llm_visible: bool
    """True if the model is offered the block after its skill is loaded."""
    effect: Literal["read", "local"] = "read"
    """Sandboxed code reaches nothing outside, so it is never `keyed` or `opaque`."""
    capability: str = ""
    risk: str = Field(default="", exclude_if=is_empty)
    """low, medium or high, for the reviewer. Empty: low for a `read`, medium for the others."""
    input: dict[str, JsonValue]
    """JSON Schema of the arguments; an object."""
    output: dict[str, JsonValue]
    """JSON Schema of the value that `run` returns; an object."""
    needs: tuple[str, ...] = ()
    """Tables of the app, passed as data[table]. If set, `run` has the parameter `data` too."""


class DataTable(Frozen):
    """A table of an app, stored once for all agents and versions that use it."""

    name: str
    digest: str
    """Digest of `body`. Published agents refer to a table by it."""
    body: dict[str, JsonValue]


class Skill(Frozen):
    """Instructions that an agent's model can request with `SKILL_SELECT:<id>`."""

    id: str = Field(pattern=SKILL_ID_PATTERN)
    name: str
    description: str
    """One line that is always in the system prompt (tier 1)."""
    body: str
    """The text that the model reads after the skill is injected (tier 2)."""
    triggers: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Examples of user messages that need this skill; in tier 1."""
    domain_tags: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    persona_key: str = Field(default="", exclude_if=is_empty)
    """The persona of an agent whose root skill this is, unless the agent sets its own."""
    persona: str = Field(default="", exclude_if=is_empty)
    """The text of that persona."""
    dependencies: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Skills that this skill needs. An agent that has this one has them too."""
    templates: tuple[SkillText, ...] = Field(default=(), exclude_if=is_empty)
    """Facts of the domain, each as a system message while the skill is loaded."""
    artifacts: tuple[SkillText, ...] = Field(default=(), exclude_if=is_empty)
    """Reference documents (tier 3)."""
    checkpoints: tuple[Checkpoint, ...] = Field(default=(), exclude_if=is_empty)
    rules: tuple[Rule, ...] = Field(default=(), exclude_if=is_empty)
    blocks: tuple[CodeBlock, ...] = Field(default=(), exclude_if=is_empty)


class PlanSkill(Tolerant):
    """A skill that contains more than text, reduced to the fields that the graph needs."""

    id: str
    dependencies: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    tools: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The blocks that the model is offered while the skill is loaded."""
    templates: int = Field(default=0, exclude_if=is_empty)
    artifacts: int = Field(default=0, exclude_if=is_empty)
    checkpoints: tuple[Checkpoint, ...] = Field(default=(), exclude_if=is_empty)
