"""Sessions with a real MCP server, over stdio and over HTTP: what comes back, and what is known when nothing does."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure.activities.toolbox.mcp.session import McpSession, MissingSecret, Unreachable
from perdure.activities.toolbox.mcp.tools import ServerLost
from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import EffectClass
from perdure.contracts.mcp import McpServer
from perdure.contracts.values import canonical_json
from perdure.core.text import estimated_tokens
from perdure.examples.ops.cluster.faults import Kind
from perdure.local.ports import free_ports
from perdure.sdk.outcomes import ToolRefused, ToolUnavailable
from tests.doubles.mcp_cluster import PODS, RESTART, WEB, Bench, Web, bench

BOTH = pytest.mark.parametrize("cluster", ["stdio", "http"], indirect=True)
TOKEN = {"headers": {"Authorization": "Bearer {secret:cluster_token}"}}
SHOP = {"namespace": "shop"}


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    """The server over HTTP, to be started."""
    served = Web(tmp_path, free_ports(1)[0])
    yield served
    await served.kill()


@pytest.fixture(params=["stdio", pytest.param("http", marks=pytest.mark.soak)])
async def cluster(request: pytest.FixtureRequest, web: Web, tmp_path: Path) -> AsyncIterator[Bench]:
    """The cluster; `BOTH` has it over each transport."""
    given: dict[str, Any] = {}
    if request.param == "http":
        await web.start()
        given = {"url": web.url, **TOKEN}
    async with bench(tmp_path, **given) as opened:
        yield opened


async def told(cluster: Bench, tool: str, args: dict[str, Any], key: str = "key-1") -> dict[str, Any]:
    """What comes back of a call, as an object."""
    output = (await cluster.call(tool, args, key)).output
    assert isinstance(output, dict)
    return output


@BOTH
async def test_tools_are_read_and_changed_by_their_own_names(cluster: Bench) -> None:
    offer = (await cluster.session.connection()).offer
    assert not offer.left_out
    assert offer.tools[PODS].card.effect is EffectClass.READ and not offer.tools[PODS].card.needs_approval
    restart = offer.tools[RESTART].card
    assert (restart.effect, restart.needs_approval, restart.risk) == (EffectClass.KEYED, True, "high")
    assert restart.key_ttl_seconds == 30 * 86_400 and restart.toolset == "k8s"
    pods = await told(cluster, PODS, SHOP)
    assert (pods["status"], len(pods["pods"])) == ("ok", 7)
    assert (await told(cluster, RESTART, WEB))["status"] == "restarted"


async def test_what_the_tool_says_went_wrong_is_a_refusal_in_its_words(cluster: Bench) -> None:
    with pytest.raises(ToolRefused, match="nowhere"):
        await cluster.call(PODS, {"namespace": "nowhere"})
    with pytest.raises(ToolRefused):
        await cluster.call(PODS, {"namespace": "NO"})
    cluster.fail(Kind.ERROR, when="before")
    with pytest.raises(ToolRefused):
        await cluster.call(RESTART, WEB)
    assert cluster.state.effects() == []


@BOTH
async def test_ten_megabytes_are_cut_and_the_effect_stands(cluster: Bench) -> None:
    cluster.fail(Kind.HUGE)
    output = (await cluster.call(RESTART, WEB)).output
    assert isinstance(output, str) and len(output) < 64 * 1024 and "10000000" in output[-60:]
    assert len(cluster.state.effects()) == 1
    assert (await cluster.call(PODS, SHOP)).output


async def test_binary_content_is_described_and_an_answer_of_the_wrong_types_is_passed_on(cluster: Bench) -> None:
    """The effect was made: what the server calls its schema is not held against it afterwards."""
    cluster.fail(Kind.BINARY)
    output = await told(cluster, PODS, SHOP)
    image, text = output["content"]
    assert (image["type"], image["mime_type"], image["bytes"]) == ("image", "image/png", 16_384)
    assert isinstance(text, str) and "\x00" not in text and "AAEC" not in canonical_json(output)
    cluster.fail(Kind.NOISE)
    assert (await told(cluster, PODS, SHOP))["status"] == "ok", "a line that is no message does no harm"
    cluster.fail(Kind.WRONG_TYPE)
    assert await told(cluster, RESTART, WEB) == {"pods": 3}


@BOTH
async def test_other_calls_go_on_while_one_hangs_and_it_can_be_left(cluster: Bench) -> None:
    cluster.fail(Kind.HANG, "k8s_pods_list", seconds=2.0)
    hanging = asyncio.create_task(cluster.call(PODS, SHOP))
    await asyncio.sleep(0.2)
    others = await asyncio.gather(*(told(cluster, "cluster_k8s_nodes_list", {}) for _ in range(20)))
    assert {len(each["nodes"]) for each in others} == {3} and not hanging.done()
    hanging.cancel()
    await asyncio.wait([hanging])
    assert len((await told(cluster, "cluster_k8s_nodes_list", {}))["nodes"]) == 3


@BOTH
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_server_killed_in_a_call_leaves_it_open_for_its_key(cluster: Bench, web: Web, when: str) -> None:
    cluster.fail(Kind.DIE, when=when)
    with pytest.raises(ServerLost):
        await cluster.call(RESTART, WEB, key="k-1")
    assert len(cluster.state.effects()) == (1 if when == "after" else 0)
    if cluster.session.server.url:  # nobody starts it again but its operator
        await web.kill()  # it has killed itself; until it is gone for good, a connection may still be accepted
        with pytest.raises(ToolUnavailable):
            await cluster.call(RESTART, WEB, key="k-1")
        await web.start()
    for _ in range(2):
        assert (await told(cluster, RESTART, WEB, "k-1"))["status"] == "restarted"
    assert [effect["key"] for effect in cluster.state.effects()] == ["k-1"]


async def test_a_server_that_died_between_calls_was_not_sent_anything(web: Web, tmp_path: Path) -> None:
    await web.start()
    async with bench(tmp_path, url=web.url, **TOKEN) as cluster:
        await cluster.call(RESTART, WEB, key="k-1")
        await web.kill()
        with pytest.raises(ToolUnavailable):
            await cluster.call(RESTART, WEB, key="k-2")
        assert len(cluster.state.effects()) == 1


@pytest.mark.parametrize(("bearer", "fault"), [("wrong", Unreachable), ("{secret:other}", MissingSecret)])
async def test_a_wrong_or_missing_secret_is_told(web: Web, tmp_path: Path, bearer: str, fault: type[Exception]) -> None:
    await web.start()
    async with bench(tmp_path, url=web.url, headers={"Authorization": f"Bearer {bearer}"}) as cluster:
        with pytest.raises(fault):
            await cluster.session.connection()


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ("no-such-program-here",)},
        {"command": ("python", "-c", "raise SystemExit(3)")},
        {"command": ("python", "-c", "import time; time.sleep(60)"), "start_seconds": 0.5},
        {"url": "http://127.0.0.1:9/mcp", "start_seconds": 5},
    ],
)
async def test_a_server_that_cannot_be_started_is_unreachable(tmp_path: Path, fields: dict[str, Any]) -> None:
    met: list[str] = []

    async def told(fault: str) -> None:
        met.append(fault)

    session = McpSession(McpServer(name="none", **fields), tmp_path, tmp_path / "home", lambda name: None, told)
    with pytest.raises(Unreachable):
        await session.connection()
    await session.close()
    assert len(met) == 1 and "none" in met[0] and "Group" not in met[0]


async def test_a_server_leaves_with_its_session_and_its_default_toolset_is_small(tmp_path: Path) -> None:
    """What an agent is offered from the start, against everything."""
    async with bench(tmp_path) as cluster:
        cards = (await cluster.session.connection()).offer.cards
        keeper = cluster.session._open
        assert keeper is not None and keeper.alive
    assert not keeper.alive and keeper.keeper.done()

    def tokens(card: ToolCard) -> int:
        form = {"name": card.name, "description": card.description, "parameters": card.parameters}
        return estimated_tokens(canonical_json({"type": "function", "function": form}))

    default = sum(tokens(card) for card in cards if card.toolset == "k8s" and card.effect is EffectClass.READ)
    whole = sum(map(tokens, cards))
    assert default <= 700, "load_toolset and the readers of memory need their part of the 1,500"
    assert 6_500 <= whole <= 8_000, whole
