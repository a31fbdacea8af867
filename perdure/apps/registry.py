"""Loads the apps of this installation for publishing.

They are checked against its tools, its topologies, the scripted model's form and, if this machine has one, the
sandbox's type checker. Examples of code blocks run only on request.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from perdure.activities.providers.scripted import Script
from perdure.activities.sandbox import (
    Block,
    FaultKind,
    Sandbox,
    SandboxConfig,
    SandboxUnavailable,
    open_for_checks,
    run_block,
)
from perdure.activities.toolbox.engine_tools import ENGINE_TOOLS
from perdure.activities.toolbox.mcp.listing import Offer, offer_of
from perdure.activities.toolbox.mcp.tools import NO_NAMED_HOSTS, McpServers, ReportServer
from perdure.apps import (
    App,
    AppProblem,
    BlockFault,
    Engine,
    ExampleRun,
    check_source,
    find_apps,
    first_computed_line,
    has_mistakes,
    load_app,
    load_servers,
    publish,
    schema_as_called,
    unsent_lines,
)
from perdure.contracts.agents import PublishedAgent, ToolCard
from perdure.contracts.approvals import EXPIRES_SECONDS
from perdure.contracts.mcp import McpLock, McpServer, McpServerListing, server_of
from perdure.contracts.skills import CodeBlock
from perdure.contracts.values import digest_of
from perdure.core.egress import Outbound
from perdure.graph.registry import names

if TYPE_CHECKING:
    from perdure.activities.toolbox.mcp.session import SecretOf

_CHECK_TENANT = "check"
"""Used instead of a tenant: examples belong to none."""
_EMPTY_RUN = "\n\n\ndef run() -> None:\n    return None\n"
"""Appended to a block's source, so that only its top level runs."""


@dataclass(frozen=True, slots=True)
class AppRegistry:
    """The loaded apps and their mistakes."""

    apps: tuple[App, ...]
    unchecked: str = ""
    """The reason that code blocks were not type-checked and their examples did not run; empty if they were checked."""


def block_digests(agents: Sequence[PublishedAgent]) -> frozenset[str]:
    """Returns the blocks of published agents; they were checked when they were published."""
    return frozenset(_digest(block) for agent in agents for skill in agent.definition.skills for block in skill.blocks)


async def load_apps(
    folders: Sequence[Path],
    sandbox: SandboxConfig,
    checked: Collection[str] = frozenset(),
    *,
    examples: bool = False,
    expires_seconds: int = EXPIRES_SECONDS,
) -> AppRegistry:
    """Loads the apps in these folders. Blocks whose digests are in `checked` are not type-checked again."""
    checker = _Checker(sandbox, checked, asyncio.get_running_loop(), examples, expires_seconds)
    try:
        apps = await asyncio.to_thread(find_apps, folders, checker.engine)
        return AppRegistry(tuple(apps), checker.unchecked)
    finally:
        await checker.close()


async def load_one_app(
    folder: Path, sandbox: SandboxConfig, *, examples: bool = False, expires_seconds: int = EXPIRES_SECONDS
) -> AppRegistry:
    """Loads the app in `folder` and checks its code blocks in a sandbox. Mistakes are in the returned registry."""
    checker = _Checker(sandbox, frozenset(), asyncio.get_running_loop(), examples, expires_seconds)
    try:
        return AppRegistry((await asyncio.to_thread(load_app, folder, checker.engine),), checker.unchecked)
    finally:
        await checker.close()


def unsent_tool_warnings(app: App) -> list[AppProblem]:
    """Returns a warning for each rule of a model provider because of which an agent's model is not sent all its tools.
    The tools of servers are those of their locks."""
    return [
        AppProblem(app.folder / "agents", None, line, warning=True)
        for agent in published_from_locks(app)
        for line in unsent_lines(agent)
    ]


def published_from_locks(app: App) -> list[PublishedAgent]:
    """Returns the agents of `app` as they would be published, with the tools of its MCP servers from their locks. No
    server is contacted, so the tools of one without a lock are left out (`App.servers_without_lock`)."""
    server_cards = {name: offer_of(app.servers[name], lock.tools).cards for name, lock in app.locks.items()}
    return publish(app, [tool.card for tool in ENGINE_TOOLS.values()], server_cards)


async def contact_servers(
    folder: Path, secret_of: Callable[[str], str | None], home: Path, outbound: Outbound
) -> tuple[App, dict[str, McpServerListing]]:
    """Returns the MCP servers of the app in `folder` and their present lists. If a file has a mistake, no server is
    contacted."""
    app = await asyncio.to_thread(load_servers, folder)
    return app, {} if has_mistakes(app.problems) else await list_servers(app, secret_of, home, outbound)


class _Checker:
    """Checks blocks from the thread that loads apps, in a sandbox of the event loop. It is opened for the first
    block."""

    def __init__(
        self,
        config: SandboxConfig,
        checked: Collection[str],
        loop: asyncio.AbstractEventLoop,
        examples: bool,
        expires_seconds: int,
    ) -> None:
        self._config = config
        self._run_examples = examples
        self._checked = checked
        self._loop = loop
        self._sandbox: Sandbox | None = None
        self.unchecked = ""
        self.engine = Engine(
            core_tools=tuple(ENGINE_TOOLS),
            topologies=names(),
            script=Script,
            expires_seconds=expires_seconds,
            check_block=self._block_faults,
            try_block=self._run_example_blocking if examples else None,
        )

    async def close(self) -> None:
        """Closes the sandbox."""
        if self._sandbox is not None:
            await self._sandbox.close()

    def _block_faults(self, block: CodeBlock) -> list[BlockFault]:
        faults = check_source(block)
        if faults or self.unchecked or _digest(block) in self._checked:
            return faults
        return asyncio.run_coroutine_threadsafe(self._check_types(block), self._loop).result()

    def _run_example_blocking(
        self, block: CodeBlock, inputs: Mapping[str, JsonValue], tables: Mapping[str, JsonValue]
    ) -> ExampleRun | None:
        if self.unchecked:
            return None
        return asyncio.run_coroutine_threadsafe(self._run_example(block, inputs, tables), self._loop).result()

    async def _check_types(self, block: CodeBlock) -> list[BlockFault]:
        try:
            sandbox = await self._open_sandbox()
            flaws = await sandbox.check(block.source, schema_as_called(block), block.output)
            faults = [BlockFault(flaw.line, flaw.message) for flaw in flaws]
            if faults or not self._run_examples:
                return faults
            result = await sandbox.run(_CHECK_TENANT, block.source + _EMPTY_RUN, {})
        except SandboxUnavailable as error:
            self.unchecked = str(error)
            return []
        if result.fault is None:
            return []
        # If the interpreter had to be killed, it reports no line.
        line = result.fault.line or first_computed_line(block.source)
        return [BlockFault(line, f"fails before run is called: {result.fault.message}")]

    async def _run_example(
        self, block: CodeBlock, inputs: Mapping[str, JsonValue], tables: Mapping[str, JsonValue]
    ) -> ExampleRun | None:
        engine_inputs: dict[str, JsonValue] = {"data": {**tables}} if block.needs else {}
        try:
            sandbox = await self._open_sandbox()
            result = await run_block(
                sandbox,
                _CHECK_TENANT,
                Block(block.source, block.input, block.output),
                inputs,
                engine_inputs=engine_inputs,
            )
        except SandboxUnavailable as error:
            self.unchecked = str(error)
            return None
        if result.fault is None:
            return ExampleRun(result.value)
        return ExampleRun(
            fault=result.fault.message, line=result.fault.line, timed_out=result.fault.kind is FaultKind.TIME
        )

    async def _open_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = await open_for_checks(self._config)
        return self._sandbox


def _digest(block: CodeBlock) -> str:
    return digest_of(block.model_dump(mode="json"))


@dataclass(frozen=True, slots=True)
class ServerCards:
    """The cards of an app's servers."""

    cards: Mapping[str, Sequence[ToolCard]]
    """Cards by server; for an unavailable server, those of its last publishing, if any."""
    warnings: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    """The servers that could not be used."""


async def list_servers(
    app: App, secret_of: "SecretOf", home: Path, outbound: Outbound = NO_NAMED_HOSTS
) -> dict[str, McpServerListing]:
    """Contacts every server of `app`, whether or not an agent names it or it has a lock. Returns the results by
    name."""
    servers = McpServers([app], secret_of, home, outbound=outbound)
    try:
        answers = await asyncio.gather(*(_ask_server(servers, app, server) for server in app.servers.values()))
    finally:
        await servers.close()
    return {
        name: McpServerListing(lock=None if offer is None else McpLock.of(offer.listed), problems=problems)
        for name, (offer, problems) in zip(app.servers, answers, strict=True)
    }


async def discover_cards(
    app: App,
    published: Sequence[PublishedAgent],
    secret_of: "SecretOf",
    home: Path,
    report: ReportServer | None = None,
    outbound: Outbound = NO_NAMED_HOSTS,
) -> ServerCards:
    """Returns the cards of the servers of `app` that its agents name, from their locks or else from the servers.

    `published` are the agents as they are stored now. `report` records the result of each contact.

    A server with a lock is neither contacted nor started: its tools are those of the lock. A call is rejected if the
    server lists anything else by then (perdure/activities/toolbox/mcp/tools.py). A server without a lock that is
    unavailable does not stop publishing: its agents keep the cards of their last version. An agent that was never
    published, or that names a tool that its server no longer has, is published without the tool until the next start.
    """
    servers_in_use = [
        server
        for server in app.servers.values()
        if any(server_of(name, app.servers) is server for agent in app.agents for name in agent.tools)
    ]
    servers = McpServers([app], secret_of, home, report, outbound)
    try:
        answers = await asyncio.gather(*(_offer_from_lock_or_server(servers, app, server) for server in servers_in_use))
    finally:
        await servers.close()
    cards: dict[str, Sequence[ToolCard]] = {}
    warnings: list[str] = []
    for server, (offer, problems) in zip(servers_in_use, answers, strict=True):
        warnings += problems
        cards[server.name] = offer.cards if offer is not None else _published_cards(server, app, published)
        if offer is None:
            kept_count = len(cards[server.name])
            kept = f"its {kept_count} published tools stay unchanged" if kept_count else "its tools are left out"
            warnings.append(f"the app {app.name}: {kept}")
    unreached = (server.name for server, (offer, _) in zip(servers_in_use, answers, strict=True) if offer is None)
    return ServerCards(cards, tuple(warnings), tuple(unreached))


async def _offer_from_lock_or_server(
    servers: McpServers, app: App, server: McpServer
) -> tuple[Offer | None, tuple[str, ...]]:
    if server.name not in app.locks:
        return await _ask_server(servers, app, server)
    offer = offer_of(server, app.locks[server.name].tools)
    return offer, offer.left_out


async def _ask_server(servers: McpServers, app: App, server: McpServer) -> tuple[Offer | None, tuple[str, ...]]:
    from perdure.activities.toolbox.mcp.session import MissingSecret, Unreachable

    try:
        offer = (await servers.session(app.name, server).connection()).offer
    except (Unreachable, MissingSecret) as error:
        return None, (str(error),)
    return offer, offer.left_out


def _published_cards(server: McpServer, app: App, published: Sequence[PublishedAgent]) -> tuple[ToolCard, ...]:
    agent_ids = {agent.id for agent in app.agents}
    cards = {
        card.name: card
        for agent in published
        if agent.definition.id in agent_ids
        for card in agent.cards
        if card.name.startswith(server.prefix)
    }
    return tuple(cards.values())
