"""The tracers by name, what LangSmith is sent, and alarms by the thousand."""

import sys
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
import structlog
from pydantic import JsonValue

from perdure.contracts.events import Alarm, AlarmType
from perdure.core.events.traces import Span, TurnLogEvent, TurnRecord
from perdure.graph.registry import TOPOLOGIES
from perdure.telemetry.traces import MAX_KEPT_ALARMS, AlarmLog, filtered_spans, send
from perdure.worker.telemetry import edges_of, tracer_of
from tests.doubles.collector import collecting
from tests.doubles.hostile_target import MEBI, floods, says, threaded

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
CANARY = "xylophone"


def record(*happened: TurnLogEvent) -> TurnRecord:
    return TurnRecord(
        *("local", str(uuid.UUID(int=1)), str(uuid.UUID(int=2)), "u", "desk", "v", "skill_pipeline", "completed"),
        BEGAN,
        BEGAN + timedelta(seconds=9),
        happened=happened,
    )


def spans(*happened: TurnLogEvent, alarms: AlarmLog | None = None) -> tuple[Span, ...]:
    return filtered_spans(record(*happened), None, alarms or AlarmLog())


@pytest.mark.parametrize("name", ["noop", "", "jaeger", "OTEL", "\n"])
def test_an_unknown_tracer_is_refused_by_name(name: str) -> None:
    assert not tracer_of(name, "", None).is_enabled()


@pytest.mark.parametrize(("name", "package"), [("otel", "opentelemetry.sdk.trace"), ("langsmith", "langsmith")])
def test_a_tracer_without_its_package_is_off(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in ("perdure.telemetry.otel", "perdure.telemetry.langsmith"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert not tracer_of(name, "http://127.0.0.1:1", "key").is_enabled()


def test_langsmith_gets_three_kinds_of_runs_without_inputs_or_outputs() -> None:
    log = (
        TurnLogEvent("node_start", BEGAN, None, {"node": "initial_llm_call"}),
        TurnLogEvent("generation.start", BEGAN, "m1", {"model": "scripted", "attempt": 1}),
        TurnLogEvent("generation.complete", BEGAN + timedelta(seconds=1), "m1", {"assembly": {"prompt.assemble": {}}}),
        TurnLogEvent("tool.executing", BEGAN, "t1.0", {"tool": "look"}),
        TurnLogEvent("tool.error", BEGAN + timedelta(seconds=2), "t1.0", {"code": "outcome_unknown"}),
    )
    with collecting() as collector:
        tracer = tracer_of("langsmith", collector.url, "key")
        assert tracer.is_enabled()
        send(tracer, spans(*log))
        found = collector.runs()
    assert found, [path for path, _ in collector.bodies]
    runs: dict[str, dict[str, Any]] = {run["name"]: run for run in found}
    assert {name: run["run_type"] for name, run in runs.items()} == {
        "invoke_agent desk": "chain", "node initial_llm_call": "chain", "chat scripted": "llm",
        "prompt.assemble": "chain", "execute_tool look": "tool",
    }  # fmt: skip
    root = runs["invoke_agent desk"]
    assert root.get("parent_run_id") is None and {run["trace_id"] for run in runs.values()} == {root["id"]}
    assert runs["chat scripted"]["parent_run_id"] == runs["node initial_llm_call"]["id"]
    assert runs["chat scripted"]["dotted_order"].startswith(runs["node initial_llm_call"]["dotted_order"] + ".")
    assert runs["execute_tool look"]["error"] == "outcome_unknown"
    assert all(not run.get("inputs") and not run.get("outputs") for run in runs.values())


def test_denied_attributes_are_left_out_of_spans_and_reported() -> None:
    alarms = AlarmLog()
    said: dict[str, JsonValue] = {"code": "x", "prompt": CANARY, "context": {"final_output": CANARY}}
    assert CANARY not in repr(spans(TurnLogEvent("budget", BEGAN, None, said), alarms=alarms))
    assert {alarm.type for alarm in alarms.recent} == {AlarmType.FORBIDDEN_DATA_IN_TRACE}
    assert {str(alarm.context["word"]) for alarm in alarms.recent} == {"prompt", "output"}


def test_a_thousand_alarms_are_counted_logged_once_and_change_no_span() -> None:
    what: dict[str, JsonValue] = {"type": "forbidden_state_field_mutated", "node": "rogue", "severity": "error"}
    log = [TurnLogEvent("invariant.alarm", BEGAN, None, what | {"context": {"field": "x"}})] * 1_000
    alarms = AlarmLog()
    with structlog.testing.capture_logs() as lines:
        made = spans(*log, alarms=alarms)
    assert len(alarms.recent) == MAX_KEPT_ALARMS == 1_000
    assert [line["event"] for line in lines] == ["invariant_alarm"]
    assert len(made) == 1 and len(made[0].events) == 1_000
    assert replace(made[0], events=()) == replace(spans()[0], events=())
    alarms.add(Alarm(type=AlarmType.UNEXPECTED_ROUTING, node="the last", description="x"))
    assert len(alarms.recent) == MAX_KEPT_ALARMS and alarms.recent[-1].node == "the last"


def test_a_restarted_turn_whose_first_start_was_not_logged_signals_nothing_and_has_that_node() -> None:
    names = ("system_prompt_node", "memory_node")
    log = [TurnLogEvent(kind, BEGAN, None, {"node": name}) for name in names for kind in ("node_start", "node_end")]
    alarms, ways = AlarmLog(), edges_of(next(one for one in TOPOLOGIES if one.name == "skill_pipeline"))
    made = filtered_spans(record(*log, *log[1:]), ways, alarms)
    assert not alarms.recent
    assert [span.name for span in made[1:]] == [f"node {name}" for name in names * 2]
    assert len({span.id for span in made}) == 5 and not any(span.error for span in made)


def test_an_alarm_of_a_later_version_is_no_error() -> None:
    alarms = AlarmLog()
    with structlog.testing.capture_logs() as lines:
        assert len(spans(TurnLogEvent("invariant.alarm", BEGAN, None, {"type": "new"}), alarms=alarms)) == 1
    assert not alarms.recent and [line["event"] for line in lines] == ["alarm_not_read"]


@pytest.mark.parametrize("name", ["otel", "langsmith"])
@pytest.mark.parametrize("status", [200, 307, 400])
def test_only_the_status_of_a_tracers_answer_is_read(name: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with threaded(says()) as elsewhere, threaded(floods(status, b"x" * MEBI, f"location: {elsewhere.url}")) as made:
        monkeypatch.setenv("HTTP_PROXY", elsewhere.url)
        tracer = tracer_of(name, made.url, "key")
        before = psutil.Process().memory_info().rss
        with suppress(Exception):  # a status that is no success is the exporter's own error
            send(tracer, spans())
        assert (psutil.Process().memory_info().rss - before) // MEBI < 100
        assert made.heads and elsewhere.heads == []
