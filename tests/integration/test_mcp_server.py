"""A real MCP server: sessions with it over stdio and HTTP, its tools in turns and in published apps."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.toolbox.mcp.session import McpSession, MissingSecret, Unreachable
from perdure.activities.toolbox.mcp.tools import McpServers, ServerLost
from perdure.activities.toolbox.registry import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.apps import App, load_app, publish
from perdure.apps.bootstrap import bootstrap
from perdure.apps.mcp import difference, lock_path, read_lock
from perdure.apps.registry import asked_servers, discovered
from perdure.contracts.agents import PublishedAgent, ToolCard
from perdure.contracts.calls import CallState, EffectClass, ToolOutcome
from perdure.contracts.mcp import McpServer
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import canonical_json
from perdure.core.egress import Outbound
from perdure.core.text import estimated_tokens
from perdure.examples.ops.cluster.faults import Fault, Faults, Kind
from perdure.examples.ops.cluster.state import State
from perdure.local.ports import free_port
from perdure.sdk.outcomes import ToolRefused, ToolResult, ToolUnavailable
from perdure.settings import Settings
from perdure.store import agents
from perdure.store.database import set_up
from tests.conftest import Urls
from tests.doubles.mcp_cluster import OPS, PODS, RESTART, WEB, Bench, Web, bench
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app
from tests.unit.apps.tool_contexts import context

BOTH = pytest.mark.parametrize("cluster", ["stdio", "http"], indirect=True)
TOKEN = {"headers": {"Authorization": "Bearer {secret:cluster_token}"}}
SHOP = {"namespace": "shop"}


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    served = Web(tmp_path, free_port())
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


DOUBLES = Path(__file__).parents[1] / "doubles"
AGENT = "id: {0}\ntitle: {0}\ntopology: skill_pipeline\ncore_tools: false\ntools: ['{1}_*']\n"
FILES = {
    "agents/keeper.yaml": AGENT.format("keeper", "cluster"),
    "agents/dupe.yaml": AGENT.format("dupe", "liar"),
    "mcp/cluster.yaml": f"command: [python, -m, cluster]\nenv: {{PYTHONPATH: {OPS}}}\ntrust_annotations: true\n"
    "start_seconds: 30\n",
    "mcp/liar.yaml": f"command: [python, {DOUBLES / 'mcp_liar.py'}, FOLDER]\nstart_seconds: 30\n",
}


@dataclass(frozen=True, slots=True)
class Yard:
    harness: Harness
    app: App
    home: Path
    servers: McpServers

    @property
    def cluster(self) -> Path:
        return self.home / "mcp" / f"{self.app.name}-cluster"

    def effects(self) -> list[Any]:
        return list(State(self.cluster / "cluster.json").effects())

    async def run(self, address: TurnAddress, agent_id: str = "keeper", attempt: int = 1) -> ToolOutcome:
        call = await self.harness.tool_call(address, "t1.0", agent_id)
        return await self.harness.activity(ToolActivities(self.harness.deps).run, call, attempt=attempt)

    async def told(self, address: TurnAddress) -> Any:
        sql = "SELECT content FROM messages WHERE turn_id = $1 AND call_id = 't1.0'"
        return json.loads(await self.harness.value(sql, address.turn_id))


@pytest.fixture(scope="module")
async def yard(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    """Two agents, published: one of the cluster, one of a server that lies."""
    folder, home = tmp_path_factory.mktemp("yard"), tmp_path_factory.mktemp("home")
    for path, text in FILES.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text.replace("FOLDER", str(folder)))
    app = load_app(folder)
    assert not app.problems, app.problems
    published = publish(app, [], (await discovered(app, [], lambda name: None, home)).cards)
    await publish_app(harness.owner_url, [*app_agents()[0], *((app.name, agent) for agent in published)])
    assert {agent.definition.id: len(agent.cards) for agent in published} == {"keeper": 35, "dupe": 1}
    servers = McpServers([app], lambda name: None, home)
    for server in app.servers.values():
        await servers.session(app.name, server).connection()
    toolbox = Toolbox(app_agents()[1], lambda name: None, harness.deps.toolbox.http, servers)
    yield Yard(replace(harness, deps=replace(harness.deps, toolbox=toolbox)), app, home, servers)
    await servers.close()


async def test_a_read_runs_at_once_and_its_result_is_the_models(yard: Yard) -> None:
    address = await yard.harness.plan((PODS, {"namespace": "shop"}), agent_id="keeper")
    assert (await yard.run(address)).state is CallState.DONE
    assert (await yard.told(address))["status"] == "ok"
    assert (await yard.harness.call_row(address))["effect"] == "read"


async def test_a_change_is_sent_once_it_is_approved_with_the_calls_own_key(yard: Yard) -> None:
    before = len(yard.effects())
    address = await yard.harness.plan((RESTART, WEB), agent_id="keeper")
    assert (await yard.run(address)).state is CallState.DENIED and len(yard.effects()) == before
    address = await yard.harness.approved((RESTART, WEB), agent_id="keeper")
    assert (await yard.run(address)).state is CallState.DONE
    row = await yard.harness.call_row(address)
    assert [effect["key"] for effect in yard.effects()][-1] == row["key"] and row["effect"] == "keyed"


async def test_a_server_killed_in_the_middle_of_a_change_makes_it_once(yard: Yard) -> None:
    before = len(yard.effects())
    Faults(yard.cluster / "faults.json").arm(Fault(Kind.DIE, "k8s_deployment_restart", when="after"))
    address = await yard.harness.approved((RESTART, WEB), agent_id="keeper")
    with pytest.raises(ApplicationError):
        await yard.run(address)
    assert (await yard.harness.call_row(address))["state"] == "reserved"
    assert (await yard.run(address, attempt=2)).state is CallState.DONE
    assert len(yard.effects()) == before + 1


async def test_an_untrusted_servers_call_is_opaque_whatever_it_says_and_waits_for_its_approval(yard: Yard) -> None:
    address = await yard.harness.plan(("liar_remove", {"name": "x"}), agent_id="dupe")
    assert (await yard.run(address, "dupe")).state is CallState.DENIED
    assert not (yard.app.folder / "deleted").exists()
    address = await yard.harness.approved(("liar_remove", {"name": "x"}), agent_id="dupe")
    assert (await yard.run(address, "dupe")).state is CallState.DONE
    assert (yard.app.folder / "deleted").read_text() == "x\n"
    row = await yard.harness.call_row(address)
    assert (row["effect"], row["state"]) == ("opaque", "done")


async def test_a_dead_server_is_an_error_that_the_model_reads(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    session = yard.servers.session(yard.app.name, yard.app.servers["cluster"])
    await session.close()
    monkeypatch.setattr(session, "server", session.server.model_copy(update={"command": (sys.executable, "-c", "")}))
    address = await yard.harness.plan((PODS, {"namespace": "shop"}), agent_id="keeper")
    for attempt in range(1, 5):
        with pytest.raises(ApplicationError):
            await yard.run(address, attempt=attempt)
        assert (await yard.harness.call_row(address))["state"] == "planned"
    outcome = await yard.run(address, attempt=5)
    assert outcome.state is CallState.FAILED and outcome.problem is None
    assert "cluster" in (await yard.told(address))["message"]
    monkeypatch.undo()


async def test_a_server_that_is_down_at_publishing_is_told_of_and_leaves_out_its_agent_alone(yard: Yard) -> None:
    down = yard.app.servers["cluster"].model_copy(update={"command": ("no-such-program-here",)})
    broken = replace(yard.app, servers={**yard.app.servers, "cluster": down})
    met: dict[str, str] = {}

    async def told(app: str, server: str, fault: str) -> None:
        met[server] = fault

    fresh = await discovered(broken, [], lambda name: None, yard.home, told)
    assert met["cluster"] and met["liar"] == ""
    assert not fresh.cards["cluster"] and any("cluster" in warning for warning in fresh.warnings)
    assert [agent.definition.id for agent in publish(broken, [], fresh.cards)] == ["dupe"]


Capture = pytest.CaptureFixture[str]
KEEPER = "id: keeper\ntitle: Keeper\ntopology: skill_pipeline\ncore_tools: false\ntools: ['cluster_*']\n"
SERVER = f"command: [python, -m, cluster]\nenv: {{PYTHONPATH: {OPS}}}\ntrust_annotations: true\n"
SERVER += "toolsets: [k8s]\nstart_seconds: 30\n"


async def prepared(urls: Urls, folder: Path, **beside: str) -> dict[str, PublishedAgent]:
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
    for path, text in {"agents/a.yaml": KEEPER.replace("keeper", agent), "mcp/cluster.yaml": server}.items():
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
