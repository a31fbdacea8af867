"""Which node can follow which: the ways through a topology, read from its edges alone.

Tolerates a topology that the validator would refuse, so that all its faults can be found at once: ways to nodes
that do not exist are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from graph.spec import END, Edge, Fork, Join, Switch, Topology


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch of a fork: what can run between the fork and its join."""

    fork: Fork
    head: str
    nodes: tuple[str, ...]
    ends: tuple[str, ...]
    """Those of `nodes` that are sources of a join."""
    joins: tuple[Join, ...]
    """Where the branch arrives; one, in a sound topology."""
    escapes: tuple[str, ...]
    """Nodes of the branch from which a run would end without having joined."""
    forks_again: tuple[str, ...]
    """Nodes of the branch that fork."""


def sources_of(edge: Edge) -> tuple[str, ...]:
    """The nodes that an edge leads out of."""
    return edge.sources if isinstance(edge, Join) else (edge.source,)


def targets_of(edge: Edge) -> tuple[str, ...]:
    """The nodes, or END, that an edge can lead to; a fork inside a switch counts by its heads."""
    if isinstance(edge, Switch):
        ways = (way.heads if isinstance(way, Fork) else (way,) for way in edge.targets.values())
        return tuple(dict.fromkeys(target for way in ways for target in way))
    return edge.heads if isinstance(edge, Fork) else (edge.target,)


def forks_of(edges: Iterable[Edge]) -> Iterator[Fork]:
    """Every fork, those inside switches too."""
    for edge in edges:
        if isinstance(edge, Fork):
            yield edge
        elif isinstance(edge, Switch):
            yield from (way for way in edge.targets.values() if isinstance(way, Fork))


def successors(topology: Topology) -> dict[str, tuple[str, ...]]:
    """For every node the nodes, and END, that can come next."""
    known = {node.id for node in topology.nodes} | {END}
    after: dict[str, dict[str, None]] = {node.id: {} for node in topology.nodes}
    for edge in topology.edges:
        for source in sources_of(edge):
            if source in after:
                after[source].update({target: None for target in targets_of(edge) if target in known})
    return {node: tuple(targets) for node, targets in after.items()}


def reachable(starts: Iterable[str], after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """All that can be reached from `starts`, themselves included, nearest first."""
    found = dict.fromkeys(starts)
    queue = list(found)
    for node in queue:
        new = [target for target in after.get(node, ()) if target not in found]
        found.update(dict.fromkeys(new))
        queue.extend(dict.fromkeys(new))
    return tuple(found)


def reversed_ways(after: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The same ways, walked backwards."""
    before: dict[str, list[str]] = {}
    for node, targets in after.items():
        for target in targets:
            before.setdefault(target, []).append(node)
    return {node: tuple(nodes) for node, nodes in before.items()}


def cycle_without(stops: frozenset[str], after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The nodes of one cycle that passes none of `stops`, in order; empty where there is none."""
    ways = {
        node: tuple(target for target in targets if target not in stops)
        for node, targets in after.items()
        if node not in stops
    }
    for node in ways:
        path = _way_back(node, ways)
        if path:
            return path
    return ()


def _way_back(start: str, ways: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    came_from: dict[str, str] = {}
    queue = [start]
    for node in queue:
        for target in ways.get(node, ()):
            if target == start:
                path = [node]
                while path[0] != start:
                    path.insert(0, came_from[path[0]])
                return tuple(path)
            if target not in came_from:
                came_from[target] = node
                queue.append(target)
    return ()


def branches_of(topology: Topology) -> tuple[Branch, ...]:
    """Every branch of every fork, in the order of the edges."""
    after = successors(topology)
    return tuple(
        _branch(topology, after, fork, head)
        for fork in forks_of(topology.edges)
        for head in fork.heads
        if head in after
    )


def _branch(topology: Topology, after: Mapping[str, tuple[str, ...]], fork: Fork, head: str) -> Branch:
    joins = [edge for edge in topology.edges if isinstance(edge, Join)]
    by_source = {source: join for join in joins for source in join.sources}
    by_deferred_target = {join.target: join for join in joins if join.deferred}
    forking = {one.source for one in forks_of(topology.edges)}
    nodes: dict[str, None] = {}
    ends: list[str] = []
    escapes: list[str] = []
    arrived: list[Join] = []
    queue = [head]
    for node in queue:
        if node in nodes:
            continue
        if node in by_deferred_target:
            arrived.append(by_deferred_target[node])
            continue
        nodes[node] = None
        if node in by_source:
            ends.append(node)
            arrived.append(by_source[node])
        elif node not in forking:
            escapes += [node] * (END in after[node])
            queue += [target for target in after[node] if target != END]
    joined = tuple(join for index, join in enumerate(arrived) if join not in arrived[:index])
    again = tuple(node for node in nodes if node in forking)
    return Branch(fork, head, tuple(nodes), tuple(ends), joined, tuple(escapes), again)
