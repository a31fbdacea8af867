"""What stays of a reviewer's refusal when its turn is over: in the next turn's prompt, in the views, in episodes."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from temporalio.client import Client

from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.agents import MemoryPolicy
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import TurnAddress, TurnStatus, WakeSignal
from perdure.core.approvals.decisions import Decider, Decision
from perdure.store.approvals.assignments import withdraw
from perdure.store.turns.conversations import list_messages
from perdure.store.turns.views import read_segments
from tests.doubles.desk_variants import agent_of, changed_agent
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app
from tests.served_turns import ALL_KINDS, DONE, Served, serve

WHY = 'ILLEGAL "CONTENT"'
MEMORY = MemoryPolicy(episodic=True, hits=2)
AGENTS = {
    "desk": ("desk", "skill_pipeline"),
    "loop": ("desk", "tool_loop"),
    "checked": ("checked", "skill_pipeline"),
    "checked_loop": ("checked", "tool_loop"),
}
"""The agent that each copies, and its topology."""
BOOK = ("book", {"what": "a chair"})
PAY = ("pay", {"amount": 5})


@pytest.fixture(scope="module")
async def refusing(harness: Harness, temporal: Client) -> AsyncIterator[Served]:
    """The desk in both topologies; every agent has episodic memory."""
    published, tools = app_agents()
    copies = [
        changed_agent(agent_of(source), id=agent_id, topology=topology, memory=MEMORY)
        for agent_id, (source, topology) in AGENTS.items()
    ]
    others = [each for each in published if each[1].definition.id not in AGENTS]
    await publish_app(harness.owner_url, [*others, *(("desk", agent) for agent in copies)])
    own = [(copy, tool) for agent, tool in tools for copy, (source, _) in AGENTS.items() if source == agent]
    harness.deps = replace(harness.deps, toolbox=Toolbox(own, lambda name: None, harness.deps.toolbox.http))
    async with AsyncExitStack() as stack:
        yield Served(harness, temporal, await serve(stack, harness, ALL_KINDS))


async def refuse(served: Served, address: TurnAddress, call_id: str, outcome: str) -> None:
    harness, request = served.harness, approval_id(address.turn_id, call_id)
    if outcome in ("reject", "respond"):
        await served.decide(address, call_id, Decision(outcome), comment=WHY)
    elif outcome == "withdraw":
        person = harness.people["requester"]
        async with harness.db.transaction("local") as tx:
            await withdraw(tx, request, Decider(person.user_id, person.roles, person.name), WHY)
    else:
        await harness.write("UPDATE approvals SET expires_at = now() WHERE id = $1", request)
    if outcome not in ("reject", "respond"):
        await served.wake(address, WakeSignal(kind="request"))
    await served.until(address, TurnStatus.COMPLETED)


@pytest.mark.parametrize("outcome", ["reject", "respond", "expire", "withdraw"])
@pytest.mark.parametrize("agent_id", [*AGENTS])
async def test_repro(refusing: Served, agent_id: str, outcome: str) -> None:
    is_checkpoint = "checked" in agent_id
    call = BOOK if is_checkpoint else PAY
    address = await refusing.paused(Line("asking", [call]), DONE, agent_id=agent_id)
    await refuse(refusing, address, "c1.0" if is_checkpoint else "t1.0", outcome)
    again, _ = await refusing.run_to_end(Line("next"), agent_id=agent_id, conversation_id=address.conversation_id)
    print("\nPROMPT", agent_id, outcome)
    for each in refusing.sent_to_model(again)[0]:
        print("   ", json.dumps(each)[:400])
    async with refusing.harness.db.transaction("local") as tx:
        for m in (await list_messages(tx, address.conversation_id, 50, 0))[0]:
            print("   MSG", m["seq"], m["role"], str(m["content"])[:100], m["tool_calls"], m.get("approval"))
        print("   SEG", (await read_segments(tx, [address.turn_id]))[address.turn_id])
        rows = await tx.fetch("select summary from episodes where turn_id=$1", address.turn_id)
        print("   EPI", [r["summary"] for r in rows])
