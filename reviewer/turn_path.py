"""The path that a turn took over its topology's graph, as far as the nodes tell it that have ended."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

START, END = "START", "END"
"""As a manifest names where a run begins and ends."""
_JOIN = "join"


@dataclass(frozen=True, slots=True)
class Path:
    """What of the graph a turn went through."""

    visits: Mapping[str, int]
    """How often each node has ended."""
    taken: frozenset[tuple[str, str]]
    """The edges, by their ends."""


def path_over(edges: Sequence[Mapping[str, Any]], nodes: Sequence[str], *, rests: bool) -> Path:
    """The path of a turn whose `nodes` have ended in this order; `rests` where its run came to an end by itself.

    Into a node leads the edge from whichever of its sources ended last before it, and into a join the edges from all
    that have ended. Nodes of a nested topology are part of their node.
    """
    own = [node for node in nodes if "/" not in node]
    sources: dict[str, list[tuple[str, bool]]] = {}
    for edge in edges:
        sources.setdefault(edge["target"], []).append((edge["source"], edge["form"] == _JOIN))
    ended = {START: -1}
    taken: set[tuple[str, str]] = set()
    for at, node in enumerate(own):
        found = [(ended[source], source, joins) for source, joins in sources.get(node, ()) if source in ended]
        taken.update((source, node) for _, source, joins in found if joins)
        if found and not any(joins for _, _, joins in found):
            taken.add((max(found)[1], node))
        ended[node] = at
    if rests and own and own[-1] in (source for source, _ in sources.get(END, ())):
        taken.add((own[-1], END))
    return Path(Counter(own), frozenset(taken))
