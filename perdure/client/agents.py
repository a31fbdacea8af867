"""The calls about what a deployment has: agents, topologies, users. Each function makes a value, nothing is sent."""

from collections.abc import Sequence
from typing import Literal

import httpx
from pydantic import JsonValue

from perdure.client.requests import Call, get, one, path, post
from perdure.schemas.agents import Agent, AgentTool, Budgets, PromptVersion, Rule, Token, Topology, User, WaivableTool
from perdure.schemas.answers import Page


def list_agents() -> Call[Page[Agent]]:
    """Every agent that a turn can be started with."""
    return get(path("agents"), one(Page[Agent]))


def get_agent(agent_id: str) -> Call[Agent]:
    """One agent, with its limits and who decides on its calls."""
    return get(path("agents", agent_id), one(Agent))


def list_tools(agent_id: str) -> Call[Page[AgentTool]]:
    """The cards of an agent's tools, each with what of its calls needs a person."""
    return get(path("agents", agent_id, "tools"), one(Page[AgentTool]))


def list_topologies() -> Call[Page[Topology]]:
    """Every topology."""
    return get(path("topologies"), one(Page[Topology]))


def get_topology(name: str) -> Call[Topology]:
    """A topology's manifest."""
    return get(path("topologies", name), one(Topology))


def topology_drawing(name: str) -> Call[str]:
    """A topology as a Mermaid drawing."""
    return get(path("topologies", f"{name}.mmd"), _text)


def list_users() -> Call[Page[User]]:
    """Everybody who has access."""
    return get(path("users"), one(Page[User]))


def add_user(name: str, roles: Sequence[str], *, idempotency_key: str = "") -> Call[User]:
    """A new user; a token comes next."""
    body: dict[str, JsonValue] = {"name": name, "roles": list(roles)}
    return post(path("users"), one(User), body, key=idempotency_key)


def new_token(name: str, *, label: str = "") -> Call[Token]:
    """One more token of a user, told this once. No stored answer could repeat it, so it has no Idempotency-Key."""
    return Call("POST", path("users", name, "tokens"), one(Token), body={"label": label})


def set_roles(name: str, roles: Sequence[str], *, idempotency_key: str = "") -> Call[User]:
    """These roles and no others."""
    body: dict[str, JsonValue] = {"roles": list(roles)}
    return post(path("users", name, "roles"), one(User), body, key=idempotency_key)


def get_budgets() -> Call[Budgets]:
    """What a day may cost, and what today has come to."""
    return get(path("budgets"), one(Budgets))


def set_budgets(*, max_tokens: int | None, max_cost_usd: float | None) -> Call[Budgets]:
    """These limits for all agents together, both of them; None is no limit. Sent again it changes nothing."""
    body: dict[str, JsonValue] = {"max_tokens": max_tokens, "max_cost_usd": max_cost_usd}
    return Call("PUT", path("budgets"), one(Budgets), body=body)


def list_rules() -> Call[Page[Rule]]:
    """Every rule that can hold for a turn, as the tenant has it."""
    return get(path("rules"), one(Page[Rule]))


def set_rule(rule_id: str, do: str) -> Call[Page[Rule]]:
    """Give a rule this action from the next turn on; its own action takes an override back."""
    body: dict[str, JsonValue] = {"rule": rule_id, "do": do}
    return Call("PUT", path("rules"), one(Page[Rule]), body=body)


def list_waivable_tools() -> Call[Page[WaivableTool]]:
    """The tools whose approval the tenant may waive."""
    return get(path("rules", "tools"), one(Page[WaivableTool]))


def set_tool_approval(tool: str, *, approval: bool) -> Call[Page[WaivableTool]]:
    """Let such a tool run without a person from the next turn on, or have a person asked again."""
    body: dict[str, JsonValue] = {"tool": tool, "approval": approval}
    return Call("PUT", path("rules", "tools"), one(Page[WaivableTool]), body=body)


def _text(response: httpx.Response) -> str:
    return response.text


# --- The calls about prompt templates.
# Each function makes a value, nothing is sent.

Shown = Literal["draft", "pre_production", "active"]


def list_prompts(
    *, template: str | None = None, stage: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[PromptVersion]]:
    """Versions without their texts, changed last first."""
    query = {"template": template, "stage": stage, "limit": limit, "cursor": cursor}
    return get(path("prompt-templates"), one(Page[PromptVersion]), query)


def get_prompt(template: str, *, stage: Shown | None = None) -> Call[PromptVersion]:
    """The version that speaks to the caller: the own draft, else the active one; with `stage` the one in it."""
    return get(path("prompt-templates", template), one(PromptVersion), {"stage": stage})


def render_prompt(
    template: str, *, stage: Shown | None = None, agent_title: str | None = None, skill_name: str | None = None
) -> Call[PromptVersion]:
    """The same with its variables filled in."""
    query = {"stage": stage, "agent_title": agent_title, "skill_name": skill_name}
    return get(path("prompt-templates", template, "render"), one(PromptVersion), query)


def get_prompt_version(version_id: str) -> Call[PromptVersion]:
    """One version with its text and history."""
    return get(path("prompt-versions", version_id), one(PromptVersion))


def save_draft(template: str, text: str) -> Call[PromptVersion]:
    """Make `text` the caller's draft; saving it twice is saving it once."""
    return Call("PUT", path("prompt-templates", template, "draft"), one(PromptVersion), body={"text": text})


def promote_prompt(
    version_id: str, to: Literal["pre_production", "active"], digest: str, *, idempotency_key: str = ""
) -> Call[PromptVersion]:
    """Move a version on by one stage; `digest` is that of the text which was read."""
    body = {"to": to, "digest": digest}
    return post(path("prompt-versions", version_id, "promote"), one(PromptVersion), body, key=idempotency_key)


def archive_prompt(version_id: str, *, idempotency_key: str = "") -> Call[PromptVersion]:
    """Take a version out of use."""
    return post(path("prompt-versions", version_id, "archive"), one(PromptVersion), key=idempotency_key)
