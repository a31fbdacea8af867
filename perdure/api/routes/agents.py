"""Agents and topologies: their definitions, the approvals that their tools need and the reasons, and their graphs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import JSONResponse, PlainTextResponse

from perdure.api.auth import Caller, Principal, ServicesDep
from perdure.api.idempotency import Key, run_once
from perdure.api.request_bodies import (
    Cursor,
    DraftBody,
    ExemptionBody,
    FourEyesBody,
    Limit,
    PromotionBody,
    RuleActionBody,
    as_uuid,
)
from perdure.contracts.agents import PublishedAgent, ToolCard
from perdure.contracts.skills import Rule
from perdure.core.agents.plans import rules_of
from perdure.core.agents.rules import PLATFORM_RULES, reasons_of, why_no_approval, with_overrides
from perdure.core.agents.templates import Stage, fill_variables
from perdure.core.agents.tool_rules import unsent_tools
from perdure.core.approvals.gates import EXEMPTIBLE_TOOLS, requires_approval
from perdure.graph import registry
from perdure.graph.manifest import manifest_of, mermaid_of
from perdure.store import agents
from perdure.store.agents import PromptPromoter, PromptReader
from perdure.store.database import Connection
from perdure.store.delivery.outbox import Note

agents_router = APIRouter(prefix="/v1", tags=["agents"])
_DETAIL_FIELDS = ("reasoning", "root_skill", "day_limits", "memory", "window", "toolsets")
"""Fields of the definition that the API returns as they are in its file."""
MAX_LISTED = 200
AgentId = Annotated[str, Path(description="Id of the agent")]
TopologyName = Annotated[str, Path(description="Name of the topology")]
_TEMPLATE_KEY = r"^[a-z][a-z0-9_-]{0,63}$"


@agents_router.get("/agents", operation_id="agents_v1_agents_get")
async def list_agents(services: ServicesDep, caller: Caller) -> dict[str, object]:
    """Lists all agents."""
    async with services.db.transaction(caller.tenant_id) as tx:
        published = await agents.list_agents(tx)
    items = [
        _agent_summary(agent) | {"app": app, "tools": [card.name for card in agent.cards]} for app, agent in published
    ]
    return {"items": items, "next": None}


@agents_router.get("/agents/{agent_id}")
async def agent(services: ServicesDep, caller: Caller, agent_id: AgentId) -> dict[str, object]:
    """Returns an agent: its model, limits, approval policy and memory settings, and the tools that its model is not
    sent. All its tools are a separate list."""
    async with services.db.transaction(caller.tenant_id) as tx:
        published = await agents.current_agent(tx, agent_id)
    definition = published.definition.model_dump(mode="json")
    policy = published.definition.approvals
    return {
        **_agent_summary(published),
        **{name: definition.get(name) for name in _DETAIL_FIELDS},
        "fallback_model": published.definition.named_fallback or None,
        "on_length": published.definition.on_length,
        "approvals": {name: getattr(policy, name) for name in type(policy).model_fields},
        "not_sent": _not_sent(published),
        "skills": [{"id": skill.id, "name": skill.name} for skill in published.definition.skills],
    }


@agents_router.get("/agents/{agent_id}/tools")
async def tools(services: ServicesDep, caller: Caller, agent_id: AgentId) -> dict[str, object]:
    """Lists the tools of an agent, with effect class, approval requirement and the rules that apply."""
    async with services.db.transaction(caller.tenant_id) as tx:
        agent = await agents.current_agent(tx, agent_id)
        rules = rules_of(agent, PLATFORM_RULES, await agents.rule_actions(tx))
        exempt = await agents.exempt_tools(tx)
    return {"items": [_tool_description(card, rules, exempt) for card in agent.cards], "next": None}


@agents_router.get("/topologies")
async def topologies(caller: Caller) -> dict[str, object]:
    """Lists all topologies."""
    items = [
        {"name": name, "version": registry.spec(name).version, "nodes": [node.id for node in registry.spec(name).nodes]}
        for name in registry.names()
    ]
    return {"items": items, "next": None}


@agents_router.get("/topologies/{name}.mmd", response_class=PlainTextResponse)
async def mermaid(caller: Caller, name: TopologyName) -> PlainTextResponse:
    """Returns a topology as a Mermaid flow chart."""
    return PlainTextResponse(mermaid_of(manifest_of(registry.spec(name))), media_type="text/vnd.mermaid; charset=utf-8")


@agents_router.get("/topologies/{name}")
async def topology(caller: Caller, name: TopologyName) -> dict[str, object]:
    """Returns a topology as JSON: nodes, edges, entries, limits, and the retry policies of its activities."""
    return dict(manifest_of(registry.spec(name)))


def _agent_summary(agent: PublishedAgent) -> dict[str, object]:
    return {
        "id": agent.definition.id,
        "title": agent.definition.title,
        "topology": agent.definition.topology,
        "model": agent.definition.model,
        "version": agent.version,
        "limits": agent.definition.limits.model_dump(),
        "examples": list(agent.definition.examples),
        "files": list(agent.definition.files),
        "unavailable_tools": list(agent.unavailable),
        "unreached_tools": list(agent.unreached),
    }


def _not_sent(agent: PublishedAgent) -> list[dict[str, str]]:
    unsent = unsent_tools(agent, loads_toolsets=registry.loads_toolsets(agent.definition.topology))
    return [{"tool": each.tool, "model": each.model, "rule": each.rule, "reason": each.reason} for each in unsent]


def _tool_description(card: ToolCard, rules: tuple[Rule, ...], exempt: Sequence[str]) -> dict[str, object]:
    needs_approval = requires_approval(card, exempt)
    description = card.model_dump(mode="json", exclude={"secrets"}) | {"needs_approval": needs_approval}
    reasons = [asdict(reason) for reason in reasons_of(card, rules, exempt)]
    return description | {"reasons": reasons, "free_because": "" if needs_approval else why_no_approval(card)}


prompt_templates_router = APIRouter(prefix="/v1", tags=["prompt templates"])


def _version_id(version_id: Annotated[str, Path(description="Id of the version")]) -> str:
    return as_uuid(version_id, "prompt_version")


VersionId = Annotated[str, Depends(_version_id)]
Template = Annotated[str, Path(max_length=64, description="Key of the template")]
SelectableStage = Literal["draft", "pre_production", "active"]
SelectedStage = Annotated[
    SelectableStage | None, Query(description="The stage of the version; without it, the one that applies to you")
]


@prompt_templates_router.get("/prompt-templates")
async def list_prompt_templates(
    services: ServicesDep,
    caller: Caller,
    template: Annotated[str | None, Query(max_length=64, description="Only versions of this template")] = None,
    stage: Annotated[Stage | None, Query(description="Only versions of this stage")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, object]:
    """Lists versions without their texts, most recently changed first: versions in use, your own, and for reviewers
    all."""
    async with services.db.transaction(caller.tenant_id) as tx:
        versions = await agents.list_prompt_templates(
            tx, _prompt_reader(caller), template, stage.value if stage else None, min(limit, MAX_LISTED), cursor
        )
    return {"items": versions[0], "next": versions[1]}


@prompt_templates_router.get("/prompt-templates/{template}", operation_id="get_v1_prompt_templates__template__get")
async def get_prompt_template(
    services: ServicesDep, caller: Caller, template: Template, stage: SelectedStage = None
) -> dict[str, object]:
    """Returns the version that applies to you: your draft, else the active version. `stage` selects another stage."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await agents.resolved_prompt_template(tx, template, caller.user_id, Stage(stage) if stage else None)


@prompt_templates_router.get("/prompt-templates/{template}/render")
async def render(
    services: ServicesDep,
    caller: Caller,
    template: Template,
    stage: SelectedStage = None,
    agent_title: Annotated[str, Query(max_length=200, description="Value of the variable")] = "",
    skill_name: Annotated[str, Query(max_length=200, description="Value of the variable")] = "",
) -> dict[str, object]:
    """Returns the same version with its variables filled in, as in your own turns."""
    async with services.db.transaction(caller.tenant_id) as tx:
        version = await agents.resolved_prompt_template(tx, template, caller.user_id, Stage(stage) if stage else None)
        name, role = await agents.name_and_role(tx, caller.user_id)
    values = {"user_name": name, "user_role": role, "agent_title": agent_title, "skill_name": skill_name}
    return version | {"text": fill_variables(str(version["text"]), values)}


@prompt_templates_router.put("/prompt-templates/{template}/draft")
async def save_draft(
    services: ServicesDep,
    caller: Caller,
    template: Annotated[str, Path(pattern=_TEMPLATE_KEY, description="Key of the template")],
    body: DraftBody,
) -> dict[str, object]:
    """Saves your draft of this template, which applies to your own turns only. Overwrites your previous draft."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await agents.save_prompt_draft(tx, template, body.text, caller.user_id)


@prompt_templates_router.get("/prompt-versions/{version_id}")
async def version(services: ServicesDep, caller: Caller, version_id: VersionId) -> dict[str, object]:
    """Returns one version with its text and history."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await agents.get_prompt_template(tx, version_id, _prompt_reader(caller))


@prompt_templates_router.post("/prompt-versions/{version_id}/promote")
async def promote(
    services: ServicesDep, caller: Caller, version_id: VersionId, body: PromotionBody, key: Key = None
) -> JSONResponse:
    """Promotes a version by one stage; `digest` is that of the text that you read. Requires the role reviewer or admin.
    The author cannot activate a version."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        promoter = PromptPromoter(caller.user_id, caller.roles)
        return (
            200,
            await agents.promote_prompt_template(tx, version_id, Stage(body.to), body.digest, promoter),
            None,
        )

    return await run_once(services, caller, f"prompt-promote/{version_id}", key, body, work)


@prompt_templates_router.post("/prompt-versions/{version_id}/archive")
async def archive(services: ServicesDep, caller: Caller, version_id: VersionId, key: Key = None) -> JSONResponse:
    """Archives a version. Requires the role reviewer or admin, except for your own draft."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        return (
            200,
            await agents.archive_prompt_template(tx, version_id, PromptPromoter(caller.user_id, caller.roles)),
            None,
        )

    return await run_once(services, caller, f"prompt-archive/{version_id}", key, None, work)


def _prompt_reader(caller: Principal) -> PromptReader:
    return PromptReader(caller.user_id, caller.roles)


# An administrator can make rules stricter for the tenant. Exemptions are the few tools that a tenant can let run
# without approval (perdure/core/approvals/gates.py).
rules_router = APIRouter(prefix="/v1/rules", tags=["rules"])


@rules_router.get("")
async def list_rules(services: ServicesDep, caller: Caller) -> dict[str, object]:
    """Lists all rules that can apply to turns of this tenant."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await _list_rule_actions(tx)


@rules_router.put("")
async def put(services: ServicesDep, caller: Caller, body: RuleActionBody) -> dict[str, object]:
    """Makes a rule stricter from the next turn on, or restores its own action."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        await agents.set_action(tx, await _published_rules(tx), body.rule, body.do, caller.user_id)
        return await _list_rule_actions(tx)


@rules_router.get("/tools", operation_id="waivable_v1_rules_tools_get")
async def list_exemptible_tools(services: ServicesDep, caller: Caller) -> dict[str, object]:
    """Lists the tools that this tenant can exempt from approval, and whether each is exempt."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await _exemptible_tools(tx)


@rules_router.put("/tools", operation_id="waive_v1_rules_tools_put")
async def set_exemption(services: ServicesDep, caller: Caller, body: ExemptionBody) -> dict[str, object]:
    """Exempts a tool from approval from the next turn on, or removes the exemption."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        await agents.set_exemption(tx, body.tool, exempt=not body.approval, user_id=caller.user_id)
        return await _exemptible_tools(tx)


@rules_router.get("/related")
async def show_four_eyes(services: ServicesDep, caller: Caller) -> dict[str, bool]:
    """Returns whether related users can decide on each other's high-risk calls in this tenant."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return {"related_decide": await agents.related_can_decide(tx)}


@rules_router.put("/related")
async def set_four_eyes(services: ServicesDep, caller: Caller, body: FourEyesBody) -> dict[str, bool]:
    """Lets related users decide on each other's high-risk calls, or refuses such decisions. Applies to every later
    decision."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        await agents.set_related_decide(tx, allowed=body.related_decide, user_id=caller.user_id)
        return {"related_decide": await agents.related_can_decide(tx)}


async def _exemptible_tools(tx: Connection) -> dict[str, object]:
    exempt = await agents.exempt_tools(tx)
    return {"items": [{"tool": tool, "approval": tool not in exempt} for tool in EXEMPTIBLE_TOOLS], "next": None}


async def _published_rules(tx: Connection) -> tuple[Rule, ...]:
    """Returns all rules as published, each once."""
    rules = {rule.id: rule for rule in PLATFORM_RULES}
    for _, agent in await agents.list_agents(tx):
        rules |= {rule.id: rule for rule in rules_of(agent, (), {})}
    return tuple(rules.values())


async def _list_rule_actions(tx: Connection) -> dict[str, object]:
    rules, overrides = await _published_rules(tx), await agents.rule_actions(tx)
    return {
        "items": [
            rule.model_dump(mode="json") | {"overridden": rule.do != published.do}
            for rule, published in zip(with_overrides(rules, overrides), rules, strict=True)
        ],
        "next": None,
    }
