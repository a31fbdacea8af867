"""Calls as bars on one line of time."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from perdure.pages.diagrams import WIDTH, Bar, Span, bars

START = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = some.integers(0, 10_000_000)


def span(began: float, ended: float) -> Span:
    """From so many seconds to so many."""
    return Span(START + timedelta(seconds=began), START + timedelta(seconds=ended))


def drawn(*spans: Span | None) -> list[tuple[int, int] | None]:
    """Where each begins and how long it is, in whole units of the picture."""
    return [(round(bar.x), round(bar.width)) if bar else None for bar in bars(spans)]


@pytest.mark.parametrize(
    ("spans", "where"),
    [
        ([], []),
        ([None], [None]),
        ([span(0, 10)], [(0, 238)]),
        ([span(0, 5), span(5, 10)], [(0, 119), (119, 119)]),
        ([span(0, 10), span(2.5, 7.5)], [(0, 238), (60, 119)]),
        ([span(3, 3)], [(0, 2)]),
        ([span(9, 3), None, span(9, 10)], [(0, 2), None, (0, 238)]),
        # A pause of two days between two calls of ten seconds takes a twentieth of them.
        ([span(0, 10), span(172_810, 172_820)], [(0, 113), (125, 113)]),
    ],
)
def test_what_runs_is_to_scale_and_what_waits_is_short(
    spans: list[Span | None], where: list[tuple[int, int] | None]
) -> None:
    assert drawn(*spans) == where


@given(some.lists(some.one_of(some.none(), some.tuples(MOMENT, MOMENT)), max_size=12))
def test_every_bar_is_on_the_line_and_in_the_order_of_time(ends: list[tuple[int, int] | None]) -> None:
    spans = [span(pair[0] / 1000, pair[1] / 1000) if pair else None for pair in ends]
    found = bars(spans)
    assert [bar is None for bar in found] == [each is None for each in spans]
    placed: list[tuple[Span, Bar]] = [(s, b) for s, b in zip(spans, found, strict=True) if s and b]
    for one, bar in placed:
        assert bar.x >= 0 and bar.x + bar.width <= WIDTH + 1e-6 and bar.width >= 2
        for other, its in placed:
            if one.began < other.began:
                assert bar.x <= its.x + 1e-6
            if max(one.began, one.ended) <= other.began:
                assert bar.x + bar.width <= its.x + 2 + 1e-6
