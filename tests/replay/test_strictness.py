"""The replay is strict: a recording that differs from today's code in a command or a value is refused."""

import base64
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner

import perdure.workflows.ports
from tests.replay.recording import CONTINUED, SCHEDULED, STARTED, Run, attributes, path_of, read
from tests.replay.replaying import Replaying

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def replaying() -> Replaying:
    """Today's workflows, without the sandbox, which imports our packages again for each run: 2 s of CPU (measured)."""
    return Replaying(UnsandboxedWorkflowRunner())


def changed(run: Run, event_type: str, number: int, change: Change) -> Run:
    events = deepcopy(run.events)
    change(attributes([event for event in events if event["eventType"] == event_type][number]))
    return replace(run, events=events)


def rewrite(payloads: dict[str, Any], change: Change) -> None:
    payload = payloads["payloads"][0]
    value = json.loads(base64.b64decode(payload["data"]))
    change(value)
    payload["data"] = base64.b64encode(json.dumps(value).encode()).decode()


def given(change: Change) -> Change:
    return lambda found: rewrite(found["input"], change)


def another_iteration(turn: dict[str, Any]) -> None:
    turn["carried"]["state"]["iteration"] += 1


def setting(**fields: Any) -> Change:
    return lambda call: call.update(fields)


VALUES = [
    ("tool_loop", 0, SCHEDULED, 0, setting(call_id="m7"), "model.complete", "at [0].call_id recorded 'm7', now 'm1'"),
    ("tool_loop", 0, SCHEDULED, 1, setting(events=[]), "tools.run", "at [0].events"),
    ("gate_approved", 0, SCHEDULED, 1, setting(was_here=True), "approvals.open", "recorded True, now '(absent)'"),
    ("gate_approved", 0, CONTINUED, 0, another_iteration, "continue as TurnWait", "carried.state.iteration"),
    ("gate_approved", 1, CONTINUED, 0, another_iteration, "continue as TurnRun", "carried.state.iteration"),
]


@pytest.mark.parametrize(("name", "number", "event_type", "place", "change", "where", "what"), VALUES)
async def test_a_recording_with_another_value_is_refused_with_its_place(
    replaying: Replaying, name: str, number: int, event_type: str, place: int, change: Change, where: str, what: str
) -> None:
    run = read(path_of(name))[number]
    fault = await replaying.fault(name, number, changed(run, event_type, place, given(change)))
    assert fault is not None and (fault.kind, fault.name) == ("values", where)
    assert what in fault.difference


async def test_a_recording_with_another_command_is_refused(replaying: Replaying) -> None:
    run = changed(read(path_of("tool_loop"))[0], SCHEDULED, 0, setting(activityType={"name": "tools.run"}))
    fault = await replaying.fault("tool_loop", 1, run)
    assert fault is not None and fault.kind == "commands"


async def test_a_workflow_that_starts_differently_is_refused(replaying: Replaying) -> None:
    """A turn that has a stop in its mailbox finishes at once."""
    run = read(path_of("gate_approved"))[2]

    def stopped(turn: dict[str, Any]) -> None:
        turn["carried"]["stop"] = True

    assert await replaying.fault("gate_approved", 3, changed(run, STARTED, 0, given(stopped))) is not None


async def test_a_call_inside_a_task_that_is_missing_or_differs_is_refused(replaying: Replaying) -> None:
    run = read(path_of("plain_answer"))[0]
    fault = await replaying.fault("plain_answer", 1, replace(run, inside=(*run.inside, ("turns.finish", [{}]))))
    assert fault is not None and fault.kind == "calls"


async def test_code_that_passes_on_more_than_it_did_is_refused(
    replaying: Replaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands are the same, so Temporal's own replay has nothing against it."""
    monkeypatch.setattr(perdure.workflows.ports, "_by_id", lambda message: message)
    run = read(path_of("tool_loop"))[0]
    _, failure = await replaying.heard(run)
    assert failure is None
    fault = await replaying.fault("tool_loop", 1, run)
    assert fault is not None and (fault.kind, fault.name) == ("values", "model.complete")
