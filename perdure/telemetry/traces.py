"""Traces turns after they have ended: a bounded queue, one reader, one separate thread.

The code that ends a turn only queues its address. The reader reads the record later, and its spans are filtered. A
daemon thread passes them to the tracer. A slow tracer fills the queue; further traces are then dropped and counted.

This code never raises into a turn. Nothing waits for a tracer, not even an exiting process.
"""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

import structlog
from prometheus_client import Counter
from pydantic import JsonValue

from perdure.contracts.events import Alarm, AlarmType, Severity
from perdure.contracts.turns import TurnAddress
from perdure.core.events.traces import (
    Span,
    SpanEvent,
    TopologyEdges,
    TurnRecord,
    alarms_of,
    filter_attributes,
    spans_of,
)
from perdure.store.database import Database
from perdure.store.events.event_log import record_of

Attributes = Mapping[str, JsonValue]
MAX_KEPT_ALARMS = 1_000
ALARMS = Counter("perdure_alarms", "Broken invariants that were detected", ["type", "severity"])
MAX_WAITING = 1_000
"""The maximum number of turns whose record is not read yet, and of turns whose spans are not sent yet."""
SLOW_SECONDS = 10.0
"""A tracer that takes longer for one turn's spans counts as hanging."""
TRACES = Counter("perdure_traces", "Turns by the state of their traces", ["outcome"])


class Tracer(Protocol):
    """A receiver of spans. Ids come with the span; a tracer creates none. A tracer can raise, hang or return nothing;
    `TurnTraces` and `send` handle that."""

    def is_enabled(self) -> bool:
        """Returns whether the tracer sends spans anywhere."""
        ...

    def start_span(self, span: Span) -> object:
        """Starts a span. The result is passed to `record_event` and `end_span`."""
        ...

    def record_event(self, begun: object, name: str, at: datetime, attributes: Attributes) -> None:
        """Adds an event to a span."""
        ...

    def end_span(self, begun: object, at: datetime, error: str) -> None:
        """Ends a span. `error` is a code, or empty."""
        ...

    def flush(self) -> None:
        """Sends the spans that ended since the last flush."""
        ...


class NoopTracer:
    """A tracer that sends nothing."""

    def is_enabled(self) -> bool:
        """Returns False."""
        return False

    def start_span(self, span: Span) -> object:
        """Does nothing."""
        return None

    def record_event(self, begun: object, name: str, at: datetime, attributes: Attributes) -> None:
        """Does nothing."""

    def end_span(self, begun: object, at: datetime, error: str) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""


class AlarmLog:
    """The alarms of one process. Alarms are counted and logged, and the latest ones are kept. This never raises and
    never waits."""

    def __init__(self) -> None:
        self.recent: deque[Alarm] = deque(maxlen=MAX_KEPT_ALARMS)
        self._logged: set[tuple[AlarmType, str]] = set()

    def add(self, alarm: Alarm) -> None:
        """Counts an alarm. Logs only the first of its type and node, so that a thousand of them make one line."""
        self.recent.append(alarm)
        ALARMS.labels(type=alarm.type.value, severity=alarm.severity.value).inc()
        key = (alarm.type, alarm.node)
        if key not in self._logged and len(self._logged) < MAX_KEPT_ALARMS:
            self._logged.add(key)
            _log.warning("invariant_alarm", type=alarm.type.value, node=alarm.node, trace_id=alarm.trace_id)


_log = structlog.get_logger(__name__)


class TurnTraces:
    """The traces of the turns that end in this process."""

    def __init__(
        self,
        db: Database,
        tracer: Tracer,
        edges: Mapping[str, TopologyEdges],
        log: AlarmLog,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._db = db
        self._tracer = tracer
        self._edges = edges
        self._log = log
        self._ended: asyncio.Queue[TurnAddress] = asyncio.Queue(max_waiting)
        self._spans: queue.Queue[Sequence[Span]] = queue.Queue(max_waiting)
        self._busy_since: float | None = None
        self._hung = False
        self._reader: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Starts the reader and the thread, if the tracer is enabled."""
        if _is_enabled(self._tracer) and self._reader is None:
            threading.Thread(target=self._send_all, name="traces", daemon=True).start()
            self._reader = asyncio.create_task(self._read_all())

    async def close(self) -> None:
        """Stops the reader. Traces that are not sent yet are dropped."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    def ended(self, address: TurnAddress) -> None:
        """Queues the trace of an ended turn, or drops it if the queue is full."""
        if self._reader is None:
            return
        try:
            self._ended.put_nowait(address)
        except asyncio.QueueFull:
            self._count_dropped()

    async def settled(self) -> None:
        """Waits until every queued turn is passed to the tracer or dropped. For tests only: it must not delay turns."""
        await self._ended.join()

    def _count_dropped(self) -> None:
        TRACES.labels(outcome="dropped").inc()
        self._check_tracer()

    def _check_tracer(self) -> None:
        since = self._busy_since
        if since is not None and not self._hung and time.monotonic() - since > SLOW_SECONDS:
            self._hung = True
            description = "the tracer is blocked by one turn; traces are dropped until it continues"
            self._log.add(Alarm(type=AlarmType.TRACE_FAILURE_BLOCKING_EXECUTION, description=description))

    async def _read_all(self) -> None:
        while True:
            address = await self._ended.get()
            try:
                await self._read(address)
            except Exception as error:  # This turn has no trace; the reader continues with the next.
                TRACES.labels(outcome="unread").inc()
                _log.warning("trace_not_read", turn_id=address.turn_id, error=type(error).__name__)
            finally:
                self._ended.task_done()

    async def _read(self, address: TurnAddress) -> None:
        async with self._db.transaction(address.tenant_id) as tx:
            record = await record_of(tx, address)
        if record is None:
            return
        self._check_tracer()
        spans = filtered_spans(record, self._edges.get(record.topology), self._log)
        try:
            self._spans.put_nowait(spans)
        except queue.Full:
            self._count_dropped()

    def _send_all(self) -> None:
        """Runs in the thread, the only place that calls the tracer."""
        while True:
            spans = self._spans.get()
            self._busy_since = time.monotonic()
            try:
                send(self._tracer, spans)
                TRACES.labels(outcome="sent").inc()
            except Exception as error:  # Silent and not fatal: the turn has long ended.
                TRACES.labels(outcome="failed").inc()
                _log.warning("trace_not_sent", error=type(error).__name__)
            self._busy_since, self._hung = None, False


def filtered_spans(record: TurnRecord, edges: TopologyEdges | None, log: AlarmLog) -> tuple[Span, ...]:
    """Returns the filtered spans. Broken invariants raise alarms and do not stop the spans."""
    for event_record in record.happened:
        if event_record.kind == "invariant.alarm":
            _repeat_alarm(event_record.data, record, log)
    nodes = [str(event.data.get("node", "")) for event in record.happened if event.kind == "node_end"]
    for alarm in alarms_of(nodes, edges, record.trace_id) if edges and nodes else ():
        log.add(alarm)
    return tuple(_filtered(span, log) for span in spans_of(record, edges.unspanned if edges else frozenset()))


def send(tracer: Tracer, spans: Sequence[Span]) -> None:
    """Sends all spans of a turn to the tracer, each with its own times."""
    for span in spans:
        started = tracer.start_span(span)
        for event in span.events:
            tracer.record_event(started, event.name, event.at, event.attributes)
        tracer.end_span(started, span.ended, span.error)
    tracer.flush()


def _filtered(span: Span, log: AlarmLog) -> Span:
    attributes, removed = filter_attributes(span.attributes)
    events = []
    for event in span.events:
        kept_attributes, removed_words = filter_attributes(event.attributes)
        events.append(SpanEvent(event.name, event.at, kept_attributes))
        removed += removed_words
    for word in dict.fromkeys(removed):
        description = "an attribute of a span had a forbidden name and was removed"
        context = {"span": span.name.partition(" ")[0], "word": word}
        log.add(
            Alarm(
                type=AlarmType.FORBIDDEN_DATA_IN_TRACE,
                node=span.name.partition(" ")[0],
                description=description,
                severity=Severity.WARN,
                context={**context},
                trace_id=span.trace_id,
            )
        )
    return replace(span, attributes=attributes, events=tuple(events))


def _repeat_alarm(data: Mapping[str, object], record: TurnRecord, log: AlarmLog) -> None:
    """Repeats an alarm that the graph recorded in the turn's log."""
    try:
        log.add(Alarm.model_validate({**data, "description": "see the log of the turn", "trace_id": record.trace_id}))
    except ValueError:
        _log.warning("alarm_not_read", turn_id=record.turn_id)


def _is_enabled(tracer: Tracer) -> bool:
    try:
        return bool(tracer.is_enabled())
    except Exception:  # A tracer that fails here counts as disabled.
        return False
