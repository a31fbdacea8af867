"""A server's tools in real turns at the desk: found by the pinned card, gated, claimed, sent once and settled."""

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.toolbox.mcp.tools import McpServers
from perdure.activities.toolbox.registry import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.apps import App, load_app, publish
from perdure.apps.registry import discovered
from perdure.contracts.calls import CallState, ToolOutcome
from perdure.contracts.turns import TurnAddress
from perdure.examples.ops.cluster.faults import Fault, Faults, Kind
from perdure.examples.ops.cluster.state import State
from tests.doubles.mcp_cluster import OPS, PODS, RESTART, WEB
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app

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
