"""Turns whose tools are code blocks, on the real server: whatever a block does, the turn goes on."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from temporalio.client import Client

from perdure.contracts.turns import TurnStatus
from tests.desk import Desk
from tests.doubles.spoken import Line
from tests.served import ALL_KINDS, Served, serve
from tests.workshop import MAKER, NotedSandbox


@pytest.fixture(scope="module")
async def at_work(workbench: Desk, temporal: Client) -> AsyncIterator[Served]:
    """The workbench with workers for every queue."""
    async with AsyncExitStack() as stack:
        yield Served(workbench, temporal, await serve(stack, workbench, ALL_KINDS))


async def results(served: Served, turn_id: str) -> list[dict[str, object]]:
    """The tool messages of a turn, in order."""
    rows = await served.desk.rows(
        "SELECT content FROM messages WHERE turn_id = $1 AND role = 'tool' ORDER BY call_id", turn_id
    )
    return [json.loads(row["content"]) for row in rows]


async def test_good_hostile_and_endless_blocks_of_one_round_each_have_their_answer(
    at_work: Served, noted: NotedSandbox
) -> None:
    address = await at_work.begin(
        Line(
            calls=[
                ("area", {"width": 2, "height": 3, "unit": "cm"}),
                ("turn_wheel", {"rounds": 10**9}),
                ("pry", {"names": ["PATH", "/etc/passwd"]}),
                ("area", {"width": 0, "height": 3}),
            ]
        ),
        Line("that was all"),
        agent_id=MAKER,
    )
    row = await at_work.until(address, TurnStatus.COMPLETED, TurnStatus.FAILED)
    assert row["status"] == "completed"
    said = await results(at_work, address.turn_id)
    assert [each["status"] for each in said] == ["ok", "error", "ok", "error"]
    assert said[0]["result"] == {"square_millimetres": 600}
    assert said[2]["result"] == {"seen": ["nothing", "nothing", "None", "None"]} or "root:" not in json.dumps(said[2])
    assert await at_work.states(address) == {"t1.0": "done", "t1.1": "failed", "t1.2": "done", "t1.3": "failed"}
    assert {*noted.tenants} == {"local"}
    assert (await at_work.transcript(address))[-1] == ("assistant", "that was all")
    assert any("square_millimetres" in str(message) for message in at_work.sent_to_model(address)[-1])
