"""A tracer that does as it is told: passes on, raises, hangs, answers nothing."""

import threading
from datetime import datetime

from perdure.core.events.traces import Span
from perdure.telemetry.traces import Attributes, NoopTracer, Tracer

HANGS_SECONDS = 30.0


class FaultyTracer:
    """`behavior` is `on`, `off`, `raising`, `hanging` or `none`."""

    def __init__(self) -> None:
        self.behavior = "on"
        self.behind: Tracer = NoopTracer()
        self.spans: list[Span] = []
        self.go_on = threading.Event()
        self.entered = threading.Event()

    def is_enabled(self) -> bool:
        return True

    def start_span(self, span: Span) -> object:
        self.entered.set()
        self._raise_if_told()
        if self.behavior == "hanging":
            self.go_on.wait(HANGS_SECONDS)
        if self.behavior == "on":
            self.spans.append(span)
            return self.behind.start_span(span)
        return None

    def record_event(self, begun: object, name: str, at: datetime, attributes: Attributes) -> None:
        self._raise_if_told()
        self.behind.record_event(begun, name, at, attributes)

    def end_span(self, begun: object, at: datetime, error: str) -> None:
        self._raise_if_told()
        self.behind.end_span(begun, at, error)

    def _raise_if_told(self) -> None:
        if self.behavior == "raising":
            raise RuntimeError("the tracer is broken")

    def flush(self) -> None:
        self.behind.flush()
