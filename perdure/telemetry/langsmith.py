"""A tracer that sends spans as LangSmith runs, with LangSmith's client. Imported only if this tracer is configured."""

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
class StartedSpan:
    """A span that has not ended yet."""

    span: Span
    events: list[dict[str, Any]] = field(default_factory=list)


class LangSmithTracer:
    """Sends ended spans in one request per turn. Inputs and outputs are always empty."""

    def __init__(self, client: Client, project: str = "perdure") -> None:
        self._client = client
        self._project = project
        self._ended: list[dict[str, Any]] = []
        self._orders: dict[str, str] = {}

    @classmethod
    def to(cls, endpoint: str, api_key: str | None) -> "LangSmithTracer":
        """Creates a tracer for LangSmith, or for a server with the same protocol at `endpoint`."""
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
        """Returns True."""
        return True

    def start_span(self, span: Span) -> StartedSpan:
        """Returns a record of the span, which is kept until the span ends."""
        return StartedSpan(span)

    def record_event(self, begun: object, name: str, at: datetime, attributes: Attributes) -> None:
        """Keeps the event with its span."""
        if isinstance(begun, StartedSpan):
            begun.events.append({"name": name, "time": at.isoformat(), "kwargs": dict(attributes)})

    def end_span(self, begun: object, at: datetime, error: str) -> None:
        """Keeps the span until the flush. LangSmith needs the start times and ids of all runs above it."""
        if not isinstance(begun, StartedSpan):
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
        """Sends the kept spans. If that fails, they are dropped."""
        ended, self._ended, self._orders = self._ended, [], {}
        if ended:
            self._client.batch_ingest_runs(create=ended)


def _uuid(trace_id: str, span_id: str) -> uuid.UUID:
    """Returns the id of a run, derived from the span's, so that it is always the same."""
    return uuid.uuid5(uuid.UUID(trace_id), span_id)
