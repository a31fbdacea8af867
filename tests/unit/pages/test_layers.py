"""Where boxes and lines go: for whatever graph, no box lies on another and every line ends at its boxes."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.graph import registry
from perdure.graph.manifest import lines_of
from perdure.pages.diagrams import Box, Layout, laid_out

NAMES = [f"node_{'long_' * (number % 4)}{number}" for number in range(9)]
GRAPHS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=25)


def covers(box: Box, x: float, y: float) -> bool:
    """Whether a point is inside a box, and not on its edge."""
    return abs(x - box.x) < box.width / 2 - 0.01 and box.y + 0.01 < y < box.y + box.height - 0.01


def check(layout: Layout) -> None:
    """What every layout promises."""
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


@given(GRAPHS)
def test_whatever_the_graph_boxes_are_apart_and_lines_end_at_their_boxes(ways: list[tuple[str, str]]) -> None:
    layout = laid_out(NAMES, ways)
    assert [box.name for box in layout.boxes] == NAMES
    assert set(layout.routes) == {way for way in ways if way[0] != way[1]}
    check(layout)
    assert layout == laid_out(NAMES, ways)


@pytest.mark.parametrize("name", registry.names())
def test_every_shipped_topology_is_laid_out(name: str) -> None:
    topology = registry.spec(name)
    ways = [(line.source, line.target) for line in lines_of(topology)]
    layout = laid_out(["START", *(node.id for node in topology.nodes), "END"], ways)
    check(layout)
    assert set(layout.routes) == set(ways)


def test_a_way_to_an_earlier_node_goes_up_and_a_way_to_an_unknown_one_is_left_out() -> None:
    layout = laid_out(["a", "b"], [("a", "b"), ("b", "a"), ("b", "elsewhere")])
    assert set(layout.routes) == {("a", "b"), ("b", "a")}
    assert layout.routes["b", "a"][0][1] > layout.routes["b", "a"][-1][1]
    assert layout.routes["a", "b"][0] != layout.routes["b", "a"][-1]


def test_nothing_is_laid_out_where_there_is_nothing() -> None:
    assert laid_out([], [("a", "b")]).boxes == ()
