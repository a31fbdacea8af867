"""Pictures: the boxes and lines of a graph, the path of a turn over it, and calls as bars on one line of time."""

from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from perdure.pages.diagrams import END, START, TIMELINE_WIDTH, Bar, Box, Layout, Span, draw_bars, layout_of, turn_path

NAMES = [f"node_{'long_' * (number % 4)}{number}" for number in range(9)]
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = some.integers(0, 10_000_000)


def covers(box: Box, x: float, y: float) -> bool:
    """Whether a point is inside a box, and not on its edge."""
    return abs(x - box.x) < box.width / 2 - 0.01 and box.y + 0.01 < y < box.y + box.height - 0.01


def check(layout: Layout) -> None:
    for one, other in combinations(layout.boxes, 2):
        beside = abs(one.x - other.x) >= (one.width + other.width) / 2
        apart = one.y + one.height <= other.y or other.y + other.height <= one.y
        assert beside or apart, (one, other)
    boxes = {box.name: box for box in layout.boxes}
    for box in layout.boxes:
        assert box.x - box.width / 2 >= 0 and box.x + box.width / 2 <= layout.width
        assert box.y >= 0 and box.y + box.height <= layout.height
        assert "".join(box.lines) == box.name
    for (source, target), points in layout.routes.items():
        for name, (x, y) in ((source, points[0]), (target, points[-1])):
            box = boxes[name]
            assert abs(x - box.x) < box.width / 2 and y in (box.y, box.y + box.height)
        falls = [b[1] - a[1] for a, b in pairwise(points)]
        assert all(fall > 0 for fall in falls) or all(fall < 0 for fall in falls)
        for x, y in points:
            assert 0 <= x <= layout.width
            assert not any(covers(box, x, y) for box in layout.boxes)


@given(some.lists(some.tuples(some.sampled_from(NAMES), some.sampled_from(NAMES)), max_size=25))
def test_whatever_the_graph_boxes_are_apart_and_lines_end_at_their_boxes(ways: list[tuple[str, str]]) -> None:
    layout = layout_of(NAMES, ways)
    assert [box.name for box in layout.boxes] == NAMES
    assert set(layout.routes) == {way for way in ways if way[0] != way[1]}
    check(layout)
    assert layout == layout_of(NAMES, ways)


def test_a_way_to_an_earlier_node_goes_up_and_a_way_to_an_unknown_one_is_left_out() -> None:
    assert layout_of([], [("a", "b")]).boxes == ()
    layout = layout_of(["a", "b"], [("a", "b"), ("b", "a"), ("b", "elsewhere")])
    assert set(layout.routes) == {("a", "b"), ("b", "a")}
    assert layout.routes["b", "a"][0][1] > layout.routes["b", "a"][-1][1]
    assert layout.routes["a", "b"][0] != layout.routes["b", "a"][-1]


Way = tuple[str, str]
LOOP = [(START, "entry"), ("entry", "gate"), ("entry", "model"), ("model", "gate"), ("gate", "model")]
LOOP += [("model", "final"), ("gate", "final"), ("final", END)]
FORK = [(START, "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", END)]
BEGUN = [(START, "entry"), ("entry", "model")]
CASES: list[tuple[str, list[Way], str, bool, list[Way]]] = [
    ("nothing has ended", LOOP, "", False, []),
    ("under way", LOOP, "entry model", False, BEGUN),
    ("to the end", LOOP, "entry model final", True, [*BEGUN, ("model", "final"), ("final", END)]),
    ("broken off", LOOP, "entry model final", False, [*BEGUN, ("model", "final")]),
    ("around", LOOP, "entry model gate model", False, [*BEGUN, ("model", "gate"), ("gate", "model")]),
    ("taken up again", LOOP, "entry model gate final entry gate", False,
     [*BEGUN, ("model", "gate"), ("gate", "final"), ("entry", "gate")]),
    ("two branches and a join", FORK, "a c b d", True, FORK),
    ("nested nodes are their node's", LOOP, "entry model/x model", False, BEGUN),
    ("a node that nothing leads to", LOOP, "elsewhere", True, []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ways", "nodes", "rests", "taken"), CASES, ids=[case[0] for case in CASES])
def test_the_path_is_what_the_nodes_tell(name: str, ways: list[Way], nodes: str, rests: bool, taken: list[Way]) -> None:
    edges = [{"source": a, "target": b, "form": "join" if b == "d" else "goto"} for a, b in ways]
    path = turn_path(edges, nodes.split(), has_run_to_end=rests)
    assert path.taken == set(taken)
    assert sum(path.visits.values()) == sum("/" not in node for node in nodes.split())


def span(began: float, ended: float) -> Span:
    return Span(BEGAN + timedelta(seconds=began), BEGAN + timedelta(seconds=ended))


@pytest.mark.parametrize(("spans", "where"), [
    ([], []), ([None], [None]), ([span(0, 10)], [(0, 238)]),
    ([span(0, 5), span(5, 10)], [(0, 119), (119, 119)]), ([span(0, 10), span(2.5, 7.5)], [(0, 238), (60, 119)]),
    ([span(3, 3)], [(0, 2)]), ([span(9, 3), None, span(9, 10)], [(0, 2), None, (0, 238)]),
    # A pause of two days between two calls of ten seconds takes a twentieth of them.
    ([span(0, 10), span(172_810, 172_820)], [(0, 113), (125, 113)]),
])  # fmt: skip
def test_runs_are_to_scale_and_waits_are_short(spans: list[Span | None], where: list[tuple[int, int] | None]) -> None:
    drawn = [(round(bar.x), round(bar.width)) if bar else None for bar in draw_bars(spans)]
    assert drawn == where, "where each begins and how long it is"


@given(some.lists(some.one_of(some.none(), some.tuples(MOMENT, MOMENT)), max_size=12))
def test_every_bar_is_on_the_line_and_in_the_order_of_time(ends: list[tuple[int, int] | None]) -> None:
    spans = [span(pair[0] / 1000, pair[1] / 1000) if pair else None for pair in ends]
    found = draw_bars(spans)
    assert [bar is None for bar in found] == [each is None for each in spans]
    placed: list[tuple[Span, Bar]] = [(s, b) for s, b in zip(spans, found, strict=True) if s and b]
    for one, bar in placed:
        assert bar.x >= 0 and bar.x + bar.width <= TIMELINE_WIDTH + 1e-6 and bar.width >= 2
        for other, its in placed:
            if one.began < other.began:
                assert bar.x <= its.x + 1e-6
            if max(one.began, one.ended) <= other.began:
                assert bar.x + bar.width <= its.x + 2 + 1e-6
