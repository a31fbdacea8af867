"""Compiled topologies run inside a workflow: no threads, no clock, nothing that Temporal's event loop lacks.

A history of our own says that the workflow completed in its first task; replaying it runs the workflow code and
fails if that is not what the code does. No server is needed.
"""

from base64 import b64encode
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from tests.topologies.in_workflow import PARTS, PASSED_THROUGH, RunsARowOfAnother, RunsRows

AT = "2026-01-01T00:00:00Z"


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def completed_in_one_task(workflow: type, part: int) -> WorkflowHistory:
    """The history of a workflow that started with a part of the rows, ran one workflow task and completed."""
    queue = {"name": "turns"}
    started: dict[str, Any] = {
        "workflowType": {"name": workflow.__name__},
        "taskQueue": queue,
        "originalExecutionRunId": "r",
    }
    started["input"] = {"payloads": [{"metadata": {"encoding": base64(b"json/plain")}, "data": base64(b"%d" % part)}]}
    events: tuple[tuple[str, dict[str, Any]], ...] = (
        ("WORKFLOW_EXECUTION_STARTED", started),
        ("WORKFLOW_TASK_SCHEDULED", {"taskQueue": queue}),
        ("WORKFLOW_TASK_STARTED", {"scheduledEventId": "2"}),
        ("WORKFLOW_TASK_COMPLETED", {"scheduledEventId": "2", "startedEventId": "3"}),
        ("WORKFLOW_EXECUTION_COMPLETED", {"workflowTaskCompletedEventId": "4"}),
    )
    told = []
    for number, (kind, attributes) in enumerate(events, start=1):
        first, *rest = kind.lower().split("_")
        field = first + "".join(word.title() for word in rest) + "EventAttributes"
        told.append({"eventId": str(number), "eventTime": AT, "eventType": f"EVENT_TYPE_{kind}", field: attributes})
    return WorkflowHistory.from_json("turn:1", {"events": told})


async def replay(workflow: type, part: int = 0) -> Exception | None:
    """Why the workflow did not do what its history says; None where it did."""
    sandbox = SandboxedWorkflowRunner(SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))
    replayer = Replayer(workflows=[workflow], workflow_runner=sandbox)
    ran = await replayer.replay_workflow(completed_in_one_task(workflow, part), raise_on_replay_failure=False)
    return ran.replay_failure


@pytest.mark.timed  # the SDK gives a workflow two seconds to yield
@pytest.mark.parametrize("part", range(PARTS))
async def test_every_row_runs_as_its_table_says_inside_the_sandbox_of_a_workflow(part: int) -> None:
    assert await replay(RunsRows, part) is None


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_a_row_that_does_not_run_as_its_table_says_fails_the_workflow() -> None:
    assert "AssertionError" in str(await replay(RunsARowOfAnother))
