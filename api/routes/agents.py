"""Agents and topologies: what there is, what of it needs a person and why, and how it looks."""

from collections.abc import Sequence
from dataclasses import asdict

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from api.auth import Open, Reader
from contracts.agents import PublishedAgent, ToolCard
from contracts.skills import Rule
from graph import registry
from graph.manifest import manifest_of
from graph.mermaid import mermaid_of
from policy.gate_reasons import free_because, reasons_of
from policy.plans import rules_of
from policy.platform_rules import PLATFORM_RULES
from policy.waivers import asks_by_itself
from store import content, rule_actions, waivers

router = APIRouter(prefix="/v1", tags=["agents"])
_TOLD = ("fallback_model", "reasoning", "root_skill", "day_limits", "memory", "window", "toolsets")
"""Of a definition, as its file has it."""


@router.get("/agents")
async def agents(services: Open, who: Reader) -> dict[str, object]:
    """Every agent that a conversation can be with."""
    async with services.db.transaction(who.tenant_id) as tx:
        found = await content.listed(tx)
    items = [_brief(agent) | {"app": app, "tools": [card.name for card in agent.cards]} for app, agent in found]
    return {"items": items, "next": None}


@router.get("/agents/{agent_id}")
async def agent(services: Open, who: Reader, agent_id: str) -> dict[str, object]:
    """An agent: its model, its limits, who decides on its calls, what it remembers; its tools are listed apart."""
    async with services.db.transaction(who.tenant_id) as tx:
        found = await content.current(tx, agent_id)
    whole = found.definition.model_dump(mode="json")
    policy = found.definition.approvals
    return {
        **_brief(found),
        **{name: whole.get(name) for name in _TOLD},
        "approvals": {name: getattr(policy, name) for name in type(policy).model_fields},
        "skills": [{"id": skill.id, "name": skill.name} for skill in found.definition.skills],
    }


@router.get("/agents/{agent_id}/tools")
async def tools(services: Open, who: Reader, agent_id: str) -> dict[str, object]:
    """The tools of an agent, with effect class, whether they need an approval, and by which rules."""
    async with services.db.transaction(who.tenant_id) as tx:
        agent = await content.current(tx, agent_id)
        rules = rules_of(agent, PLATFORM_RULES, await rule_actions.actions(tx))
        waived = await waivers.waivers(tx)
    return {"items": [_tool(card, rules, waived) for card in agent.cards], "next": None}


@router.get("/topologies")
async def topologies(who: Reader) -> dict[str, object]:
    """Every topology by name."""
    items = [
        {"name": name, "version": registry.spec(name).version, "nodes": [node.id for node in registry.spec(name).nodes]}
        for name in registry.names()
    ]
    return {"items": items, "next": None}


@router.get("/topologies/{name}.mmd", response_class=PlainTextResponse)
async def mermaid(who: Reader, name: str) -> PlainTextResponse:
    """A topology as a Mermaid flow chart."""
    return PlainTextResponse(mermaid_of(manifest_of(registry.spec(name))), media_type="text/vnd.mermaid; charset=utf-8")


@router.get("/topologies/{name}")
async def topology(who: Reader, name: str) -> dict[str, object]:
    """A topology as JSON: nodes, edges, entries, limits, and how its activities are tried."""
    return dict(manifest_of(registry.spec(name)))


def _brief(agent: PublishedAgent) -> dict[str, object]:
    return {
        "id": agent.definition.id,
        "title": agent.definition.title,
        "topology": agent.definition.topology,
        "model": agent.definition.model,
        "version": agent.version,
        "limits": agent.definition.limits.model_dump(),
        "examples": list(agent.definition.examples),
        "files": list(agent.definition.files),
    }


def _tool(card: ToolCard, rules: tuple[Rule, ...], waived: Sequence[str]) -> dict[str, object]:
    asks = asks_by_itself(card, waived)
    shown = card.model_dump(mode="json", exclude={"secrets"}) | {"needs_approval": asks}
    reasons = [asdict(each) for each in reasons_of(card, rules, waived)]
    return shown | {"reasons": reasons, "free_because": "" if asks else free_because(card)}
