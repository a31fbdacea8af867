"""The validator of topologies. It reports all faults together, each with the name of its subject, and
so follows the paths of an invalid topology too, without targets that do not exist.

The rules apply to every run. Routes are total, every node is reachable from an entry, and END from every node. Every
cycle has a declared limit. Nothing would block a workflow. Forks and joins have rules of their own.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import EnumMeta, StrEnum
from typing import Final, Literal, get_args, get_origin, get_type_hints

from perdure.contracts.approvals import PauseKind
from perdure.contracts.errors import InvariantBroken
from perdure.graph.spec import END, FRESH, RENEWED, Edge, Fork, Join, Outcome, Router, Sub, Switch, Topology
from perdure.graph.state import KERNEL_FIELDS, LAST_VALUE, not_json

NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED: Final = (
    *("start", "end", "graph", "subgraph", "flowchart", "direction"),
    *("style", "class", "classdef", "linkstyle", "click", "call", "href", "default"),
)
"""START and END in any case, and the reserved words of Mermaid flowcharts."""
WHY_SYNC_HANGS: Final = (
    "synchronous code is sent to a thread pool, which a workflow does not have, and the turn would hang"
)


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch of a fork: the nodes that can run between the fork and its join."""

    fork: Fork
    head: str
    nodes: tuple[str, ...]
    ends: tuple[str, ...]
    """Nodes of the branch that are sources of a join."""
    joins: tuple[Join, ...]
    """The joins that the branch reaches; exactly one in a valid topology."""
    escapes: tuple[str, ...]
    """Nodes of the branch from which a run would end without reaching the join."""
    forks_again: tuple[str, ...]
    """Nodes of the branch that are sources of a fork."""


def sources_of(edge: Edge) -> tuple[str, ...]:
    """Returns the source nodes of an edge."""
    return edge.sources if isinstance(edge, Join) else (edge.source,)


def targets_of(edge: Edge) -> tuple[str, ...]:
    """Returns the nodes, or END, that an edge can lead to. A fork inside a switch counts by its heads."""
    if isinstance(edge, Switch):
        targets = (way.heads if isinstance(way, Fork) else (way,) for way in edge.targets.values())
        return tuple(dict.fromkeys(target for way in targets for target in way))
    return edge.heads if isinstance(edge, Fork) else (edge.target,)


def forks_of(edges: Iterable[Edge]) -> Iterator[Fork]:
    """Yields every fork, including those inside switches."""
    for edge in edges:
        if isinstance(edge, Fork):
            yield edge
        elif isinstance(edge, Switch):
            yield from (way for way in edge.targets.values() if isinstance(way, Fork))


def successors(topology: Topology) -> dict[str, tuple[str, ...]]:
    """Returns for each node the nodes, and END, that can follow it."""
    known = {node.id for node in topology.nodes} | {END}
    after: dict[str, dict[str, None]] = {node.id: {} for node in topology.nodes}
    for edge in topology.edges:
        for source in sources_of(edge):
            if source in after:
                after[source].update({target: None for target in targets_of(edge) if target in known})
    return {node: tuple(targets) for node, targets in after.items()}


def reachable(starts: Iterable[str], after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns everything that is reachable from `starts`, including `starts`, nearest first."""
    reached = dict.fromkeys(starts)
    queue = list(reached)
    for node in queue:
        unseen = [target for target in after.get(node, ()) if target not in reached]
        reached.update(dict.fromkeys(unseen))
        queue.extend(dict.fromkeys(unseen))
    return tuple(reached)


def reversed_edges(after: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns the same paths in the opposite direction."""
    before: dict[str, list[str]] = {}
    for node, targets in after.items():
        for target in targets:
            before.setdefault(target, []).append(node)
    return {node: tuple(nodes) for node, nodes in before.items()}


def cycle_without(stops: frozenset[str], after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the nodes, in order, of one cycle that contains none of `stops`; empty without one."""
    edges = {
        node: tuple(target for target in targets if target not in stops)
        for node, targets in after.items()
        if node not in stops
    }
    for node in edges:
        path = _path_back_to(node, edges)
        if path:
            return path
    return ()


def _path_back_to(start: str, edges: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    previous: dict[str, str] = {}
    queue = [start]
    for node in queue:
        for target in edges.get(node, ()):
            if target == start:
                path = [node]
                while path[0] != start:
                    path.insert(0, previous[path[0]])
                return tuple(path)
            if target not in previous:
                previous[target] = node
                queue.append(target)
    return ()


def branches_of(topology: Topology) -> tuple[Branch, ...]:
    """Returns every branch of every fork, in the order of the edges."""
    after = successors(topology)
    return tuple(
        _read_branch(topology, after, fork, head)
        for fork in forks_of(topology.edges)
        for head in fork.heads
        if head in after
    )


def _read_branch(topology: Topology, after: Mapping[str, tuple[str, ...]], fork: Fork, head: str) -> Branch:
    joins = [edge for edge in topology.edges if isinstance(edge, Join)]
    joins_by_source = {source: join for join in joins for source in join.sources}
    joins_by_target = {join.target: join for join in joins if join.deferred}
    fork_sources = {one.source for one in forks_of(topology.edges)}
    nodes: dict[str, None] = {}
    ends: list[str] = []
    escapes: list[str] = []
    reached_joins: list[Join] = []
    queue = [head]
    for node in queue:
        if node in nodes:
            continue
        if node in joins_by_target:
            reached_joins.append(joins_by_target[node])
            continue
        nodes[node] = None
        if node in joins_by_source:
            ends.append(node)
            reached_joins.append(joins_by_source[node])
        elif node not in fork_sources:
            escapes += [node] * (END in after[node])
            queue += [target for target in after[node] if target != END]
    joins_in_order = tuple(join for index, join in enumerate(reached_joins) if join not in reached_joins[:index])
    again = tuple(node for node in nodes if node in fork_sources)
    return Branch(fork, head, tuple(nodes), tuple(ends), joins_in_order, tuple(escapes), again)


def labels_of(router: Router) -> tuple[str, ...]:
    """Returns the labels that a router declares in its return type; empty if the type is open."""
    try:
        return_type = get_type_hints(router if inspect.isfunction(router) else type(router).__call__).get("return")
    except NameError:
        return ()
    if get_origin(return_type) is Literal:
        return tuple(str(label) for label in get_args(return_type))
    if isinstance(return_type, EnumMeta) and issubclass(return_type, StrEnum):
        return tuple(label.value for label in return_type)
    return ()


def is_async(called: object) -> bool:
    """Returns whether `called` is an async function or an object with an async `__call__`."""
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(type(called).__call__)


def is_frozen(node: object) -> bool:
    """Returns whether `node` is an instance of a frozen dataclass."""
    dataclass_params = getattr(type(node), "__dataclass_params__", None)
    return dataclass_params is not None and bool(dataclass_params.frozen)


@dataclass(frozen=True, slots=True)
class TopologyFault:
    """One broken rule."""

    rule: str
    """The name of the rule: stable, snake_case."""
    subject: str
    """The node, edge end, field or limit that breaks the rule. Inside a nested topology, it is a path."""
    message: str
    """The rest of the sentence that begins with the subject."""

    def __str__(self) -> str:
        return f"{self.subject} {self.message} ({self.rule})"


def check(topology: Topology) -> None:
    """Rejects a topology that cannot run.

    Raises: InvariantBroken `topology_invalid`, with every fault in its message and its details.
    """
    faults = validate(topology)
    if faults:
        text = "\n".join(f"- {fault}" for fault in faults)
        raise InvariantBroken(
            "topology_invalid",
            f"Topology `{topology.name}` cannot run:\n{text}",
            {"faults": [dataclasses.asdict(fault) for fault in faults]},
        )


def validate(topology: Topology) -> tuple[TopologyFault, ...]:
    """Returns all faults of a topology and of its nested topologies; empty if it can run."""
    rules = (
        _check_names,
        _check_state,
        _check_bodies,
        _check_edge_ends,
        _check_outgoing_edges,
        _check_routes,
        fork_faults,
        _check_entries,
        _check_reach,
        _check_cycles,
        _check_nested,
    )
    return tuple(fault for rule in rules for fault in rule(topology))


def _check_names(topology: Topology) -> Iterator[TopologyFault]:
    seen: set[str] = set()
    for name in (topology.name, *(node.id for node in topology.nodes)):
        if not NAME.fullmatch(name):
            yield TopologyFault("bad_name", name, "is not a name: lower case letters, digits and _")
        if name in RESERVED:
            yield TopologyFault("reserved_name", name, "is reserved")
    for node in topology.nodes:
        if node.id in seen:
            yield TopologyFault("duplicate_node", node.id, "is the id of two nodes")
        seen.add(node.id)


def _check_state(topology: Topology) -> Iterator[TopologyFault]:
    own = [one.name for one in topology.state.own]
    kernel = [one.name for one in KERNEL_FIELDS]
    for name in dict.fromkeys(name for name in own if own.count(name) > 1):
        yield TopologyFault("duplicate_field", name, "is the name of two state fields")
    for one in topology.state.own:
        if not NAME.fullmatch(one.name):
            yield TopologyFault("bad_name", one.name, "is not a valid name for a state field")
        if one.name in kernel and one.name != "messages" and one.reducer != LAST_VALUE:
            yield TopologyFault("kernel_field", one.name, "is reserved for the kernel")
        if where := not_json(one.default, one.name):
            yield TopologyFault("default_not_json", one.name, f"has a default that cannot be written as JSON: {where}")
    for name in topology.advice:
        if name not in own:
            yield TopologyFault("unknown_field", name, "is advice, not a field of the state")
    words = {outcome.value for outcome in Outcome}
    for status, meaning in topology.statuses.items():
        if status in words and status != meaning.value:
            yield TopologyFault("kernel_status", status, f"is already used for something other than {meaning.value}")


def _check_bodies(topology: Topology) -> Iterator[TopologyFault]:
    for node in topology.nodes:
        if isinstance(node.run, Sub):
            continue
        if not is_async(node.run):
            yield TopologyFault("sync_node", node.id, f"is not async: {WHY_SYNC_HANGS}")
        if not inspect.isfunction(node.run) and not is_frozen(node.run):
            yield TopologyFault(
                "mutable_node", node.id, "is not a frozen dataclass; concurrent turns would share its state"
            )


def _check_edge_ends(topology: Topology) -> Iterator[TopologyFault]:
    known = {node.id for node in topology.nodes}
    for edge in topology.edges:
        for source in sources_of(edge):
            if source not in known:
                yield TopologyFault("unknown_source", source, "has outgoing edges but is not a node")
        for target in targets_of(edge):
            if target not in known and target != END:
                yield TopologyFault(
                    "unknown_target", target, f"is the target of {'+'.join(sources_of(edge))} but is not a node"
                )


def _check_outgoing_edges(topology: Topology) -> Iterator[TopologyFault]:
    sources = [source for edge in topology.edges for source in sources_of(edge)]
    for node in topology.nodes:
        count = sources.count(node.id)
        if count == 0:
            yield TopologyFault("no_way_out", node.id, "has no outgoing edge")
        if count > 1:
            yield TopologyFault("several_ways_out", node.id, f"has {count} outgoing edges; a node has one")


def _check_routes(topology: Topology) -> Iterator[TopologyFault]:
    for switch in (edge for edge in topology.edges if isinstance(edge, Switch)):
        if not is_async(switch.router):
            yield TopologyFault(
                "sync_router", switch.source, f"is followed by a router that is not async: {WHY_SYNC_HANGS}"
            )
        labels = labels_of(switch.router)
        if not labels:
            yield TopologyFault(
                "open_labels", switch.source, "is followed by a router whose return type is not a Literal or an enum"
            )
            continue
        for label in labels:
            if label not in switch.targets:
                yield TopologyFault("no_target", switch.source, f"has no target for the label `{label}`")
        for label in (*switch.targets, *switch.kinds, *switch.conditions):
            if label not in labels:
                yield TopologyFault("unknown_label", switch.source, f"names `{label}`, which its router never returns")
    for fork in forks_of(topology.edges):
        for head, wanted in fork.optional.items():
            if not is_async(wanted):
                yield TopologyFault(
                    "sync_router",
                    fork.source,
                    f"selects the branch {head} with a function that is not async: {WHY_SYNC_HANGS}",
                )


def _check_entries(topology: Topology) -> Iterator[TopologyFault]:
    known = {node.id for node in topology.nodes}
    if FRESH not in topology.entries:
        yield TopologyFault("no_fresh_entry", topology.name, "has no entry for fresh turns")
    for entry, node_id in topology.entries.items():
        if entry not in (FRESH, RENEWED) and entry not in [kind.value for kind in PauseKind]:
            yield TopologyFault("unknown_entry", entry, "is neither `fresh` nor `renewed` nor a kind of pause")
        if node_id not in known:
            yield TopologyFault("unknown_target", node_id, f"is the target of the entry `{entry}` but is not a node")
    pausing = [node.id for node in topology.nodes if node.pauses]
    resumes = [entry for entry in topology.entries if entry not in (FRESH, RENEWED)]
    if pausing and not resumes:
        yield TopologyFault("no_way_back", pausing[0], "pauses, but no entry resumes a paused turn")
    if resumes and not pausing:
        yield TopologyFault("nothing_pauses", resumes[0], "is an entry for a pause, but no node pauses")


def _check_reach(topology: Topology) -> Iterator[TopologyFault]:
    after = successors(topology)
    reached = set(reachable(topology.entries.values(), after))
    ending = set(reachable([END], reversed_edges(after)))
    for node in topology.nodes:
        if node.id not in reached:
            yield TopologyFault("unreachable", node.id, "cannot be reached from any entry")
        if node.id not in ending:
            yield TopologyFault("endless", node.id, "has no path to END")


def _check_cycles(topology: Topology) -> Iterator[TopologyFault]:
    declared = topology.limits.names()
    if topology.limits.steps < 1:
        yield TopologyFault("bad_limit", topology.limits.steps_setting, "must be at least one step")
    for node in topology.nodes:
        if node.limit and node.limit not in declared:
            yield TopologyFault("unknown_limit", node.id, f"uses the limit `{node.limit}`, which is not declared")
    for name in topology.limits.counted:
        if all(node.limit != name for node in topology.nodes):
            yield TopologyFault("unkept_limit", name, "is declared, but no node uses it")
    stops = frozenset(node.id for node in topology.nodes if node.limit in declared)
    if cycle := cycle_without(stops, successors(topology)):
        yield TopologyFault(
            "unlimited_cycle", cycle[0], f"is on a cycle without a limit: {' -> '.join((*cycle, cycle[0]))}"
        )


def _check_nested(topology: Topology) -> Iterator[TopologyFault]:
    for node in topology.nodes:
        if not isinstance(node.run, Sub):
            continue
        inner = node.run.topology
        if inner.state != topology.state:
            yield TopologyFault("other_state", node.id, f"nests `{inner.name}`, which has a different state")
        if tuple(inner.entries) != (FRESH,) or any(one.pauses for one in inner.nodes) or node.pauses:
            yield TopologyFault(
                "pausing_sub", node.id, f"nests `{inner.name}`; a nested topology cannot pause or be resumed"
            )
        if inner.statuses:
            yield TopologyFault("other_statuses", node.id, f"nests `{inner.name}`, which has its own statuses")
        yield from (TopologyFault(one.rule, f"{node.id}/{one.subject}", one.message) for one in validate(inner))


# Branches that start together meet exactly once. Between a fork and its join, no node ends the run, pauses, forks again
# or is entered from elsewhere. So at any moment, either one node runs or the branches of one fork run. LangGraph fires
# a deferred join when nothing else is left to run. With this rule, such a join waits for exactly the branches that were
# scheduled. A fork inside a branch belongs in a Sub.
def fork_faults(topology: Topology) -> Iterator[TopologyFault]:
    """Yields every fault of the forks and joins of a topology."""
    branches = branches_of(topology)
    joins = [edge for edge in topology.edges if isinstance(edge, Join)]
    for fork in forks_of(topology.edges):
        yield from _check_shape(topology, fork)
        yield from _check_meeting(fork, [branch for branch in branches if branch.fork is fork])
    for join in joins:
        yield from _check_waiting(join, [branch for branch in branches if join in branch.joins])
        yield from _check_join_bypass(topology, join)
    yield from _check_inside(topology, branches)


def _check_shape(topology: Topology, fork: Fork) -> Iterator[TopologyFault]:
    if len(fork.heads) < 2:
        yield TopologyFault("one_branch", fork.source, "forks into fewer than two branches")
    if not fork.branches:
        yield TopologyFault(
            "no_sure_branch", fork.source, "forks into optional branches only: with none wanted the run stops"
        )
    for head in dict.fromkeys(head for head in fork.heads if fork.heads.count(head) > 1):
        yield TopologyFault("same_branch_twice", head, f"is named twice by the fork at {fork.source}")
    for edge in topology.edges:
        if isinstance(edge, Switch) and fork in edge.targets.values() and edge.source != fork.source:
            yield TopologyFault("foreign_fork", edge.source, f"switches to a fork that belongs to {fork.source}")


def _check_meeting(fork: Fork, branches: Sequence[Branch]) -> Iterator[TopologyFault]:
    for branch in branches:
        if not branch.nodes:
            yield TopologyFault("empty_branch", branch.head, f"begins a branch of {fork.source} but is its join")
        yield from (TopologyFault("branch_ends", node, f"ends in the branch {branch.head}") for node in branch.escapes)
        for node in branch.forks_again:
            yield TopologyFault("nested_fork", node, f"forks inside the branch {branch.head}; nest a Sub there")
        if not branch.joins:
            yield TopologyFault("no_join", branch.head, f"begins a branch of {fork.source} that reaches no join")
    arrivals = [join for branch in branches for join in branch.joins]
    if any(join != arrivals[0] for join in arrivals):
        yield TopologyFault("several_joins", fork.source, "forks into branches that reach different joins")
    for index, branch in enumerate(branches):
        for other in branches[:index]:
            for node in (node for node in branch.nodes if node in other.nodes):
                yield TopologyFault(
                    "shared_node", node, f"is in two branches of one fork, {other.head} and {branch.head}"
                )


def _check_waiting(join: Join, branches: Sequence[Branch]) -> Iterator[TopologyFault]:
    ends = [end for branch in branches for end in branch.ends]
    for source in join.sources:
        if source not in ends:
            yield TopologyFault("no_fork", source, f"is awaited at {join.target}, but no branch of a fork reaches it")
    if join.deferred:
        return
    for branch in branches:
        if branch.fork.optional:
            yield TopologyFault(
                "plain_join", join.target, f"waits for {branch.head}, whose fork has optional branches; defer it"
            )
        if len(branch.ends) > 1:
            ways = " or ".join(branch.ends)
            yield TopologyFault(
                "plain_join", join.target, f"would wait for all of {ways}, of which only one runs; defer it"
            )
        ends_here = _branch_ends_of(branch.fork, branches)
        for source in (source for source in join.sources if source not in ends_here):
            yield TopologyFault(
                "plain_join", join.target, f"would wait for {source} after the fork at {branch.fork.source}"
            )


def _branch_ends_of(fork: Fork, branches: Sequence[Branch]) -> list[str]:
    return [end for branch in branches if branch.fork is fork for end in branch.ends]


def _check_join_bypass(topology: Topology, join: Join) -> Iterator[TopologyFault]:
    into = [edge for edge in topology.edges if edge is not join and join.target in targets_of(edge)]
    for edge in into:
        if not join.deferred or isinstance(edge, Join):
            source = "+".join(sources_of(edge))
            yield TopologyFault("join_bypassed", join.target, f"is a join and is also reached from {source}")


def _check_inside(topology: Topology, branches: Sequence[Branch]) -> Iterator[TopologyFault]:
    inside = {node: branch.head for branch in branches for node in branch.nodes}
    for spec in topology.nodes:
        if spec.pauses and spec.id in inside:
            yield TopologyFault("pause_in_fork", spec.id, f"pauses inside the branch {inside[spec.id]} of a fork")
    for entry, node in topology.entries.items():
        if node in inside:
            yield TopologyFault(
                "entry_in_fork", node, f"is the entry `{entry}`, inside the branch {inside[node]} of a fork"
            )
    for edge in topology.edges:
        if all(source in inside for source in sources_of(edge)):
            continue
        for target in _targets_without_fork(edge):
            if target in inside:
                source = "+".join(sources_of(edge))
                yield TopologyFault("entered_from_outside", target, f"is inside a fork but is reached from {source}")


def _targets_without_fork(edge: Edge) -> Sequence[str]:
    """Returns the targets of an edge that it reaches without a fork."""
    if isinstance(edge, Switch):
        return [target for target in edge.targets.values() if not isinstance(target, Fork)]
    return [] if isinstance(edge, Fork) else [edge.target]
