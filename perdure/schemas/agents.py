"""What the API answers about what a deployment has: people, agents, graphs, budgets, rules, prompt templates."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from perdure.schemas.answers import Answer


class User(Answer):
    """A person or a program that has access."""

    name: str
    roles: list[str] = []


class Token(Answer):
    """A new token; Perdure keeps only its hash."""

    name: str
    token: str = Field(repr=False)


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


class Budget(Answer):
    """A day's budget: its limits, what is used, and what calls under way have reserved."""

    agent: str = ""
    """Empty: all agents of the tenant together."""
    max_tokens: int | None = None
    used_tokens: int = 0
    assumed_tokens: int = 0
    """Of what is used: of calls that nobody has heard of again, the most that each can have used."""
    reserved_tokens: int = 0
    max_cost_usd: float | None = None
    used_cost_usd: float = 0.0
    assumed_cost_usd: float = 0.0
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


class WaivableTool(Answer):
    """A tool that the tenant may let run without the approval that it needs."""

    tool: str
    approval: bool
    """Whether a person is asked."""


class Agent(Answer):
    """An agent that turns can be started with."""

    id: str
    title: str = ""
    app: str = ""
    topology: str = ""
    model: str = ""
    examples: list[str] = []
    """What one may say to it."""
    files: list[str] = []
    """Media types of the uploads that it works with."""
    version: str = ""
    limits: Mapping[str, Any] = {}
    tools: list[str] = []
    """Names; of an agent that was asked for by its id, `list_tools` has them."""


class GateReason(Answer):
    """Why a call of a tool waits for a person, or ends its turn."""

    trigger: str
    action: str
    rule: str
    why: str = ""
    conditions: Mapping[str, Any] = {}


class AgentTool(Answer):
    """A tool as an agent has it."""

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
    reasons: list[GateReason] = []
    free_because: str = ""
    """Why it has no gate of its own; empty where it has one."""


class Topology(Answer):
    """A graph that agents run on."""

    name: str
