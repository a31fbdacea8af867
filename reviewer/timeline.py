"""Calls as bars on one line of time. What runs is drawn to scale; time in which nothing runs is drawn short, or the
two days that an approval waited would leave no room for the calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from markupsafe import Markup

WIDTH = 240.0
_IDLE_SHARE = 0.05
"""Of the time in which something runs: the longest that a time without any is drawn."""
_LEAST = 2.0
"""A call of no length is seen, too."""
_BAR = Markup(
    '<svg class="bar {}" width="{:.0f}" height="12" aria-hidden="true">'
    '<rect x="{:.1f}" width="{:.1f}" height="12" rx="2"/></svg>'
)


@dataclass(frozen=True, slots=True)
class Span:
    """When something ran."""

    began: datetime
    ended: datetime


@dataclass(frozen=True, slots=True)
class Bar:
    """Its place on the line."""

    x: float
    width: float

    def drawn(self, kind: str) -> Markup:
        """As a picture; `kind` is a class of ours."""
        return _BAR.format(kind, WIDTH, self.x, self.width)


def bars(spans: Sequence[Span | None]) -> list[Bar | None]:
    """A bar for each span, None for none; one that ends before it began has no length."""
    known = [span for span in spans if span is not None]
    places = _places(known)
    longest = max(places.values(), default=0.0)
    scale = (WIDTH - _LEAST) / longest if longest else 0.0
    return [_bar(places, scale, span) if span is not None else None for span in spans]


def _places(spans: Sequence[Span]) -> dict[datetime, float]:
    """Every moment at which something begins or ends, and how far along the line it is."""
    moments = sorted({moment for span in spans for moment in (span.began, _end(span))})
    lengths = [((later - earlier).total_seconds(), _runs(spans, earlier)) for earlier, later in pairwise(moments)]
    most_idle = _IDLE_SHARE * sum(length for length, runs in lengths if runs)
    places, at = dict.fromkeys(moments[:1], 0.0), 0.0
    for moment, (length, runs) in zip(moments[1:], lengths, strict=True):
        at += length if runs else min(length, most_idle)
        places[moment] = at
    return places


def _bar(places: dict[datetime, float], scale: float, span: Span) -> Bar:
    began, ended = places[span.began] * scale, places[_end(span)] * scale
    return Bar(began, max(ended - began, _LEAST))


def _end(span: Span) -> datetime:
    return max(span.began, span.ended)


def _runs(spans: Sequence[Span], at: datetime) -> bool:
    return any(span.began <= at < _end(span) for span in spans)
