"""Whether an order of events is a possible one: the meaning of the edge forms, written down a second time.

Knows nothing of LangGraph or of the compiler. Reads the events of a run one by one, keeps which nodes may start, and
refuses a start that nothing led to.
"""

from collections import Counter
from dataclasses import dataclass, field

from perdure.graph.spec import END, FRESH, Fork, Goto, Join, Sub, Switch, Topology
from tests.topologies.drawings import Decisions


@dataclass(slots=True)
class Walk:
    topology: Topology
    decided: Decisions
    may_start: Counter[str] = field(default_factory=Counter)
    running: list[str] = field(default_factory=list)
    deferred: set[str] = field(default_factory=set)
    arrived: Counter[str] = field(default_factory=Counter)
    """Sources of plain joins that have run."""
    inner: dict[str, "Walk"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.may_start[self.topology.entries[FRESH]] += 1

    def read(self, kind: str, path: str) -> None:
        """One event; the path leads through nested topologies."""
        node, _, rest = path.partition("/")
        if rest:
            self.inner[node].read(kind, rest)
        elif kind == "node_start":
            self._start(node)
        else:
            self._end(node)

    def finish(self) -> None:
        """Nothing is left that should have run."""
        assert not self.running, f"{self.running} never ended"
        assert not +self.may_start, f"{self.may_start} never started"
        assert not self.deferred, f"the deferred {self.deferred} never started"
        assert not +self.arrived, f"joins wait for ever after {self.arrived}"

    def _start(self, node: str) -> None:
        if node in self.deferred:
            assert not self.running and not +self.may_start, f"{node} started before all that was scheduled had run"
            self.deferred.remove(node)
        else:
            assert self.may_start[node] > 0, f"{node} started, but nothing led to it"
            self.may_start[node] -= 1
        self.running.append(node)
        body = next(spec.run for spec in self.topology.nodes if spec.id == node)
        if isinstance(body, Sub):
            self.inner[node] = Walk(body.topology, self.decided)

    def _end(self, node: str) -> None:
        self.running.remove(node)
        if node in self.inner:
            self.inner.pop(node).finish()
        for edge in self.topology.edges:
            if isinstance(edge, Join) and node in edge.sources:
                self._arrive(edge, node)
            elif not isinstance(edge, Join) and edge.source == node:
                for target in self._targets(edge):
                    self._lead_to(target)

    def _targets(self, edge: Goto | Switch | Fork) -> tuple[str, ...]:
        if isinstance(edge, Goto):
            return (edge.target,)
        if isinstance(edge, Fork):
            wanted = [head for head in edge.optional if self.decided.wanted[head].popleft()]
            return (*edge.branches, *wanted)
        way = edge.targets[self.decided.labels[edge.source].popleft()]
        return self._targets(way) if isinstance(way, Fork) else (way,)

    def _arrive(self, join: Join, node: str) -> None:
        if join.deferred:
            self._lead_to(join.target)
            return
        self.arrived[node] += 1
        if all(self.arrived[source] for source in join.sources):
            self.arrived.subtract(join.sources)
            self.may_start[join.target] += 1

    def _lead_to(self, target: str) -> None:
        joins = [edge for edge in self.topology.edges if isinstance(edge, Join) and edge.deferred]
        if any(join.target == target for join in joins):
            self.deferred.add(target)
        elif target != END:
            self.may_start[target] += 1
