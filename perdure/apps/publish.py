"""Turns a loaded app into stored records: each agent under a version, with the cards of its tools and its app's rules.

An agent's version contains its skills completely, so that a turn keeps them. The data tables of an app are large and
shared, so a version names them by digest and each is stored once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from perdure.apps.agents import ALWAYS_OFFERED
from perdure.apps.files import did_you_mean
from perdure.apps.folder import App
from perdure.contracts.agents import SCRIPTED, AgentDefinition, PublishedAgent, ToolCard
from perdure.contracts.calls import EffectClass
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.mcp import server_of
from perdure.contracts.skills import CodeBlock, DataTable
from perdure.contracts.values import digest_of
from perdure.core.agents.plans import MAX_PLAN_BYTES, plan_bytes
from perdure.core.agents.rules import PLATFORM_RULES
from perdure.core.agents.tool_rules import unavailable_sentences, unsent_sentences, unsent_tools
from perdure.core.agents.tool_versions import with_version, without_outlived_version, without_words
from perdure.core.agents.toolsets import known_toolsets
from perdure.core.approvals.gates import tool_needs_approval
from perdure.graph.registry import loads_toolsets
from perdure.sdk.source_text import code_text

MAX_LISTED = 5
"""Maximum number of an app's mistakes that are shown; `perdure skills check` shows all."""


def publish(
    app: App,
    core_cards: Sequence[ToolCard],
    server_cards: Mapping[str, Sequence[ToolCard]] | None = None,
    unreached: Collection[str] = (),
) -> list[PublishedAgent]:
    """Returns the agents of `app`, each with its cards.

    The order is: core tools, the agent's own tools in its order, and the blocks of its skills that a model can see,
    without duplicates. `server_cards` are the cards of its MCP servers, by server; `unreached` are the servers that
    could not be used. An agent is published without the tools that its servers do not offer (`degraded_agents` returns
    which). An agent that names a toolset without any of its tools is left out (`skipped_agents`). Equal definitions,
    cards, rules and tables give equal versions, so that publishing again changes nothing.
    """
    core = {card.name: card for card in core_cards}
    results = (_published_or_reason(agent, app, core, server_cards or {}, unreached) for agent in app.agents)
    return [result for result in results if isinstance(result, PublishedAgent)]


def with_model(app: App, model: str, params: Mapping[str, JsonValue]) -> App:
    """Returns the app with this model instead of every script. An agent with its own model keeps it."""
    agents = tuple(
        agent.model_copy(update={"model": model, "model_params": {**params, **agent.model_params}, "script": None})
        if agent.model == SCRIPTED
        else agent
        for agent in app.agents
    )
    return replace(app, agents=agents)


def skipped_agents(
    app: App, core_cards: Sequence[ToolCard], server_cards: Mapping[str, Sequence[ToolCard]]
) -> list[str]:
    """Returns a sentence for each agent that `publish` leaves out."""
    core = {card.name: card for card in core_cards}
    results = {agent.id: _published_or_reason(agent, app, core, server_cards) for agent in app.agents}
    return [
        f"the agent {agent_id} of the app {app.name} was skipped: {reason}"
        for agent_id, reason in results.items()
        if isinstance(reason, str)
    ]


def degraded_agents(published: Iterable[PublishedAgent]) -> list[str]:
    """Returns a sentence for each agent that is published without tools of its servers."""
    return [
        f"the agent {agent.definition.id}: {sentence}"
        for agent in published
        for sentence in unavailable_sentences(agent.unavailable, agent.unreached)
    ]


def unsent_lines(agent: PublishedAgent) -> list[str]:
    """Returns a sentence for each rule of a model provider because of which `agent` is published with tools that its
    model is not sent."""
    unsent = unsent_tools(agent, loads_toolsets=loads_toolsets(agent.definition.topology))
    return [f"the agent {agent.definition.id}: {sentence}" for sentence in unsent_sentences(unsent)]


def unloaded_agents(app: App) -> list[str]:
    """Returns lines with the agents that the app's mistakes exclude, and the mistakes; causes come before their
    consequences. Empty if no agent is excluded."""
    mistakes = [str(problem) for problem in app.problems if not problem.warning]
    if not mistakes or (app.agents and not app.unread):
        return []
    outcome = f"was loaded without {', '.join(app.unread)}" if app.unread else "was skipped"
    more = [f"  and {len(mistakes) - MAX_LISTED} more"] if len(mistakes) > MAX_LISTED else []
    return [f"the app {app.name} {outcome}:", *(f"  {mistake}" for mistake in mistakes[:MAX_LISTED]), *more]


def _published_or_reason(
    agent: AgentDefinition,
    app: App,
    core: dict[str, ToolCard],
    servers: Mapping[str, Sequence[ToolCard]],
    unreached: Collection[str] = (),
) -> PublishedAgent | str:
    """Returns `agent` as it is stored, or why it cannot be published."""
    known = known_toolsets([*_tool_cards(agent, app, core, servers)]) if agent.toolsets else ()
    unknown = [name for name in agent.toolsets if name not in known]
    if unknown and not _missing_tools(agent, app, servers):
        return f"no tool of the agent is in the toolset {', '.join(unknown)}{did_you_mean(unknown[0], known)}"
    published = _publish(agent, app, core, servers, unreached)
    size = plan_bytes(published, PLATFORM_RULES)
    if size <= MAX_PLAN_BYTES:
        return published
    return (
        f"its tools, rules and skills are too many: the plan of each turn would have {size:,} bytes, and may have "
        f"{MAX_PLAN_BYTES:,}; name single tools of its servers instead of all"
    )


def _missing_tools(agent: AgentDefinition, app: App, server_cards: Mapping[str, Sequence[ToolCard]]) -> list[str]:
    """Returns the names in `agent`'s tools that refer to an MCP server but match none of its cards."""
    missing = []
    for name in agent.tools:
        server = server_of(name, app.servers)
        if server is not None and not _cards_named(name, server_cards.get(server.name, ()), server.prefix):
            missing.append(name)
    return missing


def tables_of(app: App, agents: Iterable[PublishedAgent]) -> list[DataTable]:
    """Returns the tables that these published agents name, each once."""
    digests = {digest for agent in agents for digest in agent.tables.values()}
    return [table for table in app.tables.values() if table.digest in digests]


def _publish(
    agent: AgentDefinition,
    app: App,
    core: dict[str, ToolCard],
    servers: Mapping[str, Sequence[ToolCard]],
    unreached: Collection[str],
) -> PublishedAgent:
    blocks = {block.name: block for skill in agent.skills for block in skill.blocks}
    tables = {name: app.tables[name].digest for block in blocks.values() for name in block.needs}
    cards = [*_tool_cards(agent, app, core, servers)]
    cards += [block_card(block, tables) for block in blocks.values() if block.llm_visible]
    missing = tuple(_missing_tools(agent, app, servers))
    published = PublishedAgent(
        definition=agent,
        cards=tuple(cards),
        version="",
        rules=app.rules,
        tables=tables,
        unavailable=missing,
        unreached=tuple(name for name in missing if _server_name(name, app) in unreached),
    )
    return _versioned(published)


def _versioned(agent: PublishedAgent) -> PublishedAgent:
    """Returns the agent under its version. Empty parts are not in the digest: agents without skills keep their previous
    versions."""
    return agent.model_copy(update={"version": digest_of(agent.model_dump(mode="json", exclude={"version"}))})


def without_outlived_versions(agent: PublishedAgent, before: Iterable[PublishedAgent]) -> PublishedAgent:
    """Returns the agent to publish after `before`, without versions by rule 1 of tools whose code has changed since."""
    earlier = next((each for each in before if each.definition.id == agent.definition.id), None)
    if earlier is None:
        return agent
    cards = tuple(without_outlived_version(card, earlier.card(card.name)) for card in agent.cards)
    return agent if cards == agent.cards else _versioned(agent.model_copy(update={"cards": cards}))


def _server_name(tool: str, app: App) -> str:
    server = server_of(tool, app.servers)
    return server.name if server is not None else ""


def assembled_tools(agent: AgentDefinition) -> tuple[str, ...]:
    """Returns the tools that assemble the agent's context; no model is offered them."""
    return tuple(config.name for config in agent.assembly.registry) if agent.assembly else ()


def block_card(block: CodeBlock, tables: dict[str, str]) -> ToolCard:
    """Returns the card with which a model is offered a block. Its version covers the block's code and its data."""
    effect = EffectClass(block.effect)
    table_digests = {name: tables[name] for name in block.needs}
    card = ToolCard(
        name=block.name,
        description=block.description,
        parameters=block.input,
        effect=effect,
        needs_approval=tool_needs_approval(effect, None),
        capability=block.capability,
        risk=block.risk or ("low" if effect is EffectClass.READ else "medium"),
        version="",
    )
    first = digest_of({"block": block.model_dump(mode="json"), "tables": table_digests})
    own = {"output": without_words(block.output), "tables": table_digests}
    return with_version(card, parameters=block.input, code={block.name: code_text(block.source)}, own=own, first=first)


def _cards_named(name: str, cards: Sequence[ToolCard], prefix: str) -> list[ToolCard]:
    """Returns the cards that a name in an agent's tools means: one, or all of a server with `<server>_*`."""
    return [card for card in cards if card.name == name or name == f"{prefix}*"]


def _tool_cards(
    agent: AgentDefinition, app: App, core: dict[str, ToolCard], servers: Mapping[str, Sequence[ToolCard]]
) -> Iterable[ToolCard]:
    offered = [name for name in ALWAYS_OFFERED if name in core] if agent.core_tools else []
    seen: set[str] = set()
    for name in dict.fromkeys([*offered, *agent.tools, *assembled_tools(agent)]):
        server = server_of(name, app.servers)
        if server is not None:
            offered_cards = _cards_named(name, servers.get(server.name, ()), server.prefix)
            new_cards = [card for card in offered_cards if card.name not in seen]
            seen |= {card.name for card in new_cards}
            yield from new_cards
            continue
        card = core[name] if name in core else app.tools[name].card if name in app.tools else None
        if card is None:
            raise InvariantBroken(
                "tool_without_card", f"the agent {agent.id} lists the tool {name}, which does not exist"
            )
        yield card
