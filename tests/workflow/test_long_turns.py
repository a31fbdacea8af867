"""A turn of many calls: its runs are renewed, its pauses carry references only, and the model is told of every call."""

from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from perdure.activities.providers.calls import MAX_CALLS_SENT
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.turns import Limits, TurnStatus
from perdure.workflows.ports import RUN_EVENTS
from tests.doubles.desk_variants import CALM, agent_of, as_desk, changed_agent, gatherer, published
from tests.doubles.message_script import Line
from tests.served_turns import DONE, PAUSED, PAY, Served

CALLS = 64
LOOKS = [("look", {"what": f"\N{PARTY POPPER}{number}"}) for number in range(CALLS)]
KIB = 1_024
pytestmark = pytest.mark.usefixtures("without_cache")
SKILLED = Line("I plan. SKILL_SELECT:plan")
LOADING = Line("", [("load_toolset", {"toolset": "counter", "include_write_tools": True, "why": "x" * 50_000})])
LIMITS = Limits(max_tokens=10**9, max_cost_microusd=10**9, max_iterations=10_000)


def carried_bytes(run: WorkflowHistory) -> int:
    """The size of what the run started with."""
    return len(run.events[0].workflow_execution_started_event_attributes.input.SerializeToString())


def argument_bytes(runs: list[WorkflowHistory]) -> int:
    """The largest arguments of a model call."""
    scheduled = [event.activity_task_scheduled_event_attributes for run in runs for event in run.events]
    return max(len(each.input.SerializeToString()) for each in scheduled if each.activity_type.name == "model.complete")


@dataclass(frozen=True, slots=True)
class Loop:
    """A topology in which a model and its tools alternate."""

    desk: PublishedAgent
    first: tuple[Line, ...] = ()
    """What the model says before the rounds."""
    calls: int = 0
    """The calls in these lines that stay in the conversation."""
    messages: int = 0
    """The messages of these lines that do."""


LOOPS = {
    "skill_pipeline": Loop(as_desk(limits=LIMITS)),
    "its synthesis": Loop(as_desk(limits=LIMITS), (SKILLED,), messages=1),
    "tool_loop": Loop(changed_agent(agent_of("looper"), id="desk", limits=LIMITS), (LOADING,), calls=1, messages=2),
    "context_assembly": Loop(gatherer(limits=LIMITS), CALM),
}


@pytest.mark.parametrize(("loop", "rounds", "run_events"), [
    *((loop, 2, 100) for loop in LOOPS.values()),
    pytest.param(LOOPS["skill_pipeline"], 100, RUN_EVENTS, marks=pytest.mark.soak),
], ids=[*LOOPS, "full"])  # fmt: skip
async def test_a_long_turn_pauses_and_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch, loop: Loop, rounds: int, run_events: int
) -> None:
    monkeypatch.setattr("perdure.workflows.ports.RUN_EVENTS", run_events)
    async with published(served.harness, loop.desk):
        address = await served.begin(*loop.first, *[Line("", LOOKS)] * rounds, Line("asking", [PAY]), DONE)
        await served.until(address, PAUSED, seconds=60.0 * rounds)
        await served.decide(address, f"t{len(loop.first) + rounds + 1}.0")
        assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "well"
    told = served.sent_to_model(address)[-1]
    answers = [message["tool_call_id"] for message in told if message["role"] == "tool"]
    calls = [call["id"] for message in told for call in message.get("tool_calls") or ()]
    loaded = [message for message in told if '"status":"loaded"' in (message["content"] or "")]
    assert len(loaded) == loop.calls
    assert answers == calls and len(calls) == rounds * CALLS + 1 + loop.calls
    assert len(await served.transcript(address)) == rounds * (CALLS + 1) + 3 + loop.messages
    runs = await served.runs(address)
    carried, lengths = [carried_bytes(run) for run in runs], [len(run.events) for run in runs]
    print(
        f"{len(calls)} calls, at most {max(carried):,} bytes carried and {argument_bytes(runs):,} of arguments, "
        f"in {len(lengths)} runs of at most {max(lengths):,} events"
    )
    assert len(runs) > rounds * CALLS * 3 // run_events and max(lengths) < 2 * run_events + 400
    assert max(carried) < 32 * KIB and argument_bytes(runs) < 16 * KIB


@pytest.mark.parametrize(
    ("agent_id", "call"), [("desk", PAY), ("checked", ("book", {"what": "a chair"}))], ids=["gates", "checkpoint"]
)
async def test_a_pause_carries_little_after_an_answer_with_the_most_calls(
    served: Served, agent_id: str, call: tuple[str, dict[str, Any]]
) -> None:
    address = await served.begin(Line("asking", [call] * MAX_CALLS_SENT), DONE, agent_id=agent_id)
    await served.until(address, PAUSED, seconds=120.0)
    await served.waits(address)
    carried = [carried_bytes(run) for run in await served.runs(address)]
    assert max(carried) < 256 * KIB, carried
    await served.stop(address)
    await served.until(address, TurnStatus.STOPPED)
