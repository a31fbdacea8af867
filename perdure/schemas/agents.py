"""Responses about the parts of a deployment: users, agents, topologies, budgets, rules and prompt templates."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from perdure.schemas.base import Answer


class User(Answer):
    """A person or a program with access."""

    name: str
    roles: list[str] = []
    subject: str | None = None
    """The subject as its gateway sends it; None for other users."""


class Token(Answer):
    """A new token. Perdure stores only its hash."""

    name: str
    token: str = Field(repr=False)


class PromptVersion(Answer):
    """A version of a prompt template. Lists omit its text."""

    id: str
    template: str
    stage: str
    author: str = ""
    digest: str = ""
    """The digest that a promotion must name, so that it applies to exactly this text."""
    characters: int = 0
    changed_at: datetime | None = None
    text: str = ""


class Budget(Answer):
    """A daily budget: its limits, its usage, and the reservations of open calls."""

    agent: str = ""
    """Empty for the budget of all agents of the tenant together."""
    max_tokens: int | None = None
    used_tokens: int = 0
    assumed_tokens: int = 0
    """The part of the usage that belongs to lost calls: the most that each can have used."""
    reserved_tokens: int = 0
    max_cost_usd: float | None = None
    used_cost_usd: float = 0.0
    assumed_cost_usd: float = 0.0
    reserved_cost_usd: float = 0.0


class Budgets(Answer):
    """Today's budgets. A day is a day in UTC."""

    day: str
    resets_at: datetime | None = None
    tenant: Budget | None = None
    """The tenant's budget; None if it never had a limit, so that nothing is counted."""
    agents: list[Budget] = []


class Rule(Answer):
    """A rule in the tenant's current form."""

    id: str
    on: str = ""
    when: dict[str, Any] = {}
    do: str
    """The tenant's own action if `overridden`."""
    overridden: bool = False
    checkpoint: str = ""
    message: str = ""


class ExemptibleTool(Answer):
    """A tool that the tenant can exempt from approval."""

    tool: str
    approval: bool
    """True if the tool requires approval."""


class FourEyes(Answer):
    """The tenant's setting for decisions of related users."""

    related_decide: bool
    """True if related users can decide on each other's high-risk calls."""


class NotSent(Answer):
    """A tool that a model is not sent, because its provider would refuse the whole request."""

    tool: str
    model: str = ""
    rule: str = ""
    """`too_many_tools`, `not_an_object` or `unresolved_reference`."""
    reason: str = ""
    """The rule in words."""


class Agent(Answer):
    """An agent that turns can use."""

    id: str
    title: str = ""
    app: str = ""
    topology: str = ""
    model: str = ""
    examples: list[str] = []
    """Examples of messages to the agent."""
    files: list[str] = []
    """Media types of the uploads that it supports."""
    version: str = ""
    limits: Mapping[str, Any] = {}
    unavailable_tools: list[str] = []
    """The names in its tools that no MCP server offered when it was published. It is degraded: it runs without them."""
    unreached_tools: list[str] = []
    """The names in `unavailable_tools` whose server could not be used. The others are not
    listed, or left out."""
    tools: list[str] = []
    """The names of the tools. For a single agent, `list_tools` returns them."""
    fallback_model: str | None = None
    """The model that is asked if the agent's own fails. Only for a single agent."""
    on_length: str = ""
    """The rule for an answer that the output limit has cut: `continue`, `truncate` or `fail`. Only for a single
    agent."""
    not_sent: list[NotSent] = []
    """The tools that its models are not sent. Only for a single agent."""


class GateReason(Answer):
    """The reason why a call of a tool needs approval or ends its turn."""

    trigger: str
    action: str
    rule: str
    why: str = ""
    conditions: Mapping[str, Any] = {}


class AgentTool(Answer):
    """A tool of an agent."""

    name: str
    description: str = ""
    effect: str = ""
    risk: str = ""
    needs_approval: bool = True
    capability: str = ""
    toolset: str = ""
    timeout_seconds: float = 0.0
    key_ttl_seconds: float | None = None
    describe: str = ""
    version: str = ""
    """The version of the tool, by `version_rule`; `version_1` is the one by the first rule."""
    version_rule: int = 1
    version_1: str = ""
    reasons: list[GateReason] = []
    free_because: str = ""
    """The reason why the tool itself has no gate; empty if it has one."""


class Topology(Answer):
    """A graph on which agents run."""

    name: str
