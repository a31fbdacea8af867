"""The worker of the tools dies by SIGKILL in the middle of a change; another one finishes the turn, and the cluster has
been changed once."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from perdure.contracts.ids import approval_id
from perdure.contracts.turns import Kind as Work
from perdure.contracts.turns import Routing, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.examples.ops.cluster.faults import Fault, Kind
from perdure.local import DataParts
from perdure.worker.queues import workers_for
from tests.conftest import Urls
from tests.desk import own_queues
from tests.worker_process import worker_process
from tests.workflow.conftest import Engine
from tests.workflow.test_tool_loop import PAUSED, Ops

OTHERS = (Work.APPROVALS, Work.MEMORY, Work.LLM, Work.TURNS)


@pytest.fixture
def spread(engine: Engine) -> Engine:
    """Turns on queues that nobody serves yet."""
    return replace(engine, routing=own_queues(Routing.spread()))


async def test_a_worker_killed_after_the_effect_and_before_its_record_changes_the_cluster_once(
    spread: Engine, urls: Urls, parts: DataParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVERS_HOME", str(spread.home))
    ops = Ops(spread, await spread.conversation("ops"))
    async with AsyncExitStack() as stack:
        for kind in OTHERS:
            for worker in workers_for(spread.deps, kind, spread.routing.queue(kind)):
                await stack.enter_async_context(worker)
        async with worker_process("tools_worker", urls, parts, spread.routing.tools) as process:
            turn_id = await ops.begin("Restart web and api in prod")
            await spread.until(turn_id, PAUSED)
            ops.fail(Fault(Kind.HANG, "k8s_deployment_restart", when="after", seconds=60))
            await spread.decide(approval_id(turn_id, "t2.0"), Decision.APPROVE)
            for _ in range(400):
                if await ops.restarted(turn_id):
                    break
                await asyncio.sleep(0.05)
            process.kill()
            await process.wait()
        assert await ops.restarted(turn_id) == ["web"], "the effect is made"
        assert ("t2.0", "cluster_k8s_deployment_restart", "reserved") in await ops.calls(turn_id)
        await spread.decide(approval_id(turn_id, "t2.1"), Decision.APPROVE)
        for worker in workers_for(spread.deps, Work.TOOLS, spread.routing.tools):
            await stack.enter_async_context(worker)
        row = await spread.until(turn_id, TurnStatus.COMPLETED, seconds=40)
    assert sorted(await ops.restarted(turn_id)) == ["api", "web"], "each once, whoever sent it twice"
    assert row["problem"] is None
