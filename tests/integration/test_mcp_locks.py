"""A lock against the real server: the shipped one is what it offers, and what differs from it is not called."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.activities.toolbox.mcp.tools import McpServers
from perdure.apps import App, load_app
from perdure.apps.mcp import difference, lock_path, read_lock
from perdure.apps.registry import asked_servers, discovered
from perdure.core.egress import Outbound
from perdure.sdk.outcomes import ToolRefused, ToolResult
from tests.doubles.mcp_cluster import OPS, PODS
from tests.unit.apps.tool_contexts import context

PODS_THERE = "k8s_pods_list"


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


async def test_a_tool_under_its_lock_is_called(servers: McpServers, tmp_path: Path) -> None:
    assert (await called(servers, load_app(OPS), tmp_path)).output


@pytest.mark.parametrize(
    "change", [{"description": "List them."}, {"tags": ("k8s", "new")}, {"parameters": {"type": "object"}}]
)
async def test_a_tool_that_differs_from_its_lock_is_refused_at_the_call(
    servers: McpServers, tmp_path: Path, change: dict[str, object]
) -> None:
    app = load_app(OPS)
    lock = app.locks["cluster"]
    tools = tuple(tool.model_copy(update=change) if tool.name == PODS_THERE else tool for tool in lock.tools)
    reviewed = replace(app, locks={"cluster": lock.model_copy(update={"tools": tools})})
    with pytest.raises(ToolRefused):
        await called(servers, reviewed, tmp_path)
