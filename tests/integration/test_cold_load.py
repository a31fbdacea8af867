"""`memory.load` of a turn that is started again, while an earlier run of it still writes."""

import asyncio

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.memory import MemoryActivities
from perdure.contracts.activities import LoadRequest, OpenRequest
from perdure.contracts.approvals import GatedCall, RequestKind
from perdure.contracts.turns import Limits, OnSpent
from perdure.store.approvals.requests import open_requests
from perdure.store.memory import working_memory
from tests.harness import Harness

BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def test_a_load_that_waited_for_the_turn_sees_what_was_written_meanwhile(harness: Harness) -> None:
    address = await harness.plan(("pay", {"amount": 5}))
    version = await harness.version()
    gated = (GatedCall(call_id="t1.0", tool="pay", rule="test"),)
    asked = OpenRequest(address=address, agent_id="desk", agent_version=version, gated=gated)
    given = LoadRequest(address=address, agent_id="desk", agent_version=version)
    async with harness.db.transaction("local") as tx:
        opened = await open_requests(tx, asked, await harness.deps.agent_cache.at(tx, "desk", version))
        await working_memory.merge(tx, "local", address.conversation_id, {"recent_entity_context": ["e1"]})
        loading = asyncio.create_task(harness.activity(MemoryActivities(harness.deps).load, given, run_id="run-2"))
        for _ in range(200):
            if await harness.value(BLOCKED):
                break
            await asyncio.sleep(0.01)
        assert not loading.done(), "it waits for the turn's row"
    loaded = await loading
    assert opened is not None
    assert [request.request_id for request in loaded.pending] == [request.request_id for request in opened.requests]
    assert loaded.pending_round is not None and loaded.pending_round.calls[0].call_id == "t1.0"
    assert loaded.working == {"recent_entity_context": ["e1"]}


async def test_a_limit_that_was_asked_about_before_the_first_call_is_past_once_the_model_was_asked(
    harness: Harness,
) -> None:
    little = Limits(max_cost_microusd=1, max_tokens=10**6, max_iterations=10, on_spent=OnSpent.ASK)
    address = await harness.plan(("book", {"what": "x"}), limits=little)
    version = await harness.version()
    asked = GatedCall(call_id="l0", tool="", rule="test", kind=RequestKind.LIMIT)
    ask = OpenRequest(address=address, agent_id="desk", agent_version=version, gated=(asked,))
    opened = await harness.activity(ApprovalActivities(harness.deps).open, ask)
    assert [request.call_id for request in opened.requests] == ["l0"]
    given = LoadRequest(address=address, agent_id="desk", agent_version=version)
    loaded = await harness.activity(MemoryActivities(harness.deps).load, given, run_id="run-2")
    assert (loaded.problem, loaded.pending, loaded.pending_round) == (None, (), None)
