"""Spans as runs of LangSmith, by its own client. Imported only where this tracer is chosen."""

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from langsmith import Client

from perdure.core.events.traces import Span
from perdure.telemetry.http_session import TraceSession
from perdure.telemetry.traces import Attributes

TIMEOUT_MS = 5_000
RUN_TYPES = {"chat": "llm", "execute_tool": "tool"}


@dataclass(slots=True)
class Begun:
    """A span under way."""

    span: Span
    events: list[dict[str, Any]] = field(default_factory=list)


class LangSmithTracer:
    """Ended spans in one request a turn; inputs and outputs are empty, always."""

    def __init__(self, client: Client, project: str = "perdure") -> None:
        self._client = client
        self._project = project
        self._ended: list[dict[str, Any]] = []
        self._orders: dict[str, str] = {}

    @classmethod
    def to(cls, endpoint: str, api_key: str | None) -> "LangSmithTracer":
        """To LangSmith, or to whoever speaks its protocol at `endpoint`."""
        client = Client(
            api_url=endpoint or None,
            api_key=api_key,
            auto_batch_tracing=False,
            timeout_ms=TIMEOUT_MS,
            omit_traced_runtime_info=True,
            tracing_sampling_rate=1.0,
            info={},
            session=TraceSession(),
        )
        return cls(client)

    def is_enabled(self) -> bool:
        """Yes."""
        return True

    def start_span(self, span: Span) -> Begun:
        """Kept until it ends."""
        return Begun(span)

    def record_event(self, begun: object, name: str, at: datetime, attributes: Attributes) -> None:
        """Kept with its span."""
        if isinstance(begun, Begun):
            begun.events.append({"name": name, "time": at.isoformat(), "kwargs": dict(attributes)})

    def end_span(self, begun: object, at: datetime, error: str) -> None:
        """Kept until the flush. LangSmith wants a run's place as the times and ids of all above it."""
        if not isinstance(begun, Begun):
            return
        span = begun.span
        run_id = _uuid(span.trace_id, span.id)
        own = f"{span.began:%Y%m%dT%H%M%S%f}Z{run_id}"
        above = self._orders.get(span.parent_id, "")
        order = self._orders[span.id] = f"{above}.{own}" if above else own
        run: dict[str, Any] = {
            "id": run_id,
            "trace_id": uuid.UUID(order.split(".")[0].partition("Z")[2]),
            "dotted_order": order,
            "parent_run_id": _uuid(span.trace_id, span.parent_id) if above else None,
            "name": span.name,
            "run_type": RUN_TYPES.get(str(span.attributes.get("gen_ai.operation.name")), "chain"),
            "start_time": span.began,
            "end_time": at,
            "inputs": {},
            "outputs": {},
            "error": error or None,
            "events": begun.events,
            "extra": {"metadata": dict(span.attributes)},
            "session_name": self._project,
        }
        self._ended.append(run)

    def flush(self) -> None:
        """What was to be sent is given up where it cannot be."""
        ended, self._ended, self._orders = self._ended, [], {}
        if ended:
            self._client.batch_ingest_runs(create=ended)


def _uuid(trace_id: str, span_id: str) -> uuid.UUID:
    """A run's id, made from the span's: the same whoever asks."""
    return uuid.uuid5(uuid.UUID(trace_id), span_id)
