"""What the MCP servers of an app offer when the app is published.

A server that has a lock is not asked and not started: its tools are those of the lock, and a call is refused where it
offers anything else by then (mcp.py). One that is asked and is down stops nothing: its agents keep the cards under
which they were published before. An agent that was never published, or that names a tool which its server no longer
has, is left out until the next start.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from activities.toolbox.mcp import NOTHING_NAMED, McpServers, ServerMet
from activities.toolbox.mcp_cards import Offer, offer_of
from contracts.agents import PublishedAgent, ToolCard
from contracts.mcp import McpLock, McpServer, McpServerListing
from perdure.apps import App
from perdure.apps.mcp_files import server_of
from policy.egress import Outbound

if TYPE_CHECKING:
    from activities.toolbox.mcp_session import SecretOf


@dataclass(frozen=True, slots=True)
class Discovered:
    """The cards of an app's servers."""

    cards: Mapping[str, Sequence[ToolCard]]
    """By server; of one that is down, those of its last publishing, if there was one."""
    warnings: tuple[str, ...] = ()


async def listings(
    app: App, secret_of: "SecretOf", home: Path, outbound: Outbound = NOTHING_NAMED
) -> dict[str, McpServerListing]:
    """Ask every server of `app`, by name, whether an agent names it or not and whatever its lock says."""
    servers = McpServers([app], secret_of, home, outbound=outbound)
    try:
        answers = await asyncio.gather(*(_asked(servers, app, server) for server in app.servers.values()))
    finally:
        await servers.close()
    return {
        name: McpServerListing(lock=None if offer is None else McpLock.of(offer.listed), told=told)
        for name, (offer, told) in zip(app.servers, answers, strict=True)
    }


async def discovered(
    app: App,
    published: Sequence[PublishedAgent],
    secret_of: "SecretOf",
    home: Path,
    met: ServerMet | None = None,
    outbound: Outbound = NOTHING_NAMED,
) -> Discovered:
    """What the servers of `app` that an agent of it names have: by their locks, or asked where they have none.
    `published` are the agents as they are stored now; `met` is told how each that was asked was met."""
    named = [
        server
        for server in app.servers.values()
        if any(server_of(name, app.servers) is server for agent in app.agents for name in agent.tools)
    ]
    servers = McpServers([app], secret_of, home, met, outbound)
    try:
        answers = await asyncio.gather(*(_offered(servers, app, server) for server in named))
    finally:
        await servers.close()
    cards: dict[str, Sequence[ToolCard]] = {}
    warnings: list[str] = []
    for server, (offer, told) in zip(named, answers, strict=True):
        warnings += told
        cards[server.name] = offer.cards if offer is not None else _before(server, app, published)
        if offer is None:
            kept = len(cards[server.name])
            after = f"its {kept} tools stay as they were published" if kept else "its agents are left out"
            warnings.append(f"the app {app.name}: {after}")
    return Discovered(cards, tuple(warnings))


async def _offered(servers: McpServers, app: App, server: McpServer) -> tuple[Offer | None, tuple[str, ...]]:
    if server.name not in app.locks:
        return await _asked(servers, app, server)
    offer = offer_of(server, app.locks[server.name].tools)
    return offer, offer.left_out


async def _asked(servers: McpServers, app: App, server: McpServer) -> tuple[Offer | None, tuple[str, ...]]:
    from activities.toolbox.mcp_session import MissingSecret, Unreachable

    try:
        offer = (await servers.session(app.name, server).connection()).offer
    except (Unreachable, MissingSecret) as error:
        return None, (str(error),)
    return offer, offer.left_out


def _before(server: McpServer, app: App, published: Sequence[PublishedAgent]) -> tuple[ToolCard, ...]:
    own = {agent.id for agent in app.agents}
    found = {
        card.name: card
        for agent in published
        if agent.definition.id in own
        for card in agent.cards
        if card.name.startswith(server.prefix)
    }
    return tuple(found.values())
