"""The rules of forks and joins: what starts together meets again, exactly once.

Between a fork and its join nothing ends, pauses, forks again or is entered from elsewhere, so at any moment either
one node runs or the branches of one fork. That is what makes a deferred join, which LangGraph fires when nothing
else is left to run, wait for exactly the branches that were scheduled. A fork inside a branch belongs in a Sub.
"""

from collections.abc import Iterator, Sequence

from graph.faults import Fault
from graph.paths import Branch, branches_of, forks_of, sources_of, targets_of
from graph.spec import Edge, Fork, Join, Switch, Topology


def fork_faults(topology: Topology) -> Iterator[Fault]:
    """Every fault of the forks and joins of a topology."""
    branches = branches_of(topology)
    joins = [edge for edge in topology.edges if isinstance(edge, Join)]
    for fork in forks_of(topology.edges):
        yield from _shape(topology, fork)
        yield from _meeting(fork, [branch for branch in branches if branch.fork is fork])
    for join in joins:
        yield from _waiting(join, [branch for branch in branches if join in branch.joins])
        yield from _ways_into(topology, join)
    yield from _inside(topology, branches)


def _shape(topology: Topology, fork: Fork) -> Iterator[Fault]:
    if len(fork.heads) < 2:
        yield Fault("one_branch", fork.source, "forks into fewer than two branches")
    if not fork.branches:
        yield Fault("no_sure_branch", fork.source, "forks into optional branches only: with none wanted the run stops")
    for head in dict.fromkeys(head for head in fork.heads if fork.heads.count(head) > 1):
        yield Fault("same_branch_twice", head, f"is named twice by the fork at {fork.source}")
    for edge in topology.edges:
        if isinstance(edge, Switch) and fork in edge.targets.values() and edge.source != fork.source:
            yield Fault("foreign_fork", edge.source, f"switches to a fork that belongs to {fork.source}")


def _meeting(fork: Fork, branches: Sequence[Branch]) -> Iterator[Fault]:
    for branch in branches:
        if not branch.nodes:
            yield Fault("empty_branch", branch.head, f"begins a branch of {fork.source} but is its join")
        yield from (Fault("branch_ends", node, f"ends in the branch {branch.head}") for node in branch.escapes)
        for node in branch.forks_again:
            yield Fault("nested_fork", node, f"forks inside the branch {branch.head}; nest a Sub there")
        if not branch.joins:
            yield Fault("no_join", branch.head, f"begins a branch of {fork.source} that arrives at no join")
    arrivals = [join for branch in branches for join in branch.joins]
    if any(join != arrivals[0] for join in arrivals):
        yield Fault("several_joins", fork.source, "forks into branches that arrive at different joins")
    for index, branch in enumerate(branches):
        for other in branches[:index]:
            for node in (node for node in branch.nodes if node in other.nodes):
                yield Fault("shared_node", node, f"is in the branches {other.head} and {branch.head} of one fork")


def _waiting(join: Join, branches: Sequence[Branch]) -> Iterator[Fault]:
    ends = [end for branch in branches for end in branch.ends]
    for source in join.sources:
        if source not in ends:
            yield Fault("no_fork", source, f"is awaited at {join.target}, but no branch of a fork arrives from it")
    if join.deferred:
        return
    for branch in branches:
        if branch.fork.optional:
            yield Fault(
                "plain_join", join.target, f"waits for {branch.head}, whose fork has optional branches; defer it"
            )
        if len(branch.ends) > 1:
            ways = " or ".join(branch.ends)
            yield Fault("plain_join", join.target, f"would wait for all of {ways}, of which one runs; defer it")
        ends_here = _ends_of_fork(branch.fork, branches)
        for source in (source for source in join.sources if source not in ends_here):
            yield Fault("plain_join", join.target, f"would wait for {source} after the fork at {branch.fork.source}")


def _ends_of_fork(fork: Fork, branches: Sequence[Branch]) -> list[str]:
    return [end for branch in branches if branch.fork is fork for end in branch.ends]


def _ways_into(topology: Topology, join: Join) -> Iterator[Fault]:
    into = [edge for edge in topology.edges if edge is not join and join.target in targets_of(edge)]
    for edge in into:
        if not join.deferred or isinstance(edge, Join):
            source = "+".join(sources_of(edge))
            yield Fault("join_bypassed", join.target, f"is a join and is also reached from {source}")


def _inside(topology: Topology, branches: Sequence[Branch]) -> Iterator[Fault]:
    inside = {node: branch.head for branch in branches for node in branch.nodes}
    for spec in topology.nodes:
        if spec.pauses and spec.id in inside:
            yield Fault("pause_in_fork", spec.id, f"pauses inside the branch {inside[spec.id]} of a fork")
    for entry, node in topology.entries.items():
        if node in inside:
            yield Fault("entry_in_fork", node, f"is the entry `{entry}`, inside the branch {inside[node]} of a fork")
    for edge in topology.edges:
        if all(source in inside for source in sources_of(edge)):
            continue
        for target in _single_targets(edge):
            if target in inside:
                source = "+".join(sources_of(edge))
                yield Fault("entered_from_outside", target, f"is inside a fork but is reached from {source}")


def _single_targets(edge: Edge) -> Sequence[str]:
    """Where an edge leads without forking."""
    if isinstance(edge, Switch):
        return [way for way in edge.targets.values() if not isinstance(way, Fork)]
    return [] if isinstance(edge, Fork) else [edge.target]
