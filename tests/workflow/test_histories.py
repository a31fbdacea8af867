"""What a turn costs in Temporal: events and bytes of its histories, and nothing held for a turn that waits."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from socket import socket

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import JsonValue
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from perdure.contracts.turns import TurnStatus
from perdure.local import DataParts
from perdure.temporal.client import runtime
from perdure.temporal.workflow_client import Doorbell
from tests.desk import Desk, own_queues, until
from tests.doubles.spoken import Line
from tests.eventually import eventually
from tests.replay.recording import run_of
from tests.served import ALL_KINDS, DONE, PAY, Served, serve

KIB = 1_024
LOOKS: list[tuple[str, dict[str, JsonValue]]] = [("look", {"what": "a"}), ("look", {"what": "b"})]
MODEL, TOOL = "model.complete", "tools.run"


def size(history: WorkflowHistory) -> int:
    """Bytes of the history as the server keeps it."""
    return sum(len(event.SerializeToString()) for event in history.events)


async def ended_runs(served: Served, *lines: Line) -> tuple[str, list[WorkflowHistory]]:
    """A turn's answer, and the histories of its runs from the first event to the last."""
    address, row = await served.ended(*lines)
    await served.handle(address).result()
    return row["answer"], await served.runs(address)


def apart(history: WorkflowHistory) -> int:
    """How many workflow tasks came between the ends of a run's tool calls: 0 or 1 where a round has two."""
    scheduled = {event.event_id: event.activity_task_scheduled_event_attributes for event in history.events}
    types = [event.event_type for event in history.events]
    done = [event.activity_task_completed_event_attributes.scheduled_event_id for event in history.events]
    ends = [place for place, each in enumerate(done) if each and scheduled[each].activity_type.name == TOOL]
    return types[ends[0] : ends[-1]].count(EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)


async def test_a_plain_turn_takes_fourteen_events_at_most_and_the_reference_turn_twenty_eight(served: Served) -> None:
    _, (history,) = await ended_runs(served, Line("hello"))
    assert run_of(history).called == ("memory.load", MODEL, "turns.finish")
    assert len(history.events) <= 14 and size(history) <= 16 * KIB
    answer, (history,) = await ended_runs(served, Line("looking", LOOKS), Line("a and b"))
    assert answer == "a and b"
    assert run_of(history).called == ("memory.load", MODEL, TOOL, TOOL, MODEL, "turns.finish")
    assert apart(history) in (0, 1)
    assert len(history.events) <= 28 + 3 * apart(history), "tools that end apart take a task, three events, more"
    assert size(history) < 64 * KIB


async def test_a_paused_turn_has_at_most_six_events_in_its_current_run_and_resumed_does_not_load_again(
    served: Served,
) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    wait = await served.history(address)
    assert len(wait.events) <= 6 and size(wait) <= 16 * KIB
    await served.decide(address)
    assert await served.handle(address).result() == "completed"
    assert [run_of(history).called for history in await served.runs(address)] == [
        ("memory.load", MODEL, "approvals.open"),
        (),
        ("approvals.read", TOOL, MODEL, "turns.finish"),
    ]


async def test_a_turn_of_twenty_rounds_with_long_answers_stays_small(served: Served) -> None:
    long = "word " * 3_000
    rounds = [Line(long, [("look", {"what": long}), ("look", {"what": long})]) for _ in range(19)]
    answer, (history,) = await ended_runs(served, *rounds, Line("done at last"))
    assert answer == "done at last"
    assert size(history) <= 256 * KIB
    given = [event.activity_task_scheduled_event_attributes.input.payloads for event in history.events]
    assert max(len(payload.data) for payloads in given for payload in payloads) <= 16 * KIB
    assert len(history.events) < 500


class Measured:
    """Turns whose workers report the SDK's own metrics."""

    def __init__(self, served: Served, metrics: str) -> None:
        self.served = served
        self._metrics = metrics

    async def cached(self) -> Counter[str]:
        """How many runs the workers hold in their caches, by task queue; queues that hold none are left out."""
        async with httpx.AsyncClient() as http:
            text = (await http.get(self._metrics)).raise_for_status().text
        held: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "temporal_sticky_cache_size":
                    held[sample.labels["task_queue"]] += int(sample.value)
        return +held


@pytest.fixture
async def measured(desk: Desk, parts: DataParts, temporal: Client) -> AsyncIterator[Measured]:
    """Workers on queues of their own, with a runtime that serves its metrics."""
    assert parts.temporal is not None
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where, named = parts.temporal.address, parts.temporal.namespace
    converter, reporting = temporal.data_converter, runtime(("127.0.0.1", port))
    client = await Client.connect(where, namespace=named, data_converter=converter, runtime=reporting)
    at = replace(desk, deps=replace(desk.deps, doorbell=Doorbell(client, desk.db)), routing=own_queues())
    async with AsyncExitStack() as stack:
        workers = await serve(stack, at, ALL_KINDS)
        yield Measured(Served(at, client, workers), f"http://127.0.0.1:{port}/metrics")


async def test_paused_turns_hold_nothing_in_a_workers_cache(measured: Measured) -> None:
    served, world = measured.served, measured.served.desk.world
    world.go_on.clear()
    under_way = await served.begin(Line("looking", [("look", {"mode": "wait"})]), DONE)
    await until(lambda: world.running > 0)
    paused = [await served.paused(Line("asking", [PAY]), DONE) for _ in range(8)]

    async def only_that() -> bool:  # a run is dropped a moment after its task is completed
        return await measured.cached() == {served.desk.routing.turns: 1}

    await eventually(only_that)
    world.go_on.set()
    await served.until(under_way, TurnStatus.COMPLETED)
    for address in paused:
        await served.decide(address)
        await served.until(address, TurnStatus.COMPLETED)
