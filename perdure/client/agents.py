"""API calls for agents, topologies, users, budgets, rules and prompts. Each function builds a `Call`; a client sends
it."""

from collections.abc import Sequence
from typing import Literal

import httpx
from pydantic import JsonValue

from perdure.client.requests import Call, get, parsed_as, path, post
from perdure.schemas.agents import (
    Agent,
    AgentTool,
    Budgets,
    ExemptibleTool,
    FourEyes,
    PromptVersion,
    Rule,
    Token,
    Topology,
    User,
)
from perdure.schemas.base import Page


def list_agents() -> Call[Page[Agent]]:
    """Returns every agent with which a turn can be started."""
    return get(path("agents"), parsed_as(Page[Agent]))


def get_agent(agent_id: str) -> Call[Agent]:
    """Returns one agent, with its limits and the reviewers of its calls."""
    return get(path("agents", agent_id), parsed_as(Agent))


def list_tools(agent_id: str) -> Call[Page[AgentTool]]:
    """Returns the cards of an agent's tools, each with the calls that need an approval."""
    return get(path("agents", agent_id, "tools"), parsed_as(Page[AgentTool]))


def list_topologies() -> Call[Page[Topology]]:
    """Returns every topology."""
    return get(path("topologies"), parsed_as(Page[Topology]))


def get_topology(name: str) -> Call[Topology]:
    """Returns a topology's manifest: nodes, edges, entries and limits."""
    return get(path("topologies", name), parsed_as(Topology))


def topology_drawing(name: str) -> Call[str]:
    """Returns the source of a Mermaid flowchart of the topology."""
    return get(path("topologies", f"{name}.mmd"), _response_text)


def list_users(*, gateway: str | None = None, limit: int | None = None, cursor: str | None = None) -> Call[Page[User]]:
    """Returns every user of the tenant. With `gateway`, it returns the subjects on whose behalf this user acts, in
    pages."""
    return get(path("users"), parsed_as(Page[User]), {"gateway": gateway, "limit": limit, "cursor": cursor})


def add_user(name: str, roles: Sequence[str], *, idempotency_key: str = "") -> Call[User]:
    """Creates a user without a token; `new_token` creates one."""
    body: dict[str, JsonValue] = {"name": name, "roles": list(roles)}
    return post(path("users"), parsed_as(User), body, key=idempotency_key)


def new_token(name: str, *, label: str = "") -> Call[Token]:
    """Creates another token of a user. Only this answer contains it. It has no Idempotency-Key, because the API stores
    no answer with a token that it could repeat."""
    return Call("POST", path("users", name, "tokens"), parsed_as(Token), body={"label": label})


def set_roles(name: str, roles: Sequence[str], *, idempotency_key: str = "") -> Call[User]:
    """Replaces the roles of the user with this name: requester, reviewer, admin, gateway."""
    body: dict[str, JsonValue] = {"roles": list(roles)}
    return post(path("users", name, "roles"), parsed_as(User), body, key=idempotency_key)


def get_budgets() -> Call[Budgets]:
    """Returns the daily budgets and today's usage."""
    return get(path("budgets"), parsed_as(Budgets))


def set_budgets(*, max_tokens: int | None, max_cost_usd: float | None) -> Call[Budgets]:
    """Sets both daily limits for all agents together; None removes a limit. Repeating the call changes nothing."""
    body: dict[str, JsonValue] = {"max_tokens": max_tokens, "max_cost_usd": max_cost_usd}
    return Call("PUT", path("budgets"), parsed_as(Budgets), body=body)


def list_rules() -> Call[Page[Rule]]:
    """Returns every rule that can apply to a turn, with the tenant's action."""
    return get(path("rules"), parsed_as(Page[Rule]))


def set_rule(rule_id: str, do: str) -> Call[Page[Rule]]:
    """Sets the action of a rule from the next turn on. The rule's default action removes an override."""
    body: dict[str, JsonValue] = {"rule": rule_id, "do": do}
    return Call("PUT", path("rules"), parsed_as(Page[Rule]), body=body)


def list_exemptible_tools() -> Call[Page[ExemptibleTool]]:
    """Returns the tools that the tenant can exempt from approval."""
    return get(path("rules", "tools"), parsed_as(Page[ExemptibleTool]))


def set_tool_approval(tool: str, *, approval: bool) -> Call[Page[ExemptibleTool]]:
    """Exempts a tool from approval from the next turn on, or ends the exemption."""
    body: dict[str, JsonValue] = {"tool": tool, "approval": approval}
    return Call("PUT", path("rules", "tools"), parsed_as(Page[ExemptibleTool]), body=body)


def get_four_eyes() -> Call[FourEyes]:
    """Returns whether related users can decide on each other's high-risk calls."""
    return get(path("rules", "related"), parsed_as(FourEyes))


def set_four_eyes(*, related_decide: bool) -> Call[FourEyes]:
    """Lets related users decide on each other's high-risk calls, or refuses such decisions."""
    body: dict[str, JsonValue] = {"related_decide": related_decide}
    return Call("PUT", path("rules", "related"), parsed_as(FourEyes), body=body)


def _response_text(response: httpx.Response) -> str:
    return response.text


SelectableStage = Literal["draft", "pre_production", "active"]


def list_prompts(
    *, template: str | None = None, stage: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[PromptVersion]]:
    """Returns versions without their texts, last changed first."""
    query = {"template": template, "stage": stage, "limit": limit, "cursor": cursor}
    return get(path("prompt-templates"), parsed_as(Page[PromptVersion]), query)


def get_prompt(template: str, *, stage: SelectableStage | None = None) -> Call[PromptVersion]:
    """Returns the version that applies to the caller, their draft or the active one; with `stage`, that of it."""
    return get(path("prompt-templates", template), parsed_as(PromptVersion), {"stage": stage})


def render_prompt(
    template: str,
    *,
    stage: SelectableStage | None = None,
    agent_title: str | None = None,
    skill_name: str | None = None,
) -> Call[PromptVersion]:
    """Returns the same version with its variables replaced."""
    query = {"stage": stage, "agent_title": agent_title, "skill_name": skill_name}
    return get(path("prompt-templates", template, "render"), parsed_as(PromptVersion), query)


def get_prompt_version(version_id: str) -> Call[PromptVersion]:
    """Returns one version with its text and history."""
    return get(path("prompt-versions", version_id), parsed_as(PromptVersion))


def save_draft(template: str, text: str) -> Call[PromptVersion]:
    """Saves `text` as the caller's draft. Repeating the call changes nothing."""
    return Call("PUT", path("prompt-templates", template, "draft"), parsed_as(PromptVersion), body={"text": text})


def promote_prompt(
    version_id: str, to: Literal["pre_production", "active"], digest: str, *, idempotency_key: str = ""
) -> Call[PromptVersion]:
    """Moves a version to the next stage; `digest` is that of the text that the caller read."""
    body = {"to": to, "digest": digest}
    return post(path("prompt-versions", version_id, "promote"), parsed_as(PromptVersion), body, key=idempotency_key)


def archive_prompt(version_id: str, *, idempotency_key: str = "") -> Call[PromptVersion]:
    """Archives a version, so that it is no longer used."""
    return post(path("prompt-versions", version_id, "archive"), parsed_as(PromptVersion), key=idempotency_key)
