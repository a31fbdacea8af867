"""Where the boxes and lines of a graph go: layers from top to bottom, by the order in which the nodes are declared.

A line to a node that is declared earlier goes back up. A line across layers gets a slot in each, so that it passes
between the boxes and never behind one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

LETTER, LINE, PAD, GAP, BETWEEN, MARGIN = 8.0, 17.0, 12.0, 20.0, 44.0, 8.0
"""A letter's width and a line's height in a box, the room inside and beside it, between layers, and around it all."""
_LETTERS = 16
"""In a line of a box, where its name has a place to be broken."""
_SLOT = 10.0
_SWEEPS = 12

Way = tuple[str, str]
Slot = tuple[str, str, int]
"""A box, by its name, or the place of a way in a layer."""
Point = tuple[float, float]
Ties = defaultdict[Slot, list[Slot]]


@dataclass(frozen=True, slots=True)
class Box:
    """A node, `x` at its middle and `y` at its top."""

    name: str
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Boxes, and per way its points from the source to the target."""

    boxes: tuple[Box, ...]
    routes: Mapping[Way, tuple[Point, ...]]
    width: float
    height: float


def laid_out(names: Sequence[str], ways: Iterable[Way]) -> Layout:
    """The places of these nodes and of the ways between them; a way from a node to itself has none."""
    place = {name: at for at, name in enumerate(names)}
    known = [way for way in dict.fromkeys(ways) if way[0] != way[1] and way[0] in place and way[1] in place]
    down = {way: way if place[way[0]] < place[way[1]] else (way[1], way[0]) for way in known}
    ranks = _ranks(names, set(down.values()))
    chains = {
        way: [
            _slot(upper),
            *((*way, rank) for rank in range(ranks[upper] + 1, ranks[lower])),
            _slot(lower),
        ]
        for way, (upper, lower) in down.items()
    }
    layers = _ordered(names, ranks, chains)
    lines = {_slot(name): _broken(name) for name in names}
    widths = {slot: max(map(len, text)) * LETTER + 2 * PAD for slot, text in lines.items()}
    middles = _middles(layers, chains, widths)
    tops, heights = _rows(layers, lines)
    boxes = {
        slot: Box(slot[0], lines[slot], middles[slot], tops[rank], widths[slot], len(lines[slot]) * LINE + PAD)
        for rank, layer in enumerate(layers)
        for slot in layer
        if slot in lines
    }
    routes = {
        way: points if down[way] == way else points[::-1]
        for way, points in _routes(chains, boxes, middles, tops, heights).items()
    }
    right = max((middles[slot] + widths.get(slot, _SLOT) / 2 for slot in middles), default=0.0)
    bottom = tops[-1] + heights[-1] if tops else 0.0
    return Layout(tuple(boxes[_slot(name)] for name in names), routes, right + MARGIN, bottom + MARGIN)


def _slot(name: str) -> Slot:
    return (name, "", -1)


def _broken(name: str) -> tuple[str, ...]:
    """A name in lines, broken behind an underscore."""
    lines = [""]
    for part in name.replace("_", "_\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > _LETTERS:
            lines.append("")
        lines[-1] += part
    return tuple(lines)


def _ranks(names: Sequence[str], ways: set[Way]) -> dict[str, int]:
    """Each below everything that leads down to it."""
    before: defaultdict[str, list[str]] = defaultdict(list)
    for upper, lower in ways:
        before[lower].append(upper)
    ranks: dict[str, int] = {}
    for name in names:  # in the order of declaration, which every way down keeps to
        ranks[name] = max((ranks[upper] + 1 for upper in before[name]), default=0)
    return ranks


def _neighbours(chains: Iterable[Sequence[Slot]]) -> tuple[Ties, Ties]:
    """What each slot is tied to in the layer above, and in the layer below."""
    above: Ties = defaultdict(list)
    below: Ties = defaultdict(list)
    for chain in chains:
        for upper, lower in pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    return above, below


def _ordered(names: Sequence[str], ranks: Mapping[str, int], chains: Mapping[Way, list[Slot]]) -> list[list[Slot]]:
    """The slots of each layer from left to right, with few crossings: each near the middle of what it is tied to."""
    layers: list[list[Slot]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for name in names:
        layers[ranks[name]].append(_slot(name))
    for chain in chains.values():
        for slot in chain[1:-1]:
            layers[slot[2]].append(slot)
    above, below = _neighbours(chains.values())
    for sweep in range(_SWEEPS):
        tied, order = (below, layers[::-1]) if sweep % 2 else (above, layers)
        for layer, near in zip(order[1:], order, strict=False):
            at = {slot: (number + 0.5) / len(near) for number, slot in enumerate(near)}
            own = {slot: (number + 0.5) / len(layer) for number, slot in enumerate(layer)}
            wanted = {slot: _mean([at[one] for one in tied[slot] if one in at], own[slot]) for slot in layer}
            layer.sort(key=wanted.__getitem__)
    return layers


def _middles(
    layers: Sequence[Sequence[Slot]], chains: Mapping[Way, list[Slot]], widths: Mapping[Slot, float]
) -> dict[Slot, float]:
    """How far right the middle of each slot is: near what it is tied to, and clear of its neighbours."""
    above, below = _neighbours(chains.values())
    middles = dict.fromkeys((slot for layer in layers for slot in layer), 0.0)
    for sweep in range(_SWEEPS):
        tied = below if sweep % 2 else above
        for layer in layers[::-1] if sweep % 2 else layers:
            wanted = [_mean([middles[one] for one in tied[slot]], middles[slot]) for slot in layer]
            edge, found = float("-inf"), list[float]()
            for slot, want in zip(layer, wanted, strict=True):
                half = widths.get(slot, _SLOT) / 2
                found.append(max(want, edge + GAP + half))
                edge = found[-1] + half
            shift = _mean([want - is_at for want, is_at in zip(wanted, found, strict=True)], 0.0)
            middles.update((slot, is_at + shift) for slot, is_at in zip(layer, found, strict=True))
    left = min((middle - widths.get(slot, _SLOT) / 2 for slot, middle in middles.items()), default=0.0)
    return {slot: middle - left + MARGIN for slot, middle in middles.items()}


def _rows(layers: Sequence[Sequence[Slot]], lines: Mapping[Slot, tuple[str, ...]]) -> tuple[list[float], list[float]]:
    """The top of each layer, and its height."""
    heights = [max(len(lines.get(slot, ("",))) for slot in layer) * LINE + PAD for layer in layers]
    tops, y = list[float](), MARGIN
    for height in heights:
        tops.append(y)
        y += height + BETWEEN
    return tops, heights


def _routes(
    chains: Mapping[Way, list[Slot]],
    boxes: Mapping[Slot, Box],
    middles: Mapping[Slot, float],
    tops: Sequence[float],
    heights: Sequence[float],
) -> dict[Way, tuple[Point, ...]]:
    """The points of each way from its upper end to its lower; the ends that share a side of a box are spread on it."""
    sides: defaultdict[tuple[Slot, bool], list[tuple[float, int, Way]]] = defaultdict(list)
    for number, (way, chain) in enumerate(chains.items()):
        sides[chain[0], True].append((middles[chain[1]], number, way))
        sides[chain[-1], False].append((middles[chain[-2]], number, way))
    ports: dict[tuple[Way, bool], float] = {}
    for (slot, is_bottom), ends in sides.items():
        for number, (_, _, way) in enumerate(sorted(ends)):
            share = (number + 1) / (len(ends) + 1) - 0.5
            ports[way, is_bottom] = middles[slot] + share * boxes[slot].width
    routes = {}
    for way, chain in chains.items():
        upper, lower = boxes[chain[0]], boxes[chain[-1]]
        points = [(ports[way, True], upper.y + upper.height)]
        for slot in chain[1:-1]:
            points += [(middles[slot], tops[slot[2]]), (middles[slot], tops[slot[2]] + heights[slot[2]])]
        routes[way] = (*points, (ports[way, False], lower.y))
    return routes


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
