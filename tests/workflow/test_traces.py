"""Traces of real turns: what a collector is sent, and that no turn is any different for it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from perdure.contracts.turns import TurnAddress
from perdure.graph.registry import TOPOLOGIES
from perdure.telemetry.traces import AlarmLog, TurnTraces
from perdure.worker.telemetry import edges_of, tracer_of
from tests.doubles.collector import Collector, attributes_of, collecting
from tests.doubles.desk_variants import KEEPER, keeper
from tests.doubles.faulty_tracer import FaultyTracer
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.eventually import until
from tests.harness import Harness, publish_app
from tests.served_turns import Served

CANARY = "xylophone"
"""In every text of these turns; in no trace."""
TURNS: dict[str, tuple[tuple[Line, ...], str]] = {
    "a tool": ((Line(f"I look {CANARY}", [("look", {"what": CANARY})]), Line(f"seen {CANARY}")), "desk"),
    "a skill": ((Line("SKILL_SELECT:plan"), Line(f"planned {CANARY}")), "desk"),
    "a failure": ((Line(f"never {CANARY}", fails=9),), KEEPER),
    "a hub": ((Line(f"I am {CANARY}"),), KEEPER),
    "a loop": ((Line("", [("look", {"what": CANARY})]), Line(f"well {CANARY}")), "looper"),
}
SAMPLE = ("a tool", "a failure")


@dataclass(slots=True)
class Traced:
    """A collector, the tracer in front of it, and the traces of this module's workers."""

    collector: Collector
    tracer: FaultyTracer
    traces: TurnTraces
    bell: AlarmLog


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
async def traced(harness: Harness, collector: Collector) -> Traced:
    traces = harness.deps.traces
    assert traces is not None
    tracer = traces._tracer
    assert isinstance(tracer, FaultyTracer)
    return Traced(collector, tracer, traces, traces._log)


@pytest.fixture(scope="module")
async def harness(harness: Harness, collector: Collector) -> AsyncIterator[Harness]:
    tracer = FaultyTracer()
    tracer.behind = tracer_of("otel", f"{collector.url}/v1/traces", None)
    assert tracer.behind.is_enabled()
    ways = {one.name: edges_of(one) for one in TOPOLOGIES}
    traces = TurnTraces(harness.db, tracer, ways, AlarmLog(), max_waiting=4)
    traces.open()
    await publish_app(harness.owner_url, [*app_agents()[0], ("desk", keeper())])
    yield replace(harness, deps=replace(harness.deps, traces=traces))
    began = time.monotonic()
    tracer.go_on.set()
    await traces.close()
    assert time.monotonic() - began < 15, "the end of a process waits for no tracer"


@pytest.fixture(autouse=True)
def healthy_tracer(traced: Traced) -> Iterator[None]:
    yield
    traced.tracer.behavior, traced.collector.hanging, traced.collector.status = "on", False, 200
    traced.tracer.go_on.set()
    traced.collector.go_on.set()


async def spans_for(traced: Traced, address: TurnAddress) -> list[Any]:
    def turn_spans() -> list[Any]:
        spans = traced.collector.spans()
        return [each for each in spans if attributes_of(each).get("perdure.trace_id") == address.turn_id]

    await until(lambda: bool(turn_spans()), seconds=20)
    return turn_spans()


async def course(served: Served, turn: str) -> tuple[Any, ...]:
    """What a turn comes to: status, answer, and every event but for ids and times."""
    lines, agent_id = TURNS[turn]
    address, row = await served.run_to_end(*lines, agent_id=agent_id)
    events = "SELECT kind, call_id, data->>'node', data->'data'->>'status' FROM events WHERE turn_id = $1 ORDER BY seq"
    asked = "SELECT call_id, epoch, errors FROM model_calls WHERE turn_id = $1 ORDER BY call_id"
    rows, calls = [await served.harness.rows(sql, address.turn_id) for sql in (events, asked)]
    told = tuple(tuple(each) for each in (*rows, *calls))
    return row["status"], row["answer"], (row["problem"] or {}).get("code"), told


async def test_a_collector_gets_the_spans_of_a_turn_and_none_of_its_text(served: Served, traced: Traced) -> None:
    address, _ = await served.run_to_end(*TURNS["a tool"][0])
    spans = {span.name: span for span in await spans_for(traced, address)}
    told = {name: attributes_of(span) for name, span in spans.items()}
    chat = next(name for name in spans if name.startswith("chat "))
    assert {"invoke_agent desk", "execute_tool look", "node tool_node", "prompt.assemble"} <= set(spans)
    assert spans["execute_tool look"].parent_span_id == spans["node tool_node"].span_id
    assert spans["node tool_node"].parent_span_id == spans["invoke_agent desk"].span_id
    assert spans["agent.resolve_definition"].parent_span_id == spans["tools.assemble"].parent_span_id
    assert len({span.trace_id for span in spans.values()}) == 1
    assert told["invoke_agent desk"]["gen_ai.operation.name"] == "invoke_agent"
    assert told["invoke_agent desk"]["perdure.status"] == "completed"
    assert told[chat]["gen_ai.operation.name"] == "chat" and told[chat]["gen_ai.usage.output_tokens"] > 0
    assert told["execute_tool look"]["gen_ai.tool.name"] == "look"
    assert told["tools.assemble"]["total_tools_visible"] > 0 and told["prompt.assemble"]["token_estimate"] > 0
    for attributes in told.values():
        assert attributes["gen_ai.conversation.id"] == address.conversation_id
        assert attributes["user.id"] == served.harness.people["requester"].user_id
    assert [event.name for event in spans[chat].events] == ["model_call_attempted", "model_call_completed"]
    assert not [body for _, body in traced.collector.bodies if CANARY.encode() in body]
    assert not traced.bell.recent


@pytest.mark.parametrize(
    "turn", [pytest.param(each, marks=() if each in SAMPLE else pytest.mark.soak) for each in TURNS]
)
async def test_no_tracer_changes_a_turn(served: Served, traced: Traced, turn: str) -> None:
    courses = {}
    for mood in ("on", "off", "raising", "none"):
        traced.tracer.behavior = mood
        courses[mood] = json.dumps(await course(served, turn))
        await traced.traces.settled()
    assert len(set(courses.values())) == 1


@pytest.mark.timed
async def test_no_turn_waits_for_a_tracer_that_hangs_for_thirty_seconds(served: Served, traced: Traced) -> None:
    quiet = await course(served, "a tool")
    traced.tracer.behavior = "hanging"
    traced.tracer.go_on.clear()
    traced.tracer.entered.clear()
    began = time.monotonic()
    assert await course(served, "a tool") == quiet
    await asyncio.to_thread(traced.tracer.entered.wait, 20)
    for _ in range(6):  # more than wait for a tracer: what comes after is dropped, and the turns go on
        assert await course(served, "a tool") == quiet
    assert time.monotonic() - began < 29, "eight turns ended while one span was held"
    assert not traced.tracer.go_on.is_set()


async def test_no_turn_waits_for_a_collector_that_hangs_or_refuses(served: Served, traced: Traced) -> None:
    quiet = await course(served, "a hub")
    traced.collector.hanging = True
    traced.collector.go_on.clear()
    traced.collector.hung.clear()
    assert await course(served, "a hub") == quiet
    assert await asyncio.to_thread(traced.collector.hung.wait, 20), "the collector holds the first of them"
    for _ in range(3):
        assert await course(served, "a hub") == quiet
    assert not traced.collector.go_on.is_set()
    traced.collector.hanging, traced.collector.status = False, 400
    traced.collector.go_on.set()
    assert await course(served, "a hub") == quiet
    traced.collector.status = 200
    address, _ = await served.run_to_end(Line("again"), agent_id=KEEPER)
    assert await spans_for(traced, address)
