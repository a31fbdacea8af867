"""From the end of a turn to its trace, beside the turns: a bounded queue, one reader, one thread of its own.

Who ends a turn hands over its address and goes on. The record is read when there is time; its spans are filtered, and a
daemon thread gives them to the tracer. A tracer that is slow fills the queue, and what comes then is dropped and
counted. Nothing here raises into a turn, and nothing waits for a tracer, not even the end of the process (S3-33).
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
from perdure.core.events.traces import Span, SpanEvent, TurnRecord, Ways, alarms_of, filtered, spans_of
from perdure.store.database import Database
from perdure.store.events.event_log import record_of

# --- The port of a tracer, and the one that does nothing (S3-32).
# A tracer may raise, hang or answer nothing: `TurnTraces` and `send` below are prepared for that.

Attributes = Mapping[str, JsonValue]


class Tracer(Protocol):
    """Where spans go. Ids come with the span: a tracer makes none."""

    def is_enabled(self) -> bool:
        """Whether there is anybody to tell."""
        ...

    def start_span(self, span: Span) -> object:
        """A span begins; what is answered is handed back with its events and its end."""
        ...

    def record_event(self, begun: object, name: str, at: datetime, attributes: Attributes) -> None:
        """Something happened in a span."""
        ...

    def end_span(self, begun: object, at: datetime, error: str) -> None:
        """It is over; `error` is a code, or empty."""
        ...

    def flush(self) -> None:
        """Send what was ended since the last time."""
        ...


class NoTracer:
    """Tells nobody."""

    def is_enabled(self) -> bool:
        """No."""
        return False

    def start_span(self, span: Span) -> object:
        """Nothing."""
        return None

    def record_event(self, begun: object, name: str, at: datetime, attributes: Attributes) -> None:
        """Nothing."""

    def end_span(self, begun: object, at: datetime, error: str) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""


# --- Where alarms are heard: counted, logged, the last of them kept.
# It never raises and never waits (S3-39).

KEPT = 1_000
ALARMS = Counter("perdure_alarms", "Invariants that were found broken", ["type", "severity"])


class AlarmBell:
    """The alarms of one process."""

    def __init__(self) -> None:
        self.recent: deque[Alarm] = deque(maxlen=KEPT)
        self._logged: set[tuple[AlarmType, str]] = set()

    def ring(self, alarm: Alarm) -> None:
        """Count it; log the first of its type and node, so that a thousand of them are one line."""
        self.recent.append(alarm)
        ALARMS.labels(type=alarm.type.value, severity=alarm.severity.value).inc()
        key = (alarm.type, alarm.node)
        if key not in self._logged and len(self._logged) < KEPT:
            self._logged.add(key)
            _log.warning("invariant_alarm", type=alarm.type.value, node=alarm.node, trace_id=alarm.trace_id)


MOST_WAITING = 1_000
"""Turns whose record is not read yet; and as many whose spans are not sent yet."""
SLOW_SECONDS = 10.0
"""A tracer that holds one turn's spans for longer hangs, as far as anybody can tell."""
TRACES = Counter("perdure_traces", "Turns by what became of their traces", ["outcome"])
_log = structlog.get_logger(__name__)


class TurnTraces:
    """The traces of the turns that end in this process."""

    def __init__(
        self, db: Database, tracer: Tracer, ways: Mapping[str, Ways], bell: AlarmBell, most: int = MOST_WAITING
    ) -> None:
        self._db = db
        self._tracer = tracer
        self._ways = ways
        self._bell = bell
        self._ended: asyncio.Queue[TurnAddress] = asyncio.Queue(most)
        self._spans: queue.Queue[Sequence[Span]] = queue.Queue(most)
        self._busy_since: float | None = None
        self._hung = False
        self._reader: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin, where there is a tracer to tell."""
        if _is_enabled(self._tracer) and self._reader is None:
            threading.Thread(target=self._send_all, name="traces", daemon=True).start()
            self._reader = asyncio.create_task(self._read_all())

    async def close(self) -> None:
        """What has not been sent by now is given up."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    def ended(self, address: TurnAddress) -> None:
        """A turn is over; its trace is made later, or dropped where too many wait."""
        if self._reader is None:
            return
        try:
            self._ended.put_nowait(address)
        except asyncio.QueueFull:
            self._dropped()

    async def settled(self) -> None:
        """Back when every turn that was handed over is with the tracer, or dropped; for tests and for nothing else that
        has a turn to run."""
        await self._ended.join()

    def _dropped(self) -> None:
        TRACES.labels(outcome="dropped").inc()
        self._look_at_tracer()

    def _look_at_tracer(self) -> None:
        since = self._busy_since
        if since is not None and not self._hung and time.monotonic() - since > SLOW_SECONDS:
            self._hung = True
            told = "a tracer has held the spans of one turn for longer than it may; traces are dropped meanwhile"
            self._bell.ring(Alarm(type=AlarmType.TRACE_FAILURE_BLOCKING_EXECUTION, description=told))

    async def _read_all(self) -> None:
        while True:
            address = await self._ended.get()
            try:
                await self._read(address)
            except Exception as error:  # no trace of this turn, and the next is tried
                TRACES.labels(outcome="unread").inc()
                _log.warning("trace_not_read", turn_id=address.turn_id, error=type(error).__name__)
            finally:
                self._ended.task_done()

    async def _read(self, address: TurnAddress) -> None:
        async with self._db.transaction(address.tenant_id) as tx:
            record = await record_of(tx, address)
        if record is None:
            return
        self._look_at_tracer()
        spans = traced(record, self._ways.get(record.topology), self._bell)
        try:
            self._spans.put_nowait(spans)
        except queue.Full:
            self._dropped()

    def _send_all(self) -> None:
        """The thread: whatever the tracer does, it does it here."""
        while True:
            spans = self._spans.get()
            self._busy_since = time.monotonic()
            try:
                send(self._tracer, spans)
                TRACES.labels(outcome="sent").inc()
            except Exception as error:  # silent and not fatal: the turn has long been over
                TRACES.labels(outcome="failed").inc()
                _log.warning("trace_not_sent", error=type(error).__name__)
            self._busy_since, self._hung = None, False


def traced(record: TurnRecord, ways: Ways | None, bell: AlarmBell) -> tuple[Span, ...]:
    """The spans that may leave. What is found wrong on the way is rung and does not stop them."""
    for happened in record.happened:
        if happened.kind == "invariant.alarm":
            _ring_again(happened.data, record, bell)
    nodes = [str(each.data.get("node", "")) for each in record.happened if each.kind == "node_end"]
    for alarm in alarms_of(nodes, ways, record.trace_id) if ways and nodes else ():
        bell.ring(alarm)
    return tuple(_clean(span, bell) for span in spans_of(record, ways.unspanned if ways else frozenset()))


def send(tracer: Tracer, spans: Sequence[Span]) -> None:
    """All of a turn's spans through the port, each begun and ended at its own times."""
    for span in spans:
        begun = tracer.start_span(span)
        for event in span.events:
            tracer.record_event(begun, event.name, event.at, event.attributes)
        tracer.end_span(begun, span.ended, span.error)
    tracer.flush()


def _clean(span: Span, bell: AlarmBell) -> Span:
    attributes, removed = filtered(span.attributes)
    events = []
    for event in span.events:
        kept, more = filtered(event.attributes)
        events.append(SpanEvent(event.name, event.at, kept))
        removed += more
    for word in dict.fromkeys(removed):
        told = "an attribute of a span had a denied name, and was left out"
        context = {"span": span.name.partition(" ")[0], "word": word}
        bell.ring(
            Alarm(
                type=AlarmType.FORBIDDEN_DATA_IN_TRACE,
                node=span.name.partition(" ")[0],
                description=told,
                severity=Severity.WARN,
                context={**context},
                trace_id=span.trace_id,
            )
        )
    return replace(span, attributes=attributes, events=tuple(events))


def _ring_again(data: Mapping[str, object], record: TurnRecord, bell: AlarmBell) -> None:
    """What the graph told of in the turn's log."""
    try:
        bell.ring(Alarm.model_validate({**data, "description": "see the turn's log", "trace_id": record.trace_id}))
    except ValueError:
        _log.warning("alarm_not_read", turn_id=record.turn_id)


def _is_enabled(tracer: Tracer) -> bool:
    try:
        return bool(tracer.is_enabled())
    except Exception:  # a tracer that cannot even say so is none
        return False
