"""A tracer that sends spans to an OpenTelemetry collector by OTLP over HTTP. Imported only if this tracer is
configured."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from pydantic import JsonValue

from perdure.core.events.traces import Span
from perdure.telemetry.http_session import TraceSession
from perdure.telemetry.traces import Attributes

TIMEOUT_SECONDS = 5.0
"""The maximum time of one export, including the exporter's retries."""
Plain = str | bool | int | float | list[str]


class ExportFailed(Exception):
    """The collector did not accept the spans."""


@dataclass(slots=True)
class StartedSpan:
    """A span that has not ended yet."""

    span: Span
    events: list[Event] = field(default_factory=list)


class OtelTracer:
    """Sends ended spans in one export per turn."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._resource = Resource.create({"service.name": "perdure"})
        self._scope = InstrumentationScope("perdure")
        self._ended: list[ReadableSpan] = []

    @classmethod
    def to(cls, endpoint: str, headers: Mapping[str, str] | None = None) -> "OtelTracer":
        """Creates a tracer for the collector at `endpoint`, a full address. If empty, OpenTelemetry's environment
        applies."""
        session = TraceSession()
        return cls(
            OTLPSpanExporter(endpoint=endpoint or None, headers=headers, timeout=TIMEOUT_SECONDS, session=session)
        )

    def is_enabled(self) -> bool:
        """Returns True."""
        return True

    def start_span(self, span: Span) -> StartedSpan:
        """Returns a record of the span, which is kept until the span ends."""
        return StartedSpan(span)

    def record_event(self, begun: object, name: str, at: datetime, attributes: Attributes) -> None:
        """Keeps the event with its span."""
        if isinstance(begun, StartedSpan):
            begun.events.append(Event(name, plain(attributes), _nanoseconds(at)))

    def end_span(self, begun: object, at: datetime, error: str) -> None:
        """Keeps the span until the flush."""
        if not isinstance(begun, StartedSpan):
            return
        span = begun.span
        attributes = plain(span.attributes) | ({"error.type": error} if error else {})
        self._ended.append(
            ReadableSpan(
                name=span.name,
                context=_context(span.trace_id, span.id),
                parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
                resource=self._resource,
                attributes=attributes,
                events=begun.events,
                kind=SpanKind.CLIENT if attributes.get("gen_ai.operation.name") == "chat" else SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR, error) if error else Status(StatusCode.OK),
                start_time=_nanoseconds(span.began),
                end_time=_nanoseconds(at),
                instrumentation_scope=self._scope,
            )
        )

    def flush(self) -> None:
        """Sends the kept spans.

        Raises: ExportFailed; the spans are then dropped.
        """
        ended, self._ended = self._ended, []
        if ended and self._exporter.export(ended) is not SpanExportResult.SUCCESS:
            raise ExportFailed


def plain(attributes: Attributes) -> dict[str, Plain]:
    """Returns attributes as OpenTelemetry supports them: nested values are written as JSON."""
    return {key: _plain(value) for key, value in attributes.items() if value is not None}


def _plain(value: JsonValue) -> Plain:
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return [str(each) for each in value]
    return json.dumps(value, sort_keys=True)


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1_000
