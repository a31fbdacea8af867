"""Sessions with a real MCP server, over stdio and over HTTP: what comes back, and what is known when nothing does."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure.activities.toolbox.mcp.session import MissingSecret, Unreachable
from perdure.activities.toolbox.mcp.tools import ServerLost
from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import EffectClass
from perdure.contracts.values import canonical_json
from perdure.core.text import estimated_tokens
from perdure.examples.ops.cluster.faults import Kind
from perdure.sdk.outcomes import ToolRefused, ToolUnavailable
from tests.doubles.mcp_cluster import PODS, RESTART, WEB, Bench, Web, bench

BOTH = pytest.mark.parametrize("cluster", ["stdio", "http"], indirect=True)
TOKEN = {"headers": {"Authorization": "Bearer {secret:cluster_token}"}}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    """The server over HTTP."""
    served = Web(tmp_path, _free_port())
    await served.start()
    yield served
    await served.kill()


@pytest.fixture(params=["stdio", pytest.param("http", marks=pytest.mark.soak)])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """The cluster; `BOTH` has it over each transport."""
    if request.param == "stdio":
        async with bench(tmp_path) as opened:
            yield opened
        return
    served = Web(tmp_path, _free_port())
    await served.start()
    async with bench(tmp_path, url=served.url, **TOKEN) as opened:
        yield opened
    await served.kill()


@BOTH
async def test_tools_are_read_and_changed_by_their_own_names(cluster: Bench) -> None:
    offer = (await cluster.session.connection()).offer
    assert not offer.left_out
    assert offer.tools[PODS].card.effect is EffectClass.READ and not offer.tools[PODS].card.needs_approval
    restart = offer.tools[RESTART].card
    assert (restart.effect, restart.needs_approval, restart.risk) == (EffectClass.KEYED, True, "high")
    assert restart.key_ttl_seconds == 30 * 86_400 and restart.toolset == "k8s"
    pods = (await cluster.call(PODS, {"namespace": "shop"})).output
    assert isinstance(pods, dict) and pods["status"] == "ok"
    assert isinstance(pods["pods"], list) and len(pods["pods"]) == 7
    done = (await cluster.call(RESTART, WEB)).output
    assert isinstance(done, dict) and done["status"] == "restarted"


async def test_a_key_makes_two_calls_one_effect(cluster: Bench) -> None:
    first = await cluster.call(RESTART, WEB, key="k-1")
    again = await cluster.call(RESTART, WEB, key="k-1")
    assert isinstance(first.output, dict) and isinstance(again.output, dict)
    assert again.output == {**first.output, "replayed": True}
    assert [effect["key"] for effect in cluster.state.effects()] == ["k-1"]
    await cluster.call(RESTART, WEB, key="k-2")
    assert len(cluster.state.effects()) == 2


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
    assert (await cluster.call(PODS, {"namespace": "shop"})).output


async def test_binary_content_is_described_and_text_made_storable(cluster: Bench) -> None:
    cluster.fail(Kind.BINARY)
    output = (await cluster.call(PODS, {"namespace": "shop"})).output
    assert isinstance(output, dict) and isinstance(output["content"], list)
    image, text = output["content"]
    assert isinstance(image, dict) and (image["type"], image["mime_type"], image["bytes"]) == (
        "image",
        "image/png",
        16_384,
    )
    assert isinstance(text, str) and "\x00" not in text and "AAEC" not in canonical_json(output)


async def test_an_answer_of_the_wrong_types_is_passed_on_as_it_is(cluster: Bench) -> None:
    """The effect was made: what the server calls its schema is not held against it afterwards."""
    cluster.fail(Kind.WRONG_TYPE)
    assert (await cluster.call(RESTART, WEB)).output == {"pods": 3}


@BOTH
async def test_a_call_that_is_not_answered_can_be_left_and_the_next_one_works(cluster: Bench) -> None:
    cluster.fail(Kind.HANG, PODS.removeprefix("cluster_"), seconds=2.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cluster.call(PODS, {"namespace": "shop"}), 0.5)
    output = (await cluster.call("cluster_k8s_nodes_list", {})).output
    assert isinstance(output, dict) and isinstance(output["nodes"], list) and len(output["nodes"]) == 3


async def test_other_calls_go_on_while_one_hangs(cluster: Bench) -> None:
    cluster.fail(Kind.HANG, "k8s_pods_list", seconds=2.0)
    hanging = asyncio.create_task(cluster.call(PODS, {"namespace": "shop"}))
    await asyncio.sleep(0.2)
    await asyncio.gather(*(cluster.call("cluster_k8s_nodes_list", {}) for _ in range(20)))
    assert not hanging.done()
    assert (await hanging).output


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_server_killed_in_the_middle_of_a_call_leaves_it_open_and_the_key_closes_it(
    tmp_path: Path, when: str
) -> None:
    async with bench(tmp_path) as cluster:
        cluster.fail(Kind.DIE, when=when)
        with pytest.raises(ServerLost):
            await cluster.call(RESTART, WEB, key="k-1")
        assert len(cluster.state.effects()) == (1 if when == "after" else 0)
        output = (await cluster.call(RESTART, WEB, key="k-1")).output
        assert isinstance(output, dict) and output["status"] == "restarted"
        assert len(cluster.state.effects()) == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_the_same_over_http(web: Web, tmp_path: Path, when: str) -> None:
    async with bench(tmp_path, url=web.url, **TOKEN) as cluster:
        cluster.fail(Kind.DIE, when=when)
        with pytest.raises(ServerLost):
            await cluster.call(RESTART, WEB, key="k-1")
        await web.kill()  # it has killed itself; until it is gone for good, a connection may still be accepted
        with pytest.raises(ToolUnavailable):
            await cluster.call(RESTART, WEB, key="k-1")
        await web.start()
        output = (await cluster.call(RESTART, WEB, key="k-1")).output
        assert isinstance(output, dict) and output["status"] == "restarted"
        assert len(cluster.state.effects()) == 1


async def test_a_server_that_died_between_calls_was_not_sent_anything(web: Web, tmp_path: Path) -> None:
    async with bench(tmp_path, url=web.url, **TOKEN) as cluster:
        await cluster.call(RESTART, WEB, key="k-1")
        await web.kill()
        with pytest.raises(ToolUnavailable):
            await cluster.call(RESTART, WEB, key="k-2")
        assert len(cluster.state.effects()) == 1


async def test_a_stdio_server_that_died_between_calls_is_started_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as cluster:
        cluster.fail(Kind.DIE, "k8s_pods_list", when="before")
        with pytest.raises(ServerLost):
            await cluster.call(PODS, {"namespace": "shop"})
        for _ in range(3):
            assert (await cluster.call(PODS, {"namespace": "shop"})).output


async def test_a_line_that_is_no_message_does_no_harm(tmp_path: Path) -> None:
    async with bench(tmp_path) as cluster:
        cluster.fail(Kind.NOISE)
        output = (await cluster.call(PODS, {"namespace": "shop"})).output
        assert isinstance(output, dict) and output["status"] == "ok"


async def test_a_wrong_or_a_missing_credential_is_told(web: Web, tmp_path: Path) -> None:
    async with bench(tmp_path, url=web.url, headers={"Authorization": "Bearer wrong"}) as cluster:
        with pytest.raises(Unreachable):
            await cluster.session.connection()
    async with bench(tmp_path, url=web.url, headers={"Authorization": "Bearer {secret:other}"}) as cluster:
        with pytest.raises(MissingSecret, match="other"):
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
    from perdure.activities.toolbox.mcp.session import McpSession
    from perdure.contracts.mcp import McpServer

    met: list[str] = []

    async def told(fault: str) -> None:
        met.append(fault)

    session = McpSession(McpServer(name="none", **fields), tmp_path, tmp_path / "home", lambda name: None, told)
    with pytest.raises(Unreachable):
        await session.connection()
    await session.close()
    assert len(met) == 1 and "none" in met[0] and "Group" not in met[0]


async def test_a_server_leaves_with_its_session(tmp_path: Path) -> None:
    async with bench(tmp_path) as cluster:
        await cluster.session.connection()
        keeper = cluster.session._open
        assert keeper is not None and keeper.alive
    assert not keeper.alive and keeper.keeper.done()


async def test_the_default_toolset_is_small_and_the_whole_set_is_not(tmp_path: Path) -> None:
    """S2-75: what an agent is offered from the start, against everything."""
    async with bench(tmp_path) as cluster:
        cards = (await cluster.session.connection()).offer.cards

    def tokens(card: ToolCard) -> int:
        form = {"name": card.name, "description": card.description, "parameters": card.parameters}
        return estimated_tokens(canonical_json({"type": "function", "function": form}))

    default = sum(tokens(card) for card in cards if card.toolset == "k8s" and card.effect is EffectClass.READ)
    whole = sum(map(tokens, cards))
    assert default <= 700, "load_toolset and the readers of memory need their part of the 1,500"
    assert 6_500 <= whole <= 8_000, whole
