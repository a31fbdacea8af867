"""A topology's graph as a picture, drawn here from its manifest: no script, no style but the stylesheet's.

What it shows stands beside it as text, too: a person who does not see it misses nothing.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from policy.printable import printable
from reviewer.layers import LINE, PAD, Box, Point, laid_out
from reviewer.turn_path import END, START, Path

_PICTURE = Markup(
    '<svg class="graph" role="img" aria-labelledby="{own}-title {own}-desc" xmlns="http://www.w3.org/2000/svg" '
    'width="{w:.0f}" height="{h:.0f}" viewBox="0 0 {w:.0f} {h:.0f}">'
    '<title id="{own}-title">{title}</title><desc id="{own}-desc">{desc}</desc>{marks}{lines}{boxes}</svg>'
)
_MARK = Markup(
    '<marker id="{}" class="{}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker>'
)
_TIPS = {"tip": "tip", "tip-taken": "tip taken"}
"""The heads of lines, each with its class."""
_LINE = Markup('<path class="{}" d="{}" marker-end="url(#{})"><title>{}</title></path>')
_BOX = Markup(
    '<g class="{}" data-node="{}"><title>{}</title>'
    '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="{}"/>{}{}</g>'
)
_TEXT = Markup('<text x="{:.1f}" y="{:.1f}">{}</text>')
_TIMES = Markup('<text class="times" x="{:.1f}" y="{:.1f}">×{}</text>')


def graph(manifest: Mapping[str, Any], path: Path | None = None, *, own: str = "graph") -> Markup:
    """The picture of a manifest, with the path that a turn took over it; `own` names it among those of a page."""
    told = path is not None
    path = path or Path({}, frozenset())
    nodes: Sequence[Mapping[str, Any]] = manifest["nodes"]
    names = [START, *(str(node["id"]) for node in nodes), END]
    labels: dict[tuple[str, str], list[str]] = {}
    for edge in manifest["edges"]:
        labels.setdefault((edge["source"], edge["target"]), []).append(str(edge["label"]))
    layout = laid_out(names, labels)
    purposes = {str(node["id"]): str(node["purpose"]) for node in nodes}
    lines = Markup("").join(
        # What was taken is drawn last, on top of what was not.
        _line(way, points, labels[way], own, taken=way in path.taken)
        for way, points in sorted(layout.routes.items(), key=lambda each: each[0] in path.taken)
    )
    boxes = Markup("").join(_box(box, purposes.get(box.name, ""), path.visits.get(box.name, 0)) for box in layout.boxes)
    gone = sum(name in path.visits for name in names)
    return _PICTURE.format(
        w=layout.width,
        h=layout.height,
        title=f"The graph of {printable(str(manifest['name']))}",
        desc=f"{len(nodes)} nodes; "
        + (f"this turn went through {gone} of them. The path follows as a list." if told else "a list follows."),
        marks=Markup("<defs>{}</defs>").format(
            Markup("").join(_MARK.format(f"{own}-{name}", kind) for name, kind in _TIPS.items())
        ),
        own=own,
        lines=lines,
        boxes=boxes,
    )


def _line(way: tuple[str, str], points: Sequence[Point], labels: Sequence[str], own: str, *, taken: bool) -> Markup:
    label = ", ".join(filter(None, labels))
    told = f"{way[0]} to {way[1]}" + (f": {label}" if label else "") + (", taken" if taken else "")
    kind, tip = ("line taken", "tip-taken") if taken else ("line", "tip")
    return _LINE.format(kind, _curve(points), f"{own}-{tip}", printable(told))


def _curve(points: Sequence[Point]) -> str:
    """Upright at every point, so that one bend runs into the next."""
    drawn = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        half = (y + to_y) / 2
        drawn.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
    return " ".join(drawn)


def _box(box: Box, purpose: str, visits: int) -> Markup:
    is_end = box.name in (START, END)
    kind = "end" if is_end else "node gone" if visits else "node"
    told = box.name + (f": {purpose}" if purpose else "") + (f", {visits} times" if visits > 1 else "")
    top = box.y + PAD / 2 + LINE * 0.75
    words = [_TEXT.format(box.x, top + LINE * at, printable(line)) for at, line in enumerate(box.lines)]
    times = _TIMES.format(box.x + box.width / 2, box.y - 3, visits) if visits > 1 else ""
    round_by = box.height / 2 if is_end else 6
    left = box.x - box.width / 2
    return _BOX.format(
        kind,
        printable(box.name),
        printable(told),
        left,
        box.y,
        box.width,
        box.height,
        round_by,
        Markup("").join(words),
        times,
    )
