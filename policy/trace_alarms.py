"""Invariants that a finished turn can be checked for: its nodes followed the edges of its topology (S3-38).

An alarm is a value; who gets it logs and counts it, and nothing else comes of it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contracts.alarms import Alarm, AlarmType


@dataclass(frozen=True, slots=True)
class Ways:
    """The edges of a topology, as far as a record can be held against them."""

    edges: frozenset[tuple[str, str]]
    entries: frozenset[str]
    """Where a run begins, fresh or after a pause."""
    terminal: frozenset[str]
    """From where a run ends."""
    parallel: bool = False
    """Whether branches run side by side: then a node need only follow some node that has run."""
    unspanned: frozenset[str] = frozenset()
    """Nodes that a trace leaves out."""


def alarms_of(nodes: Sequence[str], ways: Ways, trace_id: str) -> Iterator[Alarm]:
    """What is wrong with a turn whose nodes ended in this order; nodes of nested topologies are not looked at."""
    own = [node for node in nodes if "/" not in node]
    ran: list[str] = []
    for node in own:
        before = ran if ways.parallel else ran[-1:]
        if node not in ways.entries and not any((each, node) in ways.edges for each in before):
            yield Alarm(
                type=AlarmType.UNEXPECTED_ROUTING,
                node=node,
                description="a node ran that no edge leads to from where the turn was",
                context={"after": ran[-1] if ran else "START"},
                trace_id=trace_id,
            )
        ran.append(node)
    counted = Counter(own)
    begun = sum(counted[node] for node in ways.entries)
    ended = sum(counted[node] for node in ways.terminal)
    if ended > begun:
        yield Alarm(
            type=AlarmType.MULTIPLE_TERMINAL_NODES,
            node=own[-1],
            description="a turn ended more often than it began",
            context={"begun": begun, "ended": ended},
            trace_id=trace_id,
        )
