"""An app with an MCP server: its tools are published and outlive it; what differs from its lock is not called."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from perdure.activities.toolbox.mcp.tools import McpServers
from perdure.apps import App, load_app
from perdure.apps.bootstrap import bootstrap
from perdure.apps.mcp import difference, lock_path, read_lock
from perdure.apps.registry import asked_servers, discovered
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.calls import EffectClass
from perdure.core.egress import Outbound
from perdure.sdk.outcomes import ToolRefused, ToolResult
from perdure.settings import Settings
from perdure.store import agents
from perdure.store.database import set_up
from tests.conftest import Urls
from tests.doubles.mcp_cluster import OPS, PODS, RESTART
from tests.unit.apps.tool_contexts import context

Capture = pytest.CaptureFixture[str]
AGENT = "id: keeper\ntitle: Keeper\ntopology: skill_pipeline\ncore_tools: false\ntools: ['cluster_*']\n"
SERVER = f"command: [python, -m, cluster]\nenv: {{PYTHONPATH: {OPS}}}\ntrust_annotations: true\n"
SERVER += "toolsets: [k8s]\nstart_seconds: 30\n"


async def prepared(urls: Urls, folder: Path, **beside: str) -> dict[str, PublishedAgent]:
    """The agents that are published by one more start."""
    given = {
        "DATABASE_OWNER_URL": urls.owner, "DATABASE_URL": urls.app, "PERDURE_LOCAL": "1", "PERDURE_EXAMPLES": "true",
        "PERDURE_HOME": str(folder / "home"), "PERDURE_APP": str(folder), **beside,
    }  # fmt: skip
    await bootstrap(Settings(_env_file=None, **given))  # type: ignore[arg-type]
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    await set_up(owner)
    async with owner.transaction():
        await owner.execute("SELECT set_config('perdure.tenant', $1, true)", agents.SHARED)
        found = {agent.definition.id: agent for _, agent in await agents.list_agents(owner)}
    await owner.close()
    return found


def write_app(folder: Path, server: str, agent: str = "keeper") -> None:
    """An app with one agent of one server."""
    for path, text in {"agents/a.yaml": AGENT.replace("keeper", agent), "mcp/cluster.yaml": server}.items():
        (folder / path).parent.mkdir()
        (folder / path).write_text(text)


async def test_a_servers_tools_are_published_and_outlive_it(urls: Urls, tmp_path: Path, capsys: Capture) -> None:
    write_app(tmp_path, SERVER)
    first = (await prepared(urls, tmp_path))["keeper"]
    assert len(first.cards) == 18 and {card.toolset for card in first.cards} == {"k8s"}
    pods, restart = first.card(PODS), first.card(RESTART)
    assert pods is not None and (pods.effect, pods.needs_approval) == (EffectClass.READ, False)
    assert restart is not None and (restart.effect, restart.needs_approval) == (EffectClass.KEYED, True)
    assert (await prepared(urls, tmp_path))["keeper"].version == first.version
    (tmp_path / "mcp" / "cluster.yaml").write_text(SERVER.replace("python", "no-such-program"))
    capsys.readouterr()
    again = await prepared(urls, tmp_path)
    assert again["keeper"].version == first.version and "refunds" in again
    told = capsys.readouterr().err
    assert "cluster" in told and "FileNotFoundError" in told and "18" in told


async def test_a_server_with_a_lock_is_published_without_a_start(urls: Urls, tmp_path: Path, capsys: Capture) -> None:
    """Its command cannot be started, and it was never published before."""
    write_app(tmp_path, SERVER.replace("python", "no-such-program"), "pinned")
    without = await prepared(urls, tmp_path)
    assert "pinned" not in without and "FileNotFoundError" in capsys.readouterr().err
    shutil.copy(OPS / "mcp" / "cluster.lock.json", tmp_path / "mcp")
    pinned = (await prepared(urls, tmp_path, PENDING_MUTATION_TTL_SECONDS="172800"))["pinned"]
    assert len(pinned.cards) == 18 and {card.toolset for card in pinned.cards} == {"k8s"}
    assert pinned.definition.approvals.expires_seconds == 172_800, "its file says none, and the deployment does"
    assert "cluster" not in capsys.readouterr().err


def no_secret(name: str) -> None:
    return None


async def test_the_shipped_lock_is_what_the_server_offers(tmp_path: Path) -> None:
    asked, listings = await asked_servers(OPS, no_secret, tmp_path, Outbound())
    assert not asked.problems and [*listings] == ["cluster"]
    offered, (locked, problems) = listings["cluster"].lock, read_lock(lock_path(OPS, "cluster"))
    assert offered is not None and locked is not None and not problems
    assert not difference(locked, offered), "run `perdure mcp lock perdure/examples/ops`"
    assert locked == offered and len(locked.tools) == 35


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpServers]:
    """A worker's side of perdure/examples/ops: it knows what the server lists now, and no lock."""
    found = McpServers([load_app(OPS)], no_secret, tmp_path_factory.mktemp("home"))
    yield found
    await found.close()


async def called(servers: McpServers, app: App, home: Path) -> ToolResult:
    """A read under the card that publishing makes of this app."""
    card = next(card for card in (await discovered(app, [], no_secret, home)).cards["cluster"] if card.name == PODS)
    tool = servers.find("ops", card)
    assert tool is not None
    return await tool.run({"namespace": "prod"}, context(card, seconds=30))


@pytest.mark.parametrize(
    "change", [{"description": "List them."}, {"tags": ("k8s", "new")}, {"parameters": {"type": "object"}}]
)
async def test_a_tool_under_its_lock_is_called_and_one_that_differs_from_it_is_refused(
    servers: McpServers, tmp_path: Path, change: dict[str, object]
) -> None:
    app = load_app(OPS)
    assert (await called(servers, app, tmp_path)).output
    lock = app.locks["cluster"]
    tools = tuple(tool.model_copy(update=change) if f"cluster_{tool.name}" == PODS else tool for tool in lock.tools)
    reviewed = replace(app, locks={"cluster": lock.model_copy(update={"tools": tools})})
    with pytest.raises(ToolRefused):
        await called(servers, reviewed, tmp_path)
