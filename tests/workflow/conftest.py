"""Turns on the real Temporal server, with workers inside the test process on queues of the module's own."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from perdure.activities.dependencies import Deps
from perdure.activities.providers.registry import Models
from perdure.activities.sandbox import LazySandbox, SandboxConfig
from perdure.activities.toolbox.mcp.tools import McpServers
from perdure.activities.toolbox.registry import Toolbox
from perdure.apps import app_folders, find_apps
from perdure.contracts.turns import ENDED, Kind, Routing, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.core.events.traces import alarms_of
from perdure.core.turns import Caps
from perdure.graph.registry import TOPOLOGIES
from perdure.local import DataParts
from perdure.store import agents
from perdure.store.database import Database
from perdure.store.events.live import LiveTokens
from perdure.store.turns.start import NewTurn, StartedTurn, start_turn
from perdure.store.valkey import Valkey
from perdure.temporal.workflow_client import Notifier
from perdure.worker import queues
from perdure.worker.queues import freeze_heap, tools_of, workers_for
from perdure.worker.telemetry import edges_of
from tests.conftest import Person
from tests.eventually import until
from tests.harness import AppRecords, own_queues
from tests.local_egress import new_client
from tests.served_turns import Served

EDGES = {one.name: edges_of(one) for one in TOPOLOGIES}
ENDED_NODES = """
SELECT t.topology, t.id::text AS turn_id, array_agg(e.data ->> 'node' ORDER BY e.seq) AS nodes
FROM turns t JOIN events e ON e.turn_id = t.id AND e.kind = 'node_end'
WHERE t.routing ->> 'turns' = $1 GROUP BY t.id
"""
"""The turns of one queue with their nodes, in the order in which they ended."""


def assert_paths(rows: list[asyncpg.Record]) -> None:
    """Every turn that ran took a path of its manifest, whatever its test was about."""
    for row in rows:
        off = [alarm.model_dump() for alarm in alarms_of(row["nodes"], EDGES[row["topology"]], row["turn_id"])]
        assert not off, (row["topology"], row["nodes"], off)


@dataclass(slots=True)
class Engine(AppRecords):
    """The bundled apps with workers: starts turns and waits for them."""

    home: Path
    """The data folder of the apps' servers."""

    async def begin(
        self, message: str, *, agent_id: str, conversation_id: str = "", caps: Caps | None = None, **given: Any
    ) -> StartedTurn:
        user_id, where = self.people["requester"].user_id, conversation_id or await self.conversation(agent_id)
        new = NewTurn("local", where, user_id, message, routing=self.routing, **given)
        async with self.deps.db.transaction("local") as tx:
            agent = await agents.current_agent(tx, agent_id)
            started = await start_turn(tx, new, agent, caps or Caps())
        if started.note is not None:
            await self.deps.notifier.deliver_soon(started.note)
        return started

    async def until(self, turn_id: str, *statuses: TurnStatus, seconds: float = 30.0) -> asyncpg.Record:
        """The turn's row once it has one of `statuses` (by default: ended or waiting)."""
        wanted = {status.value for status in statuses or (*ENDED, TurnStatus.AWAITING_APPROVAL)}

        async def there() -> asyncpg.Record | None:
            row = await self.turn(turn_id)
            return row if row["status"] in wanted else None

        return await until(there, seconds)

    async def decide_and_wake(self, approval_id: str, decision: Decision, **given: Any) -> None:
        _, note = await self.decide(approval_id, decision, **given)
        if note is not None:
            await self.deps.notifier.deliver_soon(note)

    async def stop(self, turn_id: str) -> None:
        note = await AppRecords.stop(self, turn_id)
        if note is not None:
            await self.deps.notifier.deliver_soon(note)


@pytest.fixture(scope="module")
async def served(served: Served) -> AsyncIterator[Served]:
    """The test app with workers; afterwards every turn is compared with its manifest."""
    yield served
    assert_paths(await served.harness.rows(ENDED_NODES, served.harness.routing.turns))


@pytest.fixture
def released_target(served: Served) -> Iterator[None]:
    """Releases afterwards everything that a test held up."""
    yield
    served.harness.world.go_on.set()


@pytest.fixture(scope="module")
def without_cache() -> Iterator[None]:
    """The module's workers replay a run from its first event at every task."""

    def worker(*given: Any, **named: Any) -> Worker:
        return Worker(*given, **{**named, "max_cached_workflows": 0})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "Worker", worker)
        patch.setattr("perdure.temporal.workflow_client.TASK_TIMEOUT", timedelta(seconds=2))  # some are lost so
        yield


@pytest.fixture(scope="session", autouse=True)
def frozen_heap() -> None:
    """What a worker does before it serves: a full round of the collector over all of the suite holds a task up for
    two seconds (measured), which the SDK takes for a deadlock."""
    freeze_heap()


@pytest.fixture(scope="module", params=["spread", pytest.param("compact", marks=pytest.mark.soak)])
def routing(request: pytest.FixtureRequest) -> Routing:
    """Returns the spread routing, and the compact one in the soak, on queues of this module's own.

    The stacks of the acceptance tests run the compact one.
    """
    return own_queues(Routing.spread() if request.param == "spread" else Routing.compact())


@pytest.fixture(scope="module")
async def engine(
    parts: DataParts,
    db: Database,
    people: dict[str, Person],
    temporal: Client,
    routing: Routing,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Engine]:
    """Workers for every queue of the module, and a way to start turns."""
    assert parts.redis_url is not None
    async with AsyncExitStack() as stack:
        valkey = Valkey.connect(parts.redis_url)
        stack.push_async_callback(valkey.close)
        http = await stack.enter_async_context(new_client())

        def secret(name: str) -> str | None:
            return os.environ.get(f"PERDURE_SECRET_{name.upper()}")

        apps, home = find_apps(app_folders((), examples=True)), tmp_path_factory.mktemp("servers")
        servers = McpServers(apps, secret, home)  # each is started by its first call
        stack.push_async_callback(servers.close)
        toolbox = Toolbox(tools_of(apps), secret, http, servers)
        sandbox = LazySandbox(SandboxConfig(max_running=1))  # opened by the first block that runs
        stack.push_async_callback(sandbox.close)
        deps = Deps(db, LiveTokens(valkey), toolbox, Models(secret), Notifier(temporal, db), sandbox=sandbox)
        kinds = {routing.queue(kind): kind for kind in (Kind.APPROVALS, Kind.MEMORY, Kind.TOOLS, Kind.LLM, Kind.TURNS)}
        for queue, kind in kinds.items():
            for worker in workers_for(deps, kind, queue):
                await stack.enter_async_context(worker)
        engine = Engine(deps, people, routing, home)
        yield engine
        assert_paths(await engine.rows(ENDED_NODES, routing.turns))
