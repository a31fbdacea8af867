"""A turn of many calls: its runs are renewed, its pauses carry references only, and the model is told of every call."""

import pytest
from temporalio.client import WorkflowHistory

from perdure.contracts.turns import TurnStatus
from perdure.workflows.ports import RUN_EVENTS
from tests.doubles.spoken import Line
from tests.served import DONE, PAUSED, PAY, Served

CALLS = 64
LOOKS = [("look", {"what": f"\N{PARTY POPPER}{number}"}) for number in range(CALLS)]
KIB = 1_024
pytestmark = pytest.mark.usefixtures("without_cache")


def carried_bytes(run: WorkflowHistory) -> int:
    """The size of what the run started with."""
    return len(run.events[0].workflow_execution_started_event_attributes.input.SerializeToString())


def argument_bytes(runs: list[WorkflowHistory]) -> int:
    """The largest arguments of a model call."""
    scheduled = [event.activity_task_scheduled_event_attributes for run in runs for event in run.events]
    return max(len(each.input.SerializeToString()) for each in scheduled if each.activity_type.name == "model.complete")


@pytest.mark.parametrize(
    ("rounds", "run_events"), [(4, 200), pytest.param(100, RUN_EVENTS, marks=pytest.mark.soak)], ids=["short", "full"]
)
async def test_a_long_turn_pauses_and_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch, rounds: int, run_events: int
) -> None:
    monkeypatch.setattr("perdure.workflows.ports.RUN_EVENTS", run_events)
    address = await served.begin(*[Line("", LOOKS)] * rounds, Line("asking", [PAY]), DONE, agent_id="tireless")
    await served.until(address, PAUSED, seconds=60.0 * rounds)
    await served.decide(address, f"t{rounds + 1}.0")
    assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "well"
    told = served.sent_to_model(address)[-1]
    answers = [message["tool_call_id"] for message in told if message["role"] == "tool"]
    calls = [call["id"] for message in told for call in message.get("tool_calls") or ()]
    assert answers == calls and len(calls) == rounds * CALLS + 1
    assert len(await served.transcript(address)) == rounds * (CALLS + 1) + 3
    runs = await served.runs(address)
    carried, lengths = [carried_bytes(run) for run in runs], [len(run.events) for run in runs]
    print(
        f"{len(calls)} calls, at most {max(carried):,} bytes carried and {argument_bytes(runs):,} of arguments, "
        f"histories of {lengths} events"
    )
    assert len(runs) > rounds * CALLS * 3 // run_events and max(lengths) < 2 * run_events + 400
    assert max(carried) < 32 * KIB and argument_bytes(runs) < 16 * KIB


async def test_a_pause_of_a_full_round_carries_little(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY] * CALLS), DONE)
    carried = [carried_bytes(run) for run in await served.runs(address)]
    assert max(carried) < 128 * KIB, carried
    await served.stop(address)
    await served.until(address, TurnStatus.STOPPED)
