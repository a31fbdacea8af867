"""Filings of `rule_37` over REST on a stack of real processes, and past the death of every worker."""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from perdure.store.database import new_id
from tests.acceptance.running import WORKERS, RunningStack
from tests.acceptance.turns import Turns, json_of
from tests.eventually import until

AGENT = "rule_37"
WELL = "Mitchell Ranch 1H"
FILING = f"Prepare the Rule 37 filing for {WELL}"
PACKAGE = "rule37_filing_assembly"
TAKE_NEXT_PLACE = """
INSERT INTO messages (id, tenant_id, conversation_id, turn_id, seq, role, content)
SELECT $1, c.tenant_id, c.id, t.id, c.message_seq + 1, 'tool', '' FROM conversations c JOIN turns t
ON t.conversation_id = c.id WHERE c.id = $2
"""


async def execute(turns: Turns, text: str) -> dict[str, Any]:
    """The turn that this text starts, at its end or its pause."""
    asked = {"agent": AGENT, "message": text}
    found: dict[str, Any] = await json_of(turns.requester.post("/v1/execute", json=asked, timeout=130))
    return found


async def waiting(turns: Turns) -> tuple[dict[str, Any], dict[str, Any]]:
    """A filing that waits at its checkpoint, and what its reviewer is shown."""
    turn = await execute(turns, FILING)
    assert turn["status"] == "awaiting_approval", turn
    (approval_id,) = turn["waiting_for"]["ids"]
    shown = await json_of(turns.reviewer.get(f"/v1/approvals/{approval_id}"))
    assert (shown["checkpoint"], shown["tool"]) == ("pre_filing", PACKAGE)
    assert shown["result"]["result"]["form"] == "W-1"
    return turn, shown


async def events_and_roles(turns: Turns, turn: dict[str, Any]) -> tuple[Counter[str], list[str]]:
    """How often each kind of event of a call came, and the roles of the transcript."""
    events = [each.kind for each in await turns.events(turn["turn_id"]) if each.call_id]
    return Counter(events), [message["role"] for message in await turns.messages(turn)]


@asynccontextmanager
async def records(stack: RunningStack) -> AsyncIterator[asyncpg.Connection]:
    """A transaction of the tenant, as the program's role; nothing of it stays."""
    connection = await asyncpg.connect(stack.read()["postgres"], server_settings={"search_path": "perdure"})
    try:
        await connection.execute("BEGIN")
        await connection.execute("SELECT set_config('perdure.tenant', 'local', true)")
        yield connection
    finally:
        await connection.close()


async def states(connection: asyncpg.Connection, turn: dict[str, Any]) -> list[tuple[str, str]]:
    """The turn's calls in the ledger: tool and state, in the order in which they were planned."""
    calls = "SELECT tool, state FROM tool_calls WHERE turn_id = $1 ORDER BY created_at"
    return [tuple(row) for row in await connection.fetch(calls, turn["turn_id"])]


async def test_a_pending_filing_outlives_all_workers_and_is_made_once(stack: RunningStack) -> None:
    async with Turns(stack, AGENT) as turns:
        turn, shown = await waiting(turns)
        stack.wait_restarted(stack.kill(*WORKERS))
        assert (await turns.read(turn["turn_id"]))["status"] == "awaiting_approval"
        await turns.decide(shown, "approve")
        assert WELL in (await turns.completed(turn["turn_id"]))["answer"]
        events, roles = await events_and_roles(turns, turn)
        assert (events["tool.executing"], events["tool.result"]) == (1, 1)
        assert roles == ["user", "assistant", "assistant", "tool", "assistant"]
    async with records(stack) as connection:
        assert await states(connection, turn) == [(PACKAGE, "done")]


@pytest.mark.timeout(240)
async def test_an_edited_call_outlives_its_worker_and_is_settled_once(stack: RunningStack) -> None:
    async with Turns(stack, AGENT) as turns:
        turn, shown = await waiting(turns)
        worker = stack.read()["pids"]["worker-turns"]
        os.kill(worker, signal.SIGSTOP)
        await turns.decide(shown, "edit", args={"well_name": "Dry Fork 2"})
        async with records(stack) as connection:
            # The place of its result is taken: from here on the call can be begun, but not settled.
            await connection.execute(TAKE_NEXT_PLACE, new_id(), turn["conversation_id"])
            os.kill(worker, signal.SIGCONT)

            async def begun() -> bool:
                return await states(connection, turn) == [(PACKAGE, "done"), (PACKAGE, "reserved")]

            await until(begun, 75)
            killed = stack.kill(*WORKERS)
        stack.wait_restarted(killed)
        assert "Dry Fork 2" in (await turns.completed(turn["turn_id"]))["answer"]
        events, roles = await events_and_roles(turns, turn)
        assert (events["tool.executing"], events["tool.result"]) == (3, 2), "the edited call was begun twice"
        assert roles == ["user", "assistant", "assistant", "tool", "assistant", "tool", "assistant"]
    async with records(stack) as connection:
        assert await states(connection, turn) == [(PACKAGE, "done"), (PACKAGE, "done")]
