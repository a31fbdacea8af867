"""Diagrams as SVG, drawn on the server: the graph of a topology from its manifest, and calls as bars.

They need no script, and no style but the stylesheet. The page also shows their content as text, so that users who
cannot see a diagram miss nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from perdure.core.text import escape_terminal

LETTER_WIDTH, LINE_HEIGHT, PADDING, BOX_GAP, LAYER_GAP, MARGIN = 8.0, 17.0, 12.0, 20.0, 44.0, 8.0
"""Width of a letter and height of a line, padding, gap between boxes, distance of layers, and outer margin, in pixels.
"""
_MAX_LINE_LETTERS = 16
"""Maximum letters per line of a box, if the name can be broken."""
_SLOT_WIDTH = 10.0
_SWEEPS = 12

NodePair = tuple[str, str]
Slot = tuple[str, str, int]
"""A box, by its name, or the point where an edge crosses a layer."""
Point = tuple[float, float]
Ties = defaultdict[Slot, list[Slot]]
START, END = "START", "END"
"""Names of a run's start and end in a manifest."""
_JOIN = "join"
_GRAPH = Markup(
    '<svg class="graph" role="img" aria-labelledby="{own}-title {own}-desc" xmlns="http://www.w3.org/2000/svg" '
    'width="{w:.0f}" height="{h:.0f}" viewBox="0 0 {w:.0f} {h:.0f}">'
    '<title id="{own}-title">{title}</title><desc id="{own}-desc">{desc}</desc>{marks}{lines}{boxes}</svg>'
)
_ARROWHEAD = Markup(
    '<marker id="{}" class="{}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker>'
)
_ARROWHEADS = {"tip": "tip", "tip-taken": "tip taken"}
"""Arrowheads, each with its CSS classes."""
_LINE = Markup('<path class="{}" d="{}" marker-end="url(#{})"><title>{}</title></path>')
_BOX = Markup(
    '<g class="{}" data-node="{}"><title>{}</title>'
    '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="{}"/>{}{}</g>'
)
_TEXT = Markup('<text x="{:.1f}" y="{:.1f}">{}</text>')
_TIMES = Markup('<text class="times" x="{:.1f}" y="{:.1f}">×{}</text>')
TIMELINE_WIDTH = 240.0
_IDLE_SHARE = 0.05
"""Maximum length of an idle time, as a share of all time in which something runs."""
_MIN_BAR_WIDTH = 2.0
"""Minimum width in pixels, so that a call without duration is visible."""
_BAR = Markup(
    '<svg class="bar {}" width="{:.0f}" height="12" aria-hidden="true">'
    '<rect x="{:.1f}" width="{:.1f}" height="12" rx="2"/></svg>'
)


@dataclass(frozen=True, slots=True)
class Box:
    """A node; `x` is its middle and `y` its top."""

    name: str
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Boxes, and the points of each way from its source to its target."""

    boxes: tuple[Box, ...]
    routes: Mapping[NodePair, tuple[Point, ...]]
    width: float
    height: float


def layout_of(names: Sequence[str], edges: Iterable[NodePair]) -> Layout:
    """Returns the layout of these nodes and of the ways between them. A way from a node to itself is left out. Nodes
    are in layers from top to bottom, in the order of their declaration. A line to a node that is declared earlier goes
    back up. A line across layers gets a slot in each layer, so that it passes between the boxes and never behind
    one."""
    position = {name: index for index, name in enumerate(names)}
    known_edges = [
        edge for edge in dict.fromkeys(edges) if edge[0] != edge[1] and edge[0] in position and edge[1] in position
    ]
    downward = {edge: edge if position[edge[0]] < position[edge[1]] else (edge[1], edge[0]) for edge in known_edges}
    ranks = _layers_of(names, set(downward.values()))
    chains = {
        edge: [
            _node_slot(upper),
            *((*edge, rank) for rank in range(ranks[upper] + 1, ranks[lower])),
            _node_slot(lower),
        ]
        for edge, (upper, lower) in downward.items()
    }
    layers = _sort_slots(names, ranks, chains)
    lines = {_node_slot(name): _break_name(name) for name in names}
    widths = {slot: max(map(len, text)) * LETTER_WIDTH + 2 * PADDING for slot, text in lines.items()}
    middles = _place_middles(layers, chains, widths)
    tops, heights = _place_layers(layers, lines)
    boxes = {
        slot: Box(
            slot[0], lines[slot], middles[slot], tops[rank], widths[slot], len(lines[slot]) * LINE_HEIGHT + PADDING
        )
        for rank, layer in enumerate(layers)
        for slot in layer
        if slot in lines
    }
    routes = {
        edge: points if downward[edge] == edge else points[::-1]
        for edge, points in _route_lines(chains, boxes, middles, tops, heights).items()
    }
    right = max((middles[slot] + widths.get(slot, _SLOT_WIDTH) / 2 for slot in middles), default=0.0)
    bottom = tops[-1] + heights[-1] if tops else 0.0
    return Layout(tuple(boxes[_node_slot(name)] for name in names), routes, right + MARGIN, bottom + MARGIN)


def _node_slot(name: str) -> Slot:
    return (name, "", -1)


def _break_name(name: str) -> tuple[str, ...]:
    """Splits a name into lines after underscores."""
    lines = [""]
    for part in name.replace("_", "_\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > _MAX_LINE_LETTERS:
            lines.append("")
        lines[-1] += part
    return tuple(lines)


def _layers_of(names: Sequence[str], edges: set[NodePair]) -> dict[str, int]:
    """Returns the layer of each node, below every node that leads down to it."""
    before: defaultdict[str, list[str]] = defaultdict(list)
    for upper, lower in edges:
        before[lower].append(upper)
    ranks: dict[str, int] = {}
    for name in names:  # every downward way follows the order of declaration
        ranks[name] = max((ranks[upper] + 1 for upper in before[name]), default=0)
    return ranks


def _connected_slots(chains: Iterable[Sequence[Slot]]) -> tuple[Ties, Ties]:
    """Returns the slots that each slot is connected to, in the layer above and in the layer below."""
    above: Ties = defaultdict(list)
    below: Ties = defaultdict(list)
    for chain in chains:
        for upper, lower in pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    return above, below


def _sort_slots(
    names: Sequence[str], ranks: Mapping[str, int], chains: Mapping[NodePair, list[Slot]]
) -> list[list[Slot]]:
    """Returns the slots of each layer from left to right.

    Each is near the middle of its connections, so that few lines cross.
    """
    layers: list[list[Slot]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for name in names:
        layers[ranks[name]].append(_node_slot(name))
    for chain in chains.values():
        for slot in chain[1:-1]:
            layers[slot[2]].append(slot)
    above, below = _connected_slots(chains.values())
    for sweep in range(_SWEEPS):
        ties, order = (below, layers[::-1]) if sweep % 2 else (above, layers)
        for layer, neighbor in zip(order[1:], order, strict=False):
            centers = {slot: (number + 0.5) / len(neighbor) for number, slot in enumerate(neighbor)}
            own_centers = {slot: (number + 0.5) / len(layer) for number, slot in enumerate(layer)}
            wanted_centers = {
                slot: _mean_or(
                    [centers[tied_slot] for tied_slot in ties[slot] if tied_slot in centers], own_centers[slot]
                )
                for slot in layer
            }
            layer.sort(key=wanted_centers.__getitem__)
    return layers


def _place_middles(
    layers: Sequence[Sequence[Slot]], chains: Mapping[NodePair, list[Slot]], widths: Mapping[Slot, float]
) -> dict[Slot, float]:
    """Returns the horizontal middle of each slot: near its connections, and clear of its neighbors."""
    above, below = _connected_slots(chains.values())
    middles = dict.fromkeys((slot for layer in layers for slot in layer), 0.0)
    for sweep in range(_SWEEPS):
        ties = below if sweep % 2 else above
        for layer in layers[::-1] if sweep % 2 else layers:
            wanted = [_mean_or([middles[tied_slot] for tied_slot in ties[slot]], middles[slot]) for slot in layer]
            edge, placed = float("-inf"), list[float]()
            for slot, wanted_middle in zip(layer, wanted, strict=True):
                half = widths.get(slot, _SLOT_WIDTH) / 2
                placed.append(max(wanted_middle, edge + BOX_GAP + half))
                edge = placed[-1] + half
            shift = _mean_or(
                [wanted_middle - middle for wanted_middle, middle in zip(wanted, placed, strict=True)], 0.0
            )
            middles.update((slot, middle + shift) for slot, middle in zip(layer, placed, strict=True))
    leftmost = min((middle - widths.get(slot, _SLOT_WIDTH) / 2 for slot, middle in middles.items()), default=0.0)
    return {slot: middle - leftmost + MARGIN for slot, middle in middles.items()}


def _place_layers(
    layers: Sequence[Sequence[Slot]], lines: Mapping[Slot, tuple[str, ...]]
) -> tuple[list[float], list[float]]:
    """Returns the top and the height of each layer."""
    heights = [max(len(lines.get(slot, ("",))) for slot in layer) * LINE_HEIGHT + PADDING for layer in layers]
    tops, y = list[float](), MARGIN
    for height in heights:
        tops.append(y)
        y += height + LAYER_GAP
    return tops, heights


def _route_lines(
    chains: Mapping[NodePair, list[Slot]],
    boxes: Mapping[Slot, Box],
    middles: Mapping[Slot, float],
    tops: Sequence[float],
    heights: Sequence[float],
) -> dict[NodePair, tuple[Point, ...]]:
    """Returns the points of each way from its upper to its lower end. Ends on the same side of a box are spread over
    it."""
    sides: defaultdict[tuple[Slot, bool], list[tuple[float, int, NodePair]]] = defaultdict(list)
    for number, (edge, chain) in enumerate(chains.items()):
        sides[chain[0], True].append((middles[chain[1]], number, edge))
        sides[chain[-1], False].append((middles[chain[-2]], number, edge))
    ports: dict[tuple[NodePair, bool], float] = {}
    for (slot, is_bottom), ends in sides.items():
        for number, (_, _, edge) in enumerate(sorted(ends)):
            share = (number + 1) / (len(ends) + 1) - 0.5
            ports[edge, is_bottom] = middles[slot] + share * boxes[slot].width
    routes = {}
    for edge, chain in chains.items():
        upper, lower = boxes[chain[0]], boxes[chain[-1]]
        points = [(ports[edge, True], upper.y + upper.height)]
        for slot in chain[1:-1]:
            points += [(middles[slot], tops[slot[2]]), (middles[slot], tops[slot[2]] + heights[slot[2]])]
        routes[edge] = (*points, (ports[edge, False], lower.y))
    return routes


def _mean_or(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


@dataclass(frozen=True, slots=True)
class TurnPath:
    """The part of a graph that a turn ran."""

    visits: Mapping[str, int]
    """Completed runs of each node."""
    taken: frozenset[tuple[str, str]]
    """Edges that were taken, as source and target."""


def turn_path(edges: Sequence[Mapping[str, Any]], nodes: Sequence[str], *, has_run_to_end: bool) -> TurnPath:
    """Returns the path of a turn whose `nodes` have ended in this order.

    `has_run_to_end` is true if its run ended by itself.

    A node is entered by the edge from the source that ended last before it. A join is entered by the edges from all
    sources that have ended. Nodes of a nested topology are part of their node.
    """
    top_level = [node for node in nodes if "/" not in node]
    sources: dict[str, list[tuple[str, bool]]] = {}
    for edge in edges:
        sources.setdefault(edge["target"], []).append((edge["source"], edge["form"] == _JOIN))
    ended = {START: -1}
    taken: set[tuple[str, str]] = set()
    for index, node in enumerate(top_level):
        entries = [(ended[source], source, joins) for source, joins in sources.get(node, ()) if source in ended]
        taken.update((source, node) for _, source, joins in entries if joins)
        if entries and not any(joins for _, _, joins in entries):
            taken.add((max(entries)[1], node))
        ended[node] = index
    if has_run_to_end and top_level and top_level[-1] in (source for source, _ in sources.get(END, ())):
        taken.add((top_level[-1], END))
    return TurnPath(Counter(top_level), frozenset(taken))


def draw_graph(manifest: Mapping[str, Any], path: TurnPath | None = None, *, id_prefix: str = "graph") -> Markup:
    """Draws the graph of a manifest, with the path of a turn if one is given.

    `id_prefix` is a prefix for ids that is unique on the page.
    """
    has_path = path is not None
    path = path or TurnPath({}, frozenset())
    nodes: Sequence[Mapping[str, Any]] = manifest["nodes"]
    names = [START, *(str(node["id"]) for node in nodes), END]
    labels: dict[tuple[str, str], list[str]] = {}
    for edge in manifest["edges"]:
        labels.setdefault((edge["source"], edge["target"]), []).append(str(edge["label"]))
    layout = layout_of(names, labels)
    purposes = {str(node["id"]): str(node["purpose"]) for node in nodes}
    lines = Markup("").join(
        # Edges that were taken are drawn last, on top of the others.
        _draw_line(edge, points, labels[edge], id_prefix, taken=edge in path.taken)
        for edge, points in sorted(layout.routes.items(), key=lambda each: each[0] in path.taken)
    )
    boxes = Markup("").join(
        _draw_box(box, purposes.get(box.name, ""), path.visits.get(box.name, 0)) for box in layout.boxes
    )
    visited = sum(name in path.visits for name in names)
    return _GRAPH.format(
        w=layout.width,
        h=layout.height,
        title=f"The graph {escape_terminal(str(manifest['name']))}",
        desc=f"{len(nodes)} nodes; "
        + (f"this turn visited {visited} of them. The path follows as a list." if has_path else "a list follows."),
        marks=Markup("<defs>{}</defs>").format(
            Markup("").join(_ARROWHEAD.format(f"{id_prefix}-{name}", kind) for name, kind in _ARROWHEADS.items())
        ),
        own=id_prefix,
        lines=lines,
        boxes=boxes,
    )


def _draw_line(
    edge: tuple[str, str], points: Sequence[Point], labels: Sequence[str], id_prefix: str, *, taken: bool
) -> Markup:
    label = ", ".join(filter(None, labels))
    title = f"{edge[0]} to {edge[1]}" + (f": {label}" if label else "") + (", taken" if taken else "")
    kind, tip = ("line taken", "tip-taken") if taken else ("line", "tip")
    return _LINE.format(kind, _curve_data(points), f"{id_prefix}-{tip}", escape_terminal(title))


def _curve_data(points: Sequence[Point]) -> str:
    """Returns the path data of a line. It is vertical at every point, so that the bends join smoothly."""
    commands = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        half = (y + to_y) / 2
        commands.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
    return " ".join(commands)


def _draw_box(box: Box, purpose: str, visits: int) -> Markup:
    is_end = box.name in (START, END)
    kind = "end" if is_end else "node gone" if visits else "node"
    title = box.name + (f": {purpose}" if purpose else "") + (f", {visits} times" if visits > 1 else "")
    top = box.y + PADDING / 2 + LINE_HEIGHT * 0.75
    texts = [
        _TEXT.format(box.x, top + LINE_HEIGHT * index, escape_terminal(line)) for index, line in enumerate(box.lines)
    ]
    times = _TIMES.format(box.x + box.width / 2, box.y - 3, visits) if visits > 1 else ""
    radius = box.height / 2 if is_end else 6
    left = box.x - box.width / 2
    return _BOX.format(
        kind,
        escape_terminal(box.name),
        escape_terminal(title),
        left,
        box.y,
        box.width,
        box.height,
        radius,
        Markup("").join(texts),
        times,
    )


@dataclass(frozen=True, slots=True)
class Span:
    """The time in which something ran."""

    began: datetime
    ended: datetime


@dataclass(frozen=True, slots=True)
class Bar:
    """Position and width on the time line."""

    x: float
    width: float

    def to_svg(self, kind: str) -> Markup:
        """Returns the bar as SVG. `kind` is a class of the stylesheet."""
        return _BAR.format(kind, TIMELINE_WIDTH, self.x, self.width)


def draw_bars(spans: Sequence[Span | None]) -> list[Bar | None]:
    """Returns a bar for each span, and None for None. A span that ends before it began has no duration. Time in which a
    call runs is drawn to scale. Idle time is shortened, because two days of a pending approval would leave no room for
    the calls."""
    known_spans = [span for span in spans if span is not None]
    positions = _time_positions(known_spans)
    longest = max(positions.values(), default=0.0)
    scale = (TIMELINE_WIDTH - _MIN_BAR_WIDTH) / longest if longest else 0.0
    return [_draw_bar(positions, scale, span) if span is not None else None for span in spans]


def _time_positions(spans: Sequence[Span]) -> dict[datetime, float]:
    """Returns the position on the time line of every moment at which a span begins or ends."""
    moments = sorted({moment for span in spans for moment in (span.began, _end_of(span))})
    lengths = [
        ((later - earlier).total_seconds(), _is_any_running(spans, earlier)) for earlier, later in pairwise(moments)
    ]
    most_idle = _IDLE_SHARE * sum(length for length, runs in lengths if runs)
    positions, at = dict.fromkeys(moments[:1], 0.0), 0.0
    for moment, (length, runs) in zip(moments[1:], lengths, strict=True):
        at += length if runs else min(length, most_idle)
        positions[moment] = at
    return positions


def _draw_bar(positions: dict[datetime, float], scale: float, span: Span) -> Bar:
    began, ended = positions[span.began] * scale, positions[_end_of(span)] * scale
    return Bar(began, max(ended - began, _MIN_BAR_WIDTH))


def _end_of(span: Span) -> datetime:
    return max(span.began, span.ended)


def _is_any_running(spans: Sequence[Span], at: datetime) -> bool:
    return any(span.began <= at < _end_of(span) for span in spans)
