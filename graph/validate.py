"""Whether a topology can run: every fault at once, each with the name of what is wrong.

What is checked here holds for every run: total routes, a way from some entry to every node and from every node to
END, a declared limit on every cycle, nothing that a workflow would hang on. Forks and joins have a file of their own.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Final

from contracts.errors import InvariantBroken
from contracts.people import PauseKind
from graph.faults import Fault
from graph.fork_rules import fork_faults
from graph.paths import cycle_without, forks_of, reachable, reversed_ways, sources_of, successors, targets_of
from graph.reducers import LAST_VALUE
from graph.signatures import is_async, is_frozen, labels_of
from graph.spec import END, FRESH, Outcome, Sub, Switch, Topology
from graph.state import KERNEL_FIELDS, not_json

NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED: Final = (
    *("start", "end", "graph", "subgraph", "flowchart", "direction"),
    *("style", "class", "classdef", "linkstyle", "click", "call", "href", "default"),
)
"""START and END in any case, and the words that a Mermaid flowchart keeps for itself."""
HANGS: Final = "a sync one is sent to a thread pool, which a workflow does not have, and the turn hangs"


def check(topology: Topology) -> None:
    """Refuse a topology that cannot run.

    Raises: InvariantBroken `topology_invalid`, its message and its details naming every fault.
    """
    faults = validate(topology)
    if faults:
        told = "\n".join(f"- {fault}" for fault in faults)
        raise InvariantBroken(
            "topology_invalid",
            f"Topology `{topology.name}` cannot run:\n{told}",
            {"faults": [dataclasses.asdict(fault) for fault in faults]},
        )


def validate(topology: Topology) -> tuple[Fault, ...]:
    """All faults of a topology and of the topologies nested in it; empty for one that can run."""
    rules = (_names, _state, _bodies, _ends_of_edges, _ways_out, _routes, fork_faults, _entries, _reach, _cycles, _subs)
    return tuple(fault for rule in rules for fault in rule(topology))


def _names(topology: Topology) -> Iterator[Fault]:
    seen: set[str] = set()
    for name in (topology.name, *(node.id for node in topology.nodes)):
        if not NAME.fullmatch(name):
            yield Fault("bad_name", name, "is not a name: lower case letters, digits and _")
        if name in RESERVED:
            yield Fault("reserved_name", name, "is reserved")
    for node in topology.nodes:
        if node.id in seen:
            yield Fault("duplicate_node", node.id, "is the id of two nodes")
        seen.add(node.id)


def _state(topology: Topology) -> Iterator[Fault]:
    own = [one.name for one in topology.state.own]
    kernel = [one.name for one in KERNEL_FIELDS]
    for name in dict.fromkeys(name for name in own if own.count(name) > 1):
        yield Fault("duplicate_field", name, "is the name of two state fields")
    for one in topology.state.own:
        if not NAME.fullmatch(one.name):
            yield Fault("bad_name", one.name, "is not a name for a state field")
        if one.name in kernel and one.name != "messages" and one.reducer != LAST_VALUE:
            yield Fault("kernel_field", one.name, "belongs to the kernel, which sets it as a whole")
        if where := not_json(one.default, one.name):
            yield Fault("default_not_json", one.name, f"has a default that is not JSON: {where}")
    for name in topology.advice:
        if name not in own:
            yield Fault("unknown_field", name, "is advice, and no field of the state")
    words = {outcome.value for outcome in Outcome}
    for status, meaning in topology.statuses.items():
        if status in words and status != meaning.value:
            yield Fault("kernel_status", status, f"already means something else than {meaning.value}")


def _bodies(topology: Topology) -> Iterator[Fault]:
    for node in topology.nodes:
        if isinstance(node.run, Sub):
            continue
        if not is_async(node.run):
            yield Fault("sync_node", node.id, f"is not async: {HANGS}")
        if not inspect.isfunction(node.run) and not is_frozen(node.run):
            yield Fault("mutable_node", node.id, "is no frozen dataclass: concurrent turns would share what it keeps")


def _ends_of_edges(topology: Topology) -> Iterator[Fault]:
    known = {node.id for node in topology.nodes}
    for edge in topology.edges:
        for source in sources_of(edge):
            if source not in known:
                yield Fault("unknown_source", source, "has a way out but is no node")
        for target in targets_of(edge):
            if target not in known and target != END:
                yield Fault("unknown_target", target, f"is where {'+'.join(sources_of(edge))} leads but is no node")


def _ways_out(topology: Topology) -> Iterator[Fault]:
    sources = [source for edge in topology.edges for source in sources_of(edge)]
    for node in topology.nodes:
        ways = sources.count(node.id)
        if ways == 0:
            yield Fault("no_way_out", node.id, "has no edge out of it")
        if ways > 1:
            yield Fault("several_ways_out", node.id, f"has {ways} edges out of it; a node has one")


def _routes(topology: Topology) -> Iterator[Fault]:
    for switch in (edge for edge in topology.edges if isinstance(edge, Switch)):
        if not is_async(switch.router):
            yield Fault("sync_router", switch.source, f"is followed by a router that is not async: {HANGS}")
        labels = labels_of(switch.router)
        if not labels:
            yield Fault("open_labels", switch.source, "is followed by a router whose return type is no Literal or enum")
            continue
        for label in labels:
            if label not in switch.targets:
                yield Fault("no_target", switch.source, f"has no target for the label `{label}`")
        for label in (*switch.targets, *switch.kinds, *switch.conditions):
            if label not in labels:
                yield Fault("unknown_label", switch.source, f"names `{label}`, which its router never returns")
    for fork in forks_of(topology.edges):
        for head, wanted in fork.optional.items():
            if not is_async(wanted):
                yield Fault("sync_router", fork.source, f"asks for the branch {head} by what is not async: {HANGS}")


def _entries(topology: Topology) -> Iterator[Fault]:
    known = {node.id for node in topology.nodes}
    if FRESH not in topology.entries:
        yield Fault("no_fresh_entry", topology.name, "has no entry for fresh turns")
    for entry, node_id in topology.entries.items():
        if entry != FRESH and entry not in [kind.value for kind in PauseKind]:
            yield Fault("unknown_entry", entry, "is neither `fresh` nor a kind of pause")
        if node_id not in known:
            yield Fault("unknown_target", node_id, f"is where the entry `{entry}` leads but is no node")
    pausing = [node.id for node in topology.nodes if node.pauses]
    resumes = [entry for entry in topology.entries if entry != FRESH]
    if pausing and not resumes:
        yield Fault("no_way_back", pausing[0], "pauses, but no entry resumes a paused turn")
    if resumes and not pausing:
        yield Fault("nothing_pauses", resumes[0], "is an entry for a pause, but no node pauses")


def _reach(topology: Topology) -> Iterator[Fault]:
    after = successors(topology)
    reached = set(reachable(topology.entries.values(), after))
    ending = set(reachable([END], reversed_ways(after)))
    for node in topology.nodes:
        if node.id not in reached:
            yield Fault("unreachable", node.id, "is reached from no entry")
        if node.id not in ending:
            yield Fault("endless", node.id, "has no way to END")


def _cycles(topology: Topology) -> Iterator[Fault]:
    declared = topology.limits.names()
    if topology.limits.steps < 1:
        yield Fault("bad_limit", topology.limits.steps_setting, "must allow a step")
    for node in topology.nodes:
        if node.limit and node.limit not in declared:
            yield Fault("unknown_limit", node.id, f"keeps the limit `{node.limit}`, which is not declared")
    for name in topology.limits.counted:
        if all(node.limit != name for node in topology.nodes):
            yield Fault("unkept_limit", name, "is declared, but no node keeps it")
    stops = frozenset(node.id for node in topology.nodes if node.limit in declared)
    if cycle := cycle_without(stops, successors(topology)):
        yield Fault("unlimited_cycle", cycle[0], f"is on a cycle without a limit: {' -> '.join((*cycle, cycle[0]))}")


def _subs(topology: Topology) -> Iterator[Fault]:
    for node in topology.nodes:
        if not isinstance(node.run, Sub):
            continue
        inner = node.run.topology
        if inner.state != topology.state:
            yield Fault("other_state", node.id, f"nests `{inner.name}`, which has another state")
        if tuple(inner.entries) != (FRESH,) or any(one.pauses for one in inner.nodes) or node.pauses:
            yield Fault("pausing_sub", node.id, f"nests `{inner.name}`; a nested topology cannot pause or be resumed")
        if inner.statuses:
            yield Fault("other_statuses", node.id, f"nests `{inner.name}`, which has statuses of its own")
        yield from (Fault(one.rule, f"{node.id}/{one.subject}", one.message) for one in validate(inner))
