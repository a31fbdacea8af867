"""Every recorded turn, replayed against today's workflows: same commands, same values."""

import base64
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner

from tests.replay.recording import HISTORIES, read
from tests.replay.replaying import Replaying
from tests.replay.sandbox import runner
from tests.replay.shapes import SHAPES

RECORDINGS = sorted(HISTORIES.glob("*.json"))
IN_SANDBOX = (
    *("plain_answer", "tool_loop", "limited", "refused_call", "provider_failed", "rule_abort", "hub", "context"),
    *(
        "client_run", "gate_unreadable", "gate_expired", "gates_decided_apart", "checkpoint_approved",
        "loop_stopped_paused",
    ),
    *("loop_answer", "unknown_outcome_beside_others", "cancelled_running", "stopped_running"),
    *("finish_outside", "load_outside", "stop_read_outside", "forged_stop_then_stopped"),
)  # fmt: skip
"""One of each topology, pause and end: the sandbox imports our packages again for each run, a second or two of CPU."""
IN_EVERY_RUN = ("loop_answer", "hub", "context", "client_run", "checkpoint_approved", "stopped_running")
CASES = [
    *(
        pytest.param(
            "sandboxed",
            HISTORIES / f"{name}.json",
            id=f"sandboxed-{name}",
            marks=() if name in IN_EVERY_RUN else pytest.mark.soak,
        )
        for name in IN_SANDBOX
    ),
    *(pytest.param("unsandboxed", path, id=f"unsandboxed-{path.stem}") for path in RECORDINGS),
]


@pytest.fixture(scope="module")
def runners() -> dict[str, Replaying]:
    return {"sandboxed": Replaying(runner()), "unsandboxed": Replaying(UnsandboxedWorkflowRunner())}


@pytest.mark.parametrize(("where", "path"), CASES)
async def test_the_same_commands_and_values_replay(runners: dict[str, Replaying], where: str, path: Path) -> None:
    replaying, shape = runners[where], path.stem.partition("--")[0]
    faults = [await replaying.fault(shape, number, run) for number, run in enumerate(read(path), 1)]
    assert faults
    assert not any(faults), "\n".join(fault.advice for fault in faults if fault)


@pytest.mark.parametrize("name", ["tool_loop", "loop_answer", "context_rounds", "checkpoint_in_synthesis"])
async def test_a_run_that_passed_a_model_call_before_it_counted_as_long_passes_it_again(
    runners: dict[str, Replaying], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("perdure.workflows.ports.RUN_EVENTS", 1)
    runs = read(HISTORIES / f"{name}.json")
    assert not any([await runners["unsandboxed"].fault(name, number, run) for number, run in enumerate(runs, 1)])


def test_every_shape_has_one_recording_and_every_recording_one_shape() -> None:
    named = [path.stem for path in RECORDINGS]
    assert {name for name in named if "--" not in name} == {*SHAPES}, "python -m tests.replay.record"
    assert {name.partition("--")[0] for name in named} == {*SHAPES}


@pytest.mark.parametrize("name", SHAPES)
def test_a_recording_has_its_shape_from_the_first_run_to_the_last(name: str) -> None:
    runs, shape = read(HISTORIES / f"{name}.json"), SHAPES[name]
    assert [run.called for run in runs] == [*shape.runs], "python -m tests.replay.record " + name
    assert [run.workflow for run in runs] == ["TurnRun", *("TurnWait", "TurnRun") * (len(runs) // 2)]
    for run, following in pairwise(runs):
        assert run.end[0] == f"continue as {following.workflow}"
    assert runs[-1].end == ("result", [shape.status.value])


MACHINE = re.compile(
    r"/(?:home|root|work|tmp|usr|opt|var|private|Users)/|[A-Z]:\\|\.py\b|\d+@\w|localhost|127\.0\.0\.1"
)
"""A path, a source file, a process at a host, an address."""


def texts(given: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string in a JSON value with its key; payloads are decoded."""
    if isinstance(given, dict) and {"metadata", "data"} <= given.keys():
        yield key, base64.b64decode(given["data"]).decode()
    elif isinstance(given, dict):
        for name, each in given.items():
            yield from texts(each, name)
    elif isinstance(given, list | tuple):
        for each in given:
            yield from texts(each, key)
    elif isinstance(given, str):
        yield key, given


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_a_recording_names_nothing_of_its_machine(path: Path) -> None:
    for run in read(path):
        found = [*texts([run.events, run.inside])]
        for key, text in found:
            assert telltale(key, text) is None, f"{telltale(key, text)}: {key} {text[:100]}"
        assert ("identity", "worker") in found


def telltale(key: str, text: str) -> str | None:
    if key == "identity" and text != "worker":
        return "an identity"
    if key == "stackTrace" and text:
        return "a stack trace"
    found = MACHINE.search(text)
    return found.group() if found else None
