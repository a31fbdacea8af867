"""Temporal's data of a turn: events and bytes of its histories, no cache for paused turns, nothing after an erasure.
Also the metrics of a worker."""

import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import AsyncMock

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import JsonValue
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import Kind, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.local import DataParts
from perdure.local.ports import free_port
from perdure.store.database import new_id
from perdure.store.identity.erasure import erase
from perdure.telemetry.metrics import ROLES, metrics_addresses, serve_metrics
from perdure.temporal.client import metrics_runtime
from perdure.temporal.workflow_client import Notifier, delete_histories, is_workflow_missing
from tests.conftest import Person
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import Harness, own_queues
from tests.replay.recording import run_of
from tests.served_turns import ALL_KINDS, DONE, PAY, Served, serve

KIB = 1_024
LOOKS: list[tuple[str, dict[str, JsonValue]]] = [("look", {"what": "a"}), ("look", {"what": "b"})]
MODEL, TOOL = "model.complete", "tools.run"
SAID = "over the budget of zaphod"


def size(history: WorkflowHistory) -> int:
    """Bytes of the history as the server keeps it."""
    return sum(len(event.SerializeToString()) for event in history.events)


async def ended_runs(served: Served, *lines: Line) -> tuple[str, list[WorkflowHistory]]:
    """A turn's answer, and the histories of its runs from the first event to the last."""
    address, row = await served.run_to_end(*lines)
    await served.handle(address).result()
    return row["answer"], await served.runs(address)


def apart(history: WorkflowHistory) -> int:
    """The number of workflow tasks between the ends of a run's tool calls: 0 or 1 in a round of two."""
    scheduled = {event.event_id: event.activity_task_scheduled_event_attributes for event in history.events}
    types = [event.event_type for event in history.events]
    done = [event.activity_task_completed_event_attributes.scheduled_event_id for event in history.events]
    ends = [place for place, each in enumerate(done) if each and scheduled[each].activity_type.name == TOOL]
    return types[ends[0] : ends[-1]].count(EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)


async def test_a_plain_turn_has_at_most_14_events_and_the_reference_turn_28(served: Served) -> None:
    _, (history,) = await ended_runs(served, Line("hello"))
    assert run_of(history).called == ("memory.load", MODEL, "turns.finish")
    assert len(history.events) <= 14 and size(history) <= 16 * KIB
    answer, (history,) = await ended_runs(served, Line("looking", LOOKS), Line("a and b"))
    assert answer == "a and b"
    assert run_of(history).called == ("memory.load", MODEL, TOOL, TOOL, MODEL, "turns.finish")
    assert apart(history) in (0, 1)
    assert len(history.events) <= 28 + 3 * apart(history), "tools that end apart take a task, three events, more"
    assert size(history) < 64 * KIB


async def test_a_paused_turn_has_at_most_six_events_and_reloads_nothing(served: Served) -> None:
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


@dataclass(frozen=True, slots=True)
class MeteredTurns:
    """Turns whose workers report the SDK's own metrics."""

    served: Served
    metrics: str

    async def cached(self) -> Counter[str]:
        """The number of runs in the workers' caches by task queue; queues without any are left out."""
        async with httpx.AsyncClient() as http:
            text = (await http.get(self.metrics)).raise_for_status().text
        held: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "temporal_sticky_cache_size":
                    held[sample.labels["task_queue"]] += int(sample.value)
        return +held


@pytest.fixture
async def metered_turns(harness: Harness, parts: DataParts, temporal: Client) -> AsyncIterator[MeteredTurns]:
    """Workers on queues of their own, with a runtime that serves its metrics."""
    assert parts.temporal is not None
    port = free_port()
    where, named = parts.temporal.address, parts.temporal.namespace
    converter, reporting = temporal.data_converter, metrics_runtime(("127.0.0.1", port))
    client = await Client.connect(where, namespace=named, data_converter=converter, runtime=reporting)
    at = replace(harness, deps=replace(harness.deps, notifier=Notifier(client, harness.db)), routing=own_queues())
    async with AsyncExitStack() as stack:
        workers = await serve(stack, at, ALL_KINDS)
        yield MeteredTurns(Served(at, client, workers), f"http://127.0.0.1:{port}/metrics")


async def test_paused_turns_occupy_no_workers_cache(metered_turns: MeteredTurns) -> None:
    served, world = metered_turns.served, metered_turns.served.harness.world
    world.go_on.clear()
    under_way = await served.begin(Line("looking", [("look", {"mode": "wait"})]), DONE)
    await until(lambda: world.running > 0)
    paused = [await served.paused(Line("asking", [PAY]), DONE) for _ in range(8)]

    async def only_that() -> bool:  # a run is dropped a moment after its task is completed
        return await metered_turns.cached() == {served.harness.routing.turns: 1}

    await until(only_that)
    world.go_on.set()
    await served.until(under_way, TurnStatus.COMPLETED)
    for address in paused:
        await served.decide(address)
        await served.until(address, TurnStatus.COMPLETED)


async def reviewer(served: Served, name: str) -> str:
    user_id = new_id()
    await served.harness.write(
        "INSERT INTO users (id, tenant_id, name, roles) VALUES ($1, 'local', $2, '{reviewer}')", user_id, name
    )
    served.harness.people[name] = Person("local", user_id, name, frozenset({"reviewer"}), "")
    return user_id


async def turn_refused_by(served: Served, by: str) -> TurnAddress:
    """A turn that has ended, in which this person has rejected a call with a reason."""
    address = await served.paused(Line("asking", [("pay", {"amount": 5})]), Line("well"))
    await served.decide(address, decision=Decision.REJECT, comment=SAID, by=by)
    await served.until(address, TurnStatus.COMPLETED)
    await served.handle(address).result()
    return address


async def run_is_deleted(client: Client, address: TurnAddress, run_id: str) -> bool:
    try:
        await client.get_workflow_handle(turn_workflow_id(address.turn_id), run_id=run_id).fetch_history()
    except RPCError as error:
        return is_workflow_missing(error)
    return False


async def test_erasing_a_user_deletes_the_runs_of_their_turns_and_no_others(served: Served) -> None:
    user_id = await reviewer(served, "zaphod")
    await reviewer(served, "trillian")
    theirs, others = await turn_refused_by(served, "zaphod"), await turn_refused_by(served, "trillian")
    before = await served.runs(theirs)
    assert len(before) == 3, "the run, the wait, the run again"
    said = [SAID.encode() in event.SerializeToString() for history in before for event in history.events]
    assert any(said), "there was something to take away"
    admin = served.harness.people["admin"].user_id
    done = await erase(served.harness.db, "local", "zaphod", admin, None, partial(delete_histories, served.client))
    assert done["histories"] == {"runs": 3, "turns_left": 0}
    started = [history.events[0].workflow_execution_started_event_attributes for history in before]
    for each in started:  # the server answers a little before it deletes
        await until(partial(run_is_deleted, served.client, theirs, each.original_execution_run_id))
    assert len(await served.runs(others)) == 3
    data = "SELECT data FROM audit_trail WHERE kind = 'user.erased' AND subject = $1"
    assert (await served.harness.value(data, user_id))["histories"] == {"runs": 3, "turns_left": 0}
    assert await delete_histories(served.client, [theirs.turn_id]) == (0, 0), "asked for again"


async def test_without_temporal_an_erasure_records_what_stays(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await reviewer(served, "marvin")
    await turn_refused_by(served, "marvin")
    unavailable = AsyncMock(side_effect=RPCError("nobody listens", RPCStatusCode.UNAVAILABLE, b""))
    monkeypatch.setattr(served.client.workflow_service, "get_workflow_execution_history", unavailable)
    admin = served.harness.people["admin"].user_id
    done = await erase(served.harness.db, "local", "marvin", admin, None, partial(delete_histories, served.client))
    assert done["histories"] == {"runs": 0, "turns_left": 1}
    assert str(done["name"]).startswith("erased-")


async def read_metrics(port: int) -> str:
    """The metrics of the process there, as Prometheus expects them; nothing without one."""
    with suppress(httpx.TransportError):
        async with httpx.AsyncClient() as client:
            return (await client.get(f"http://127.0.0.1:{port}/metrics")).raise_for_status().text + "\n"
    return ""


def value(text: str, name: str) -> float:
    """A sample by its whole name; 0 where there is none yet."""
    return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)


async def test_a_worker_counts_activities_ends_and_tokens(served: Served) -> None:
    port = free_port()
    serve_metrics(("127.0.0.1", port))
    names = (
        'perdure_activity_seconds_count{activity="model.complete",outcome="done"}',
        'perdure_activity_seconds_count{activity="turns.finish",outcome="done"}',
        'perdure_turns_ended_total{status="completed"}',
    )
    before = await read_metrics(port)
    await served.run_to_end(Line("well"))

    async def counted() -> bool:  # when it has ended, a moment after its writes are visible
        text = await read_metrics(port)
        return all(value(text, name) > value(before, name) for name in names)

    await until(counted)
    after = await read_metrics(port)
    assert [value(after, name) - value(before, name) for name in names] == [1.0, 1.0, 1.0]
    tokens = 'perdure_tokens_total{kind="output"}'
    assert value(after, tokens) > value(before, tokens)


@pytest.mark.parametrize("taken_by", ["ours", "the SDK"])
async def test_a_worker_starts_even_if_its_metrics_port_is_taken(taken_by: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = ("127.0.0.1", int(taken.getsockname()[1]))
        if taken_by == "ours":
            serve_metrics(address)
        else:
            assert metrics_runtime(address) is None


def test_every_role_has_two_ports_of_its_own() -> None:
    assert {kind.value for kind in Kind} | {"relay", "api"} == set(ROLES)
    found = [address for role in ROLES for address in metrics_addresses(9_100, "127.0.0.1", role)]
    assert len(set(found)) == 2 * len(ROLES) and None not in found
    assert metrics_addresses(0, "127.0.0.1", "turns") == (None, None)
