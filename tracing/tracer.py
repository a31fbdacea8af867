"""The port of a tracer, and the one that does nothing (S3-32). A tracer may raise, hang and answer nothing: whoever
calls it is prepared (turn_traces.py)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from pydantic import JsonValue

from policy.spans import Span

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
