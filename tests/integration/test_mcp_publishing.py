"""`prepare.py` with an app that has an MCP server: its tools are published, and outlive a server that is down."""

from pathlib import Path

import asyncpg
import pytest

from contracts.agents import EffectClass, PublishedAgent
from prepare import prepare
from settings import Settings
from store import content
from store.database import set_up
from tests.conftest import Urls
from tests.doubles.mcp_cluster import OPS, PODS, RESTART

AGENT = "id: keeper\ntitle: Keeper\ntopology: skill_pipeline\ncore_tools: false\ntools: ['cluster_*']\n"
SERVER = f"""command: [python, -m, apps.ops.cluster]
env: {{PYTHONPATH: {OPS.parents[1]}}}
trust_annotations: true
toolsets: [k8s]
start_seconds: 30
"""


async def prepared(urls: Urls, folder: Path) -> dict[str, PublishedAgent]:
    """The agents that are published by one more start."""
    given = {
        "DATABASE_OWNER_URL": urls.owner,
        "DATABASE_URL": urls.app,
        "PERDURE_LOCAL": "1",
        "PERDURE_HOME": str(folder / "home"),
        "PERDURE_APP": str(folder),
    }
    await prepare(Settings(_env_file=None, **given))  # type: ignore[arg-type]
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    try:
        await set_up(owner)
        async with owner.transaction():
            await owner.execute("SELECT set_config('perdure.tenant', $1, true)", content.SHARED)
            return {agent.definition.id: agent for _, agent in await content.listed(owner)}
    finally:
        await owner.close()


async def test_a_servers_tools_are_published_and_stay_when_it_is_down(
    urls: Urls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, text in {"agents/keeper.yaml": AGENT, "mcp/cluster.yaml": SERVER}.items():
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
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
    assert "warning: the server cluster cannot be reached (FileNotFoundError)" in told
    assert "its 18 tools stay as they were published" in told
