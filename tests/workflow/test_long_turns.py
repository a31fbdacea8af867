"""A turn of many calls: its runs are renewed, its pauses carry references only, and the model is told of every call."""

import pytest
from temporalio.client import WorkflowHistory

from perdure.contracts.turns import TurnStatus
from tests.doubles.spoken import Line
from tests.served import DONE, PAY, Served

ROUNDS, CALLS = 4, 64
LOOKS = [("look", {"what": f"\N{PARTY POPPER}{number}"}) for number in range(CALLS)]
KIB = 1_024
pytestmark = pytest.mark.usefixtures("without_cache")


def carried_bytes(run: WorkflowHistory) -> int:
    """The size of what the run started with."""
    return len(run.events[0].workflow_execution_started_event_attributes.input.SerializeToString())


async def test_a_long_turn_pauses_and_goes_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.workflows.ports.RUN_EVENTS", 200)
    address = await served.paused(*[Line("", LOOKS)] * ROUNDS, Line("asking", [PAY]), DONE)
    await served.decide(address, f"t{ROUNDS + 1}.0")
    assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "well"
    told = served.sent_to_model(address)[-1]
    answers = [message["tool_call_id"] for message in told if message["role"] == "tool"]
    calls = [call["id"] for message in told for call in message.get("tool_calls") or ()]
    assert answers == calls and len(calls) == ROUNDS * CALLS + 1
    assert len(await served.transcript(address)) == 2 * ROUNDS + ROUNDS * (CALLS - 1) + 3
    runs = await served.runs(address)
    carried = [carried_bytes(run) for run in runs]
    assert len(runs) > ROUNDS and max(carried) < 32 * KIB, carried


async def test_a_pause_of_a_full_round_carries_little(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY] * CALLS), DONE)
    carried = [carried_bytes(run) for run in await served.runs(address)]
    assert max(carried) < 128 * KIB, carried
    await served.stop(address)
    await served.until(address, TurnStatus.STOPPED)
