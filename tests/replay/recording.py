"""Recordings as files: every run of a turn in Temporal's own JSON, one event a line, without traces of a machine."""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory

HISTORIES = Path(__file__).parent / "histories"
STARTED = "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED"
SCHEDULED = "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED"
CONTINUED = "EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW"
COMPLETED = "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"

Call = tuple[str, Any]
"""A command of a run by name, and the values that it passed."""


@dataclass(frozen=True, slots=True)
class Run:
    workflow_id: str
    events: list[dict[str, Any]]
    inside: tuple[Call, ...] = ()
    """Calls made inside a workflow task: a history contains their results and not their arguments."""

    @property
    def history(self) -> WorkflowHistory:
        return WorkflowHistory.from_json(self.workflow_id, {"events": self.events})

    @property
    def workflow(self) -> str:
        return str(self._of(STARTED)[0]["workflowType"]["name"])

    @property
    def scheduled(self) -> tuple[Call, ...]:
        """The activities that it scheduled, in order, each with its input."""
        return tuple((each["activityType"]["name"], values(each["input"])) for each in self._of(SCHEDULED))

    @property
    def end(self) -> Call:
        """Its end: the workflow as which it continues and its input, or its result."""
        for each in self._of(CONTINUED):
            return f"continue as {each['workflowType']['name']}", values(each["input"])
        return "result", values(self._of(COMPLETED)[0]["result"])

    @property
    def called(self) -> tuple[str, ...]:
        """The names of all its activities, in the order in which they were scheduled or, inside a task, ended."""
        names = []
        for event in self.events:
            given = attributes(event)
            if event["eventType"] == SCHEDULED:
                names.append(given["activityType"]["name"])
            if event["eventType"] == "EVENT_TYPE_MARKER_RECORDED":
                names.append(values(given["details"]["data"])[0]["activity_type"])
        return tuple(names)

    def _of(self, event_type: str) -> list[dict[str, Any]]:
        return [attributes(event) for event in self.events if event["eventType"] == event_type]


def attributes(event: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next((each for name, each in event.items() if name.endswith("EventAttributes")), {})
    return found


def values(payloads: dict[str, Any]) -> list[Any]:
    return [json.loads(base64.b64decode(each["data"])) for each in payloads.get("payloads", [])]


def run_of(history: WorkflowHistory) -> Run:
    """A fetched history, without fields that name its machine."""
    events = json.loads(history.to_json())["events"]
    for event in events:
        scrub(event)
    return Run(history.workflow_id, events)


def scrub(given: Any) -> None:
    """Take out, in place, who did it and where: identities and builds of workers, sticky queues, stack traces."""
    if isinstance(given, list):
        for each in given:
            scrub(each)
    if not isinstance(given, dict):
        return
    if "identity" in given:
        given["identity"] = "worker"
    if "stackTrace" in given:
        given["stackTrace"] = ""
    given.pop("workerVersion", None)
    if given.get("kind") == "TASK_QUEUE_KIND_STICKY":
        given["name"] = "sticky"
    for each in given.values():
        scrub(each)


def path_of(name: str) -> Path:
    return HISTORIES / f"{name}.json"


def write(name: str, runs: Sequence[Run]) -> None:
    path_of(name).write_text("[\n" + ",\n".join(map(_text, runs)) + "\n]\n", encoding="utf-8")


def _text(run: Run) -> str:
    return (
        f'{{"workflow_id": {json.dumps(run.workflow_id)},\n"inside": {json.dumps(run.inside)},\n"events": [\n'
        + ",\n".join(json.dumps(event) for event in run.events)
        + "\n]}"
    )


def read(path: Path) -> tuple[Run, ...]:
    runs: Iterable[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return tuple(
        Run(each["workflow_id"], each["events"], tuple((name, given) for name, given in each["inside"]))
        for each in runs
    )
