"""`perdure/apps/bootstrap.py` with an app that has an MCP server: its tools are published, and outlive a server that is
down."""

import shutil
from pathlib import Path

import asyncpg
import pytest

from perdure.apps.bootstrap import prepare
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.calls import EffectClass
from perdure.settings import Settings
from perdure.store import agents
from perdure.store.database import set_up
from tests.conftest import Urls
from tests.doubles.mcp_cluster import OPS, PODS, RESTART

AGENT = "id: keeper\ntitle: Keeper\ntopology: skill_pipeline\ncore_tools: false\ntools: ['cluster_*']\n"
SERVER = f"""command: [python, -m, cluster]
env: {{PYTHONPATH: {OPS}}}
trust_annotations: true
toolsets: [k8s]
start_seconds: 30
"""


async def prepared(urls: Urls, folder: Path, **beside: str) -> dict[str, PublishedAgent]:
    """The agents that are published by one more start."""
    given = {
        "DATABASE_OWNER_URL": urls.owner,
        "DATABASE_URL": urls.app,
        "PERDURE_LOCAL": "1",
        "PERDURE_HOME": str(folder / "home"),
        "PERDURE_APP": str(folder),
        "PERDURE_EXAMPLES": "true",
        **beside,
    }
    await prepare(Settings(_env_file=None, **given))  # type: ignore[arg-type]
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    try:
        await set_up(owner)
        async with owner.transaction():
            await owner.execute("SELECT set_config('perdure.tenant', $1, true)", agents.SHARED)
            return {agent.definition.id: agent for _, agent in await agents.list_agents(owner)}
    finally:
        await owner.close()


def write_app(folder: Path, server: str, agent: str = "keeper") -> None:
    """An app with one agent of one server."""
    for path, text in {"agents/a.yaml": AGENT.replace("keeper", agent), "mcp/cluster.yaml": server}.items():
        (folder / path).parent.mkdir()
        (folder / path).write_text(text)


async def test_a_servers_tools_are_published_and_stay_when_it_is_down(
    urls: Urls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


async def test_a_server_with_a_lock_is_published_without_being_started(
    urls: Urls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its command cannot be started, and it was never published before."""
    write_app(tmp_path, SERVER.replace("python", "no-such-program"), "pinned")
    without = await prepared(urls, tmp_path)
    assert "pinned" not in without and "FileNotFoundError" in capsys.readouterr().err
    shutil.copy(OPS / "mcp" / "cluster.lock.json", tmp_path / "mcp")
    pinned = (await prepared(urls, tmp_path, PENDING_MUTATION_TTL_SECONDS="172800"))["pinned"]
    assert len(pinned.cards) == 18 and {card.toolset for card in pinned.cards} == {"k8s"}
    assert pinned.definition.approvals.expires_seconds == 172_800, "its file says none, and the deployment does"
    assert "cluster" not in capsys.readouterr().err


async def test_an_agent_behind_a_lock_that_does_not_read_is_not_published(
    urls: Urls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_app(tmp_path, SERVER, "unpinned")
    (tmp_path / "mcp" / "cluster.lock.json").write_text('{"tools": [}')
    assert "unpinned" not in await prepared(urls, tmp_path)
    assert f"{tmp_path}/mcp/cluster.lock.json:1" in capsys.readouterr().err
