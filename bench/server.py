"""Data of Temporal's server about a stack: requests to its frontend, and the history of a turn."""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

import httpx
from temporalio.client import Client

from bench.reference import MODEL_ACTIVITIES
from perdure.contracts.ids import turn_workflow_id

PAGE_SECONDS: Final = 1.5
"""The server updates its page once a second."""
_LINE: Final = re.compile(r"^service_requests\{(?P<labels>[^}]*)\} (?P<count>[0-9.e+]+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_NOT_A_TURNS_OWN: Final = frozenset(
    {
        "DescribeNamespace",
        "DescribeWorkflowExecution",
        "GetSystemInfo",
        "GetWorkflowExecutionHistory",
        "RecordActivityTaskHeartbeat",
        "RecordWorkerHeartbeat",
    }
)
"""Heartbeats are excluded, because they depend on time and not on steps. The other operations are this benchmark's own
or a client's."""


class Frontend:
    """The server's own count of requests, from its Prometheus page."""

    def __init__(self, metrics_url: str, namespace: str) -> None:
        self._url = metrics_url
        self._namespace = namespace

    async def requests(self) -> Counter[str]:
        """Returns the requests so far by operation, for this namespace; waits until the page is up to date."""
        await asyncio.sleep(PAGE_SECONDS)
        async with httpx.AsyncClient() as http:
            page = (await http.get(self._url)).raise_for_status().text
        counts: Counter[str] = Counter()
        for line in _LINE.finditer(page):
            labels = dict(_LABEL.findall(line["labels"]))
            operation = labels.get("operation", "")
            if labels.get("service_name") != "frontend" or labels.get("namespace") != self._namespace:
                continue
            if operation not in _NOT_A_TURNS_OWN:
                counts[operation] += int(float(line["count"]))
        return counts


@dataclass(frozen=True, slots=True)
class History:
    """The history of one turn."""

    events: int
    size_bytes: int
    model_input_bytes: tuple[int, ...]
    """Values of each model call's activity, in order."""


async def history_of(client: Client, turn_id: str) -> History:
    """Returns the stored history of this turn's single run."""
    handle = client.get_workflow_handle(turn_workflow_id(turn_id))
    await handle.result()
    info = (await handle.describe()).raw_description.workflow_execution_info
    inputs = []
    async for event in handle.fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes  # empty in other events
        if scheduled.activity_type.name in MODEL_ACTIVITIES:
            inputs.append(sum(len(payload.data) for payload in scheduled.input.payloads))
    return History(info.history_length, info.history_size_bytes, tuple(inputs))
