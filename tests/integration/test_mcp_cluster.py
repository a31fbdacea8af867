"""A real MCP server: sessions over stdio and HTTP, its tools in turns and in published apps, its lock."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.tool_checks import ToolCheckActivities
from perdure.activities.toolbox.mcp.session import McpSession, MissingSecret, Unreachable
from perdure.activities.toolbox.mcp.tools import McpServers, ServerLost
from perdure.activities.toolbox.registry import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.apps import App, load_app, publish
from perdure.apps.bootstrap import bootstrap
from perdure.apps.mcp import difference, lock_path, read_lock
from perdure.apps.registry import contact_servers, discover_cards
from perdure.contracts.activities import Checked, CheckRequest
from perdure.contracts.agents import PublishedAgent, ToolCard
from perdure.contracts.calls import CallState, EffectClass, ToolOutcome
from perdure.contracts.ids import approval_id
from perdure.contracts.mcp import McpServer
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import canonical_json
from perdure.core.approvals.decisions import Decider
from perdure.core.egress import Outbound
from perdure.core.text import estimated_tokens
from perdure.examples.ops.cluster.faults import Fault, FaultKind, Faults
from perdure.examples.ops.cluster.state import State
from perdure.local.ports import free_port
from perdure.sdk.outcomes import ToolRefused, ToolResult, ToolUnavailable
from perdure.settings import Settings
from perdure.store import agents
from perdure.store.approvals import views
from perdure.store.approvals.decisions import EditNotChecked
from perdure.store.approvals.reissue import reissue_outdated
from perdure.store.approvals.tool_previews import propose_reissue
from tests.conftest import Urls, as_owner
from tests.doubles.mcp_cluster import OPS, PODS, RESTART, WEB, McpBench, Web, bench
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app
from tests.integration.conftest import in_transaction
from tests.served_turns import refused
from tests.unit.apps.tool_contexts import context

DOUBLES = Path(__file__).parents[1] / "doubles"
BOTH = pytest.mark.parametrize("cluster", ["stdio", "http"], indirect=True)
TOKEN = {"headers": {"Authorization": "Bearer {secret:cluster_token}"}}
SHOP = {"namespace": "shop"}


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    served = Web(tmp_path, free_port())
    yield served
    await served.kill()


@pytest.fixture(params=["stdio", pytest.param("http", marks=pytest.mark.soak)])
async def cluster(request: pytest.FixtureRequest, web: Web, tmp_path: Path) -> AsyncIterator[McpBench]:
    """The cluster; `BOTH` has it over each transport."""
    given: dict[str, Any] = {}
    if request.param == "http":
        await web.start()
        given = {"url": web.url, **TOKEN}
    async with bench(tmp_path, **given) as opened:
        yield opened


async def object_output(cluster: McpBench, tool: str, args: dict[str, Any], key: str = "key-1") -> dict[str, Any]:
    output = (await cluster.call(tool, args, key)).output
    assert isinstance(output, dict)
    return output


@BOTH
async def test_tools_are_read_and_changed_by_their_own_names(cluster: McpBench) -> None:
    offer = (await cluster.session.connection()).offer
    assert not offer.left_out
    assert offer.tools[PODS].card.effect is EffectClass.READ and not offer.tools[PODS].card.needs_approval
    restart = offer.tools[RESTART].card
    assert (restart.effect, restart.needs_approval, restart.risk) == (EffectClass.KEYED, True, "high")
    assert restart.key_ttl_seconds == 30 * 86_400 and restart.toolset == "k8s"
    cluster.fail(FaultKind.NOISE)
    pods = await object_output(cluster, PODS, SHOP)
    assert (pods["status"], len(pods["pods"])) == ("ok", 7), "a line that is no message does no harm"
    assert (await object_output(cluster, RESTART, WEB))["status"] == "restarted"


@BOTH
async def test_other_calls_continue_while_one_hangs_and_it_can_be_cancelled(cluster: McpBench) -> None:
    cluster.fail(FaultKind.HANG, "k8s_pods_list", seconds=2.0)
    hanging = asyncio.create_task(cluster.call(PODS, SHOP))
    await asyncio.sleep(0.2)
    others = await asyncio.gather(*(object_output(cluster, "cluster_k8s_nodes_list", {}) for _ in range(20)))
    assert {len(each["nodes"]) for each in others} == {3} and not hanging.done()
    hanging.cancel()
    await asyncio.wait([hanging])
    assert len((await object_output(cluster, "cluster_k8s_nodes_list", {}))["nodes"]) == 3


@BOTH
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_server_killed_in_a_call_leaves_it_open_for_its_key(cluster: McpBench, web: Web, when: str) -> None:
    cluster.fail(FaultKind.DIE, when=when)
    with pytest.raises(ServerLost):
        await cluster.call(RESTART, WEB, key="k-1")
    assert len(cluster.state.effects()) == (1 if when == "after" else 0)
    if cluster.session.server.url:  # only its operator starts it again
        await web.kill()  # it has killed itself; until it is gone for good, a connection may still be accepted
        with pytest.raises(ToolUnavailable):
            await cluster.call(RESTART, WEB, key="k-1")
        await web.start()
    for _ in range(2):
        assert (await object_output(cluster, RESTART, WEB, "k-1"))["status"] == "restarted"
    assert [effect["key"] for effect in cluster.state.effects()] == ["k-1"]


async def test_a_server_that_died_between_calls_was_not_sent_anything(web: Web, tmp_path: Path) -> None:
    await web.start()
    async with bench(tmp_path, url=web.url, **TOKEN) as cluster:
        await cluster.call(RESTART, WEB, key="k-1")
        await web.kill()
        with pytest.raises(ToolUnavailable):
            await cluster.call(RESTART, WEB, key="k-2")
        assert len(cluster.state.effects()) == 1
        connection = cluster.session._connection
        assert connection is not None
        connection.wire.ended.set()  # it ended after the caller got it
        assert not (await connection.call("k8s_pods_list", {}, {}))[1].sent


@pytest.mark.parametrize(("bearer", "fault"), [("wrong", Unreachable), ("{secret:other}", MissingSecret)])
async def test_a_wrong_or_missing_secret_fails(web: Web, tmp_path: Path, bearer: str, fault: type[Exception]) -> None:
    await web.start()
    async with bench(tmp_path, url=web.url, headers={"Authorization": f"Bearer {bearer}"}) as cluster:
        with pytest.raises(fault):
            await cluster.session.connection()


@pytest.mark.parametrize("fields", [
    {"command": ("no-such-program-here",)},
    {"command": ("python", "-c", "raise SystemExit(3)")},
    {"command": ("python", "-c", "import time; time.sleep(60)"), "start_seconds": 0.5},
    {"url": "http://127.0.0.1:9/mcp", "start_seconds": 5},
])  # fmt: skip
async def test_a_server_that_cannot_be_started_is_unreachable(tmp_path: Path, fields: dict[str, Any]) -> None:
    met: list[str] = []

    async def note_fault(fault: str) -> None:
        met.append(fault)

    session = McpSession(McpServer(name="none", **fields), tmp_path, tmp_path / "home", lambda name: None, note_fault)
    with pytest.raises(Unreachable):
        await session.connection()
    await session.close()
    assert len(met) == 1
    (tmp_path / "file").touch()
    with pytest.raises(Unreachable):
        await replace(session, server=McpServer(name="none", command=("python",)), home=tmp_path / "file").connection()


async def test_a_server_leaves_with_its_session_and_its_default_toolset_is_small(tmp_path: Path) -> None:
    """The tools that an agent is offered at the start, and all of them."""
    async with bench(tmp_path) as cluster:
        cards = (await cluster.session.connection()).offer.cards
        keeper = cluster.session._connection
        assert keeper is not None and keeper.alive
    assert not keeper.alive and keeper.keeper.done()

    def tokens(card: ToolCard) -> int:
        form = {"name": card.name, "description": card.description, "parameters": card.parameters}
        return estimated_tokens(canonical_json({"type": "function", "function": form}))

    default = sum(tokens(card) for card in cards if card.toolset == "k8s" and card.effect is EffectClass.READ)
    whole = sum(map(tokens, cards))
    assert default <= 700, "load_toolset and the readers of memory need their part of the 1,500"
    assert 6_500 <= whole <= 8_000, whole


AGENT = "id: {0}\ntitle: {0}\ntopology: skill_pipeline\ncore_tools: false\ntools: ['{1}_*']\n"
FILES = {
    "agents/keeper.yaml": AGENT.format("keeper", "cluster"),
    "agents/dupe.yaml": AGENT.format("dupe", "liar"),
    "mcp/cluster.yaml": f"command: [python, -m, cluster]\nenv: {{PYTHONPATH: {OPS}}}\ntrust_annotations: true\n"
    "start_seconds: 30\n",
    "mcp/liar.yaml": f"command: [python, {DOUBLES / 'mcp_false_hints.py'}, FOLDER]\nstart_seconds: 30\n",
}


@dataclass(frozen=True, slots=True)
class McpApp:
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

    async def reissue(self, address: TurnAddress) -> Checked:
        """Reissues the request of the call, if the worker that must check it first finds no fault, as the API does."""
        db, approval = self.harness.db, approval_id(address.turn_id, "t1.0")
        person = self.harness.people["reviewer"]
        decider = Decider(person.user_id, person.roles)
        with pytest.raises(EditNotChecked) as needed:
            await in_transaction(db, reissue_outdated, approval, decider)
        edit, version = needed.value.edit, needed.value.version
        await in_transaction(db, propose_reissue, approval, edit.key, needed.value.edited_args, version)
        check = ToolCheckActivities(self.harness.deps).check
        checked: Checked = await self.harness.activity(check, CheckRequest(address=address, edit=edit))
        if not checked.fault:
            await in_transaction(db, reissue_outdated, approval, decider, edit.digest)
        return checked

    async def tool_message(self, address: TurnAddress) -> Any:
        sql = "SELECT content FROM messages WHERE turn_id = $1 AND call_id = 't1.0'"
        return json.loads(await self.harness.value(sql, address.turn_id))


@pytest.fixture(scope="module")
async def mcp_app(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpApp]:
    """Two agents, published: one of the cluster, one of a server that lies."""
    folder, home = tmp_path_factory.mktemp("yard"), tmp_path_factory.mktemp("home")
    for path, text in FILES.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text.replace("FOLDER", str(folder)))
    app = load_app(folder)
    assert not app.problems, app.problems
    published = publish(app, [], (await discover_cards(app, [], lambda name: None, home)).cards)
    await publish_app(harness.owner_url, [*app_agents()[0], *((app.name, agent) for agent in published)])
    assert {agent.definition.id: len(agent.cards) for agent in published} == {"keeper": 35, "dupe": 1}
    servers = McpServers([app], lambda name: None, home)
    for server in app.servers.values():
        await servers.session(app.name, server).connection()
    toolbox = Toolbox(app_agents()[1], lambda name: None, harness.deps.toolbox.http, servers)
    yield McpApp(replace(harness, deps=replace(harness.deps, toolbox=toolbox)), app, home, servers)
    await servers.close()


async def test_a_server_killed_in_the_middle_of_a_change_makes_it_once(mcp_app: McpApp) -> None:
    before = len(mcp_app.effects())
    Faults(mcp_app.cluster / "faults.json").arm(Fault(FaultKind.DIE, "k8s_deployment_restart", when="after"))
    address = await mcp_app.harness.approved((RESTART, WEB), agent_id="keeper")
    with pytest.raises(ApplicationError):
        await mcp_app.run(address)
    assert (await mcp_app.harness.call_row(address))["state"] == "reserved"
    assert (await mcp_app.run(address, attempt=2)).state is CallState.DONE
    assert len(mcp_app.effects()) == before + 1


async def test_a_call_of_an_untrusted_server_is_opaque_and_waits_for_approval(mcp_app: McpApp) -> None:
    address = await mcp_app.harness.plan(("liar_remove", {"name": "x"}), agent_id="dupe")
    assert (await mcp_app.run(address, "dupe")).state is CallState.DENIED
    assert not (mcp_app.app.folder / "deleted").exists()
    address = await mcp_app.harness.approved(("liar_remove", {"name": "x"}), agent_id="dupe")
    assert (await mcp_app.run(address, "dupe")).state is CallState.DONE
    assert (mcp_app.app.folder / "deleted").read_text() == "x\n"
    row = await mcp_app.harness.call_row(address)
    assert (row["effect"], row["state"]) == ("opaque", "done")


async def test_an_approved_call_of_a_drifted_tool_waits_for_its_reviewers_again(mcp_app: McpApp) -> None:
    harness, folder = mcp_app.harness, mcp_app.app.folder
    address = await harness.approved(("liar_remove", {"name": "y"}), agent_id="dupe")
    request = approval_id(address.turn_id, "t1.0")
    session = mcp_app.servers.session(mcp_app.app.name, mcp_app.app.servers["liar"])
    (folder / "drifted").touch()
    await session.close()
    try:
        for attempt in (1, 2, 3):
            with pytest.raises(ApplicationError) as error:
                await mcp_app.run(address, "dupe", attempt=attempt)
            assert error.value.type == "tool_not_here"
            row, approval = await harness.call_row(address), await harness.approval_row(address)
            assert (row["epoch"], row["errors"], approval["status"]) == (0, 0, "approved"), "no attempt was lost"
        assert (await harness.kinds(address.turn_id)).count("tool.executing") == 1
        at_once = replace(mcp_app, harness=replace(harness, deps=replace(harness.deps, version_wait_seconds=0)))
        outcome = await at_once.run(address, "dupe", attempt=4)
        assert (outcome.state, outcome.problem) == (CallState.PLANNED, None)
        shown: dict[str, Any] = await in_transaction(harness.db, views.get_approval, request, None)
        assert (shown["status"], shown["changes"]) == ("outdated", {})
        with refused("approval_outdated"):
            await harness.decide(request)
        assert (await mcp_app.reissue(address)).server_changed
    finally:
        (folder / "drifted").unlink()
    assert await mcp_app.reissue(address) == Checked(), "the server is as before"
    await harness.decide(request)
    assert (await mcp_app.run(address, "dupe")).state is CallState.DONE
    assert (folder / "deleted").read_text().split().count("y") == 1


async def test_a_dead_server_is_an_error_that_the_model_reads(mcp_app: McpApp, monkeypatch: pytest.MonkeyPatch) -> None:
    session = mcp_app.servers.session(mcp_app.app.name, mcp_app.app.servers["cluster"])
    await session.close()
    monkeypatch.setattr(session, "server", session.server.model_copy(update={"command": (sys.executable, "-c", "")}))
    address = await mcp_app.harness.plan((PODS, {"namespace": "shop"}), agent_id="keeper")
    for attempt in range(1, 5):
        with pytest.raises(ApplicationError):
            await mcp_app.run(address, attempt=attempt)
        assert (await mcp_app.harness.call_row(address))["state"] == "planned"
    outcome = await mcp_app.run(address, attempt=5)
    assert outcome.state is CallState.FAILED and outcome.problem is None
    assert "cluster" in (await mcp_app.tool_message(address))["message"]
    monkeypatch.undo()


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
    async with as_owner(urls.owner, agents.SHARED) as owner:
        return {agent.definition.id: agent for _, agent in await agents.list_agents(owner)}


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
    assert "cluster" in capsys.readouterr().err


async def test_a_server_with_a_lock_is_published_without_a_start(urls: Urls, tmp_path: Path, capsys: Capture) -> None:
    """Its command cannot be started, and it was never published before."""
    write_app(tmp_path, SERVER.replace("python", "no-such-program"), "pinned")
    degraded = (await prepared(urls, tmp_path))["pinned"]
    assert (degraded.cards, degraded.unreached) == ((), ("cluster_*",)) and "cluster_*" in capsys.readouterr().err
    shutil.copy(OPS / "mcp" / "cluster.lock.json", tmp_path / "mcp")
    pinned = (await prepared(urls, tmp_path, PENDING_MUTATION_TTL_SECONDS="172800"))["pinned"]
    assert len(pinned.cards) == 18 and {card.toolset for card in pinned.cards} == {"k8s"}
    assert pinned.definition.approvals.expires_seconds == 172_800, "its file says none, and the deployment does"
    assert "cluster" not in capsys.readouterr().err


def no_secret(name: str) -> None:
    return None


async def test_the_shipped_lock_matches_the_tools_of_its_server(tmp_path: Path) -> None:
    asked, listings = await contact_servers(OPS, no_secret, tmp_path, Outbound())
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


async def read_pods(servers: McpServers, app: App, home: Path) -> ToolResult:
    """A read under the card that publishing makes of this app."""
    card = next(card for card in (await discover_cards(app, [], no_secret, home)).cards["cluster"] if card.name == PODS)
    tool = servers.find("ops", card)
    assert tool is not None
    return await tool.run({"namespace": "prod"}, context(card, seconds=30))


async def test_a_tool_runs_only_as_locked(servers: McpServers, tmp_path: Path) -> None:
    app = load_app(OPS)
    assert (await read_pods(servers, app, tmp_path)).output
    lock = app.locks["cluster"]
    tools = tuple(
        tool.model_copy(update={"description": "List them."}) if f"cluster_{tool.name}" == PODS else tool
        for tool in lock.tools
    )
    reviewed = replace(app, locks={"cluster": lock.model_copy(update={"tools": tools})})
    with pytest.raises(ToolRefused):
        await read_pods(servers, reviewed, tmp_path)
