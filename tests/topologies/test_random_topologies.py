"""Whatever the validator accepts runs to its end, in an order that the edges allow: random topologies.

A shape is drawn first, then rendered with edges whose routers choose by the state alone. A walk writes down the
meaning of the edge forms a second time: it knows nothing of LangGraph or of the compiler. It reads the events of a
run one by one, keeps which nodes may start, and refuses a start that nothing led to.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from perdure.contracts.messages import Patch
from perdure.graph.compile import compile_topology
from perdure.graph.manifest import lines_of
from perdure.graph.ports import Ports
from perdure.graph.spec import END, FRESH, Edge, Fork, Goto, Join, NodeSpec, RunLimits, State, Sub, Switch, Topology
from perdure.graph.state import ADDITIVE, Field, StateSchema
from perdure.graph.validate import validate
from tests.topologies.stand_ins import scripted_ports

STATE = StateSchema(
    (Field("status", "completed"), Field("trail", [], ADDITIVE), Field("choices", [0]), Field("patience", 20))
)
Shape = tuple[Any, ...]
NODE: Shape = ("node",)
choices = st.lists(st.integers(0, 1), min_size=1, max_size=12)
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _lines_of(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    choice = st.tuples(st.just("choice"), inner, st.none() | inner)
    return st.tuples(st.just("seq"), inner, inner) | choice | st.tuples(st.just("loop"), inner)


def _fork_of(branch: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    styles = st.sampled_from(["plain", "deferred", "optional", "loose"])
    return st.tuples(st.just("fork"), st.lists(branch, min_size=2, max_size=3), styles, st.booleans())


def _sub_of(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    return st.tuples(st.just("sub"), inner)


_flat = st.recursive(st.just(NODE), _lines_of, max_leaves=4)
shapes: st.SearchStrategy[Shape] = st.recursive(
    _flat | _fork_of(_flat) | _fork_of(_flat | _sub_of(_flat | _fork_of(_flat))),
    lambda inner: _lines_of(inner) | _sub_of(inner),
    max_leaves=3,
)


@dataclass(frozen=True, slots=True)
class Passing:
    id: str

    async def __call__(self, state: State, ports: Ports) -> Patch:
        return {"trail": [self.id]}


def _says_yes(state: State) -> bool:
    """What the state's own choices say at this point of its trail; no once its patience is over."""
    trail, choices, patience = state["trail"], state["choices"], state["patience"]
    assert isinstance(trail, list)
    assert isinstance(choices, list)
    assert isinstance(patience, int)
    return len(trail) < patience and choices[len(trail) % len(choices)] == 1


@dataclass(slots=True)
class Decisions:
    """What routers decided, by node, in order: the checker takes it out again."""

    labels: dict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))
    wanted: dict[str, deque[bool]] = field(default_factory=lambda: defaultdict(deque))


@dataclass(slots=True)
class Drawing:
    decisions: Decisions
    prefix: str = "n"
    ids: list[str] = field(default_factory=list)
    bodies: dict[str, Passing | Sub] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    keepers: list[str] = field(default_factory=list)

    def new(self) -> str:
        """A node that has no way out yet."""
        name = f"{self.prefix}{len(self.ids)}"
        self.ids.append(name)
        self.bodies[name] = Passing(name)
        return name

    def render(self, shape: Shape, then: str) -> str:
        """Render `shape` with `then` after it; the id at which it begins."""
        match shape:
            case ("seq", first, second):
                return self.render(first, self.render(second, then))
            case ("choice", one, other):
                node = self.new()
                ways = {"left": self.render(one, then), "right": self.render(other, then) if other else then}
                self.edges.append(self._switch(node, ways))
                return node
            case ("loop", body):
                tail = self.new()
                self.keepers.append(tail)
                head = self.render(body, tail)
                self.edges.append(self._switch(tail, {"left": then, "right": head}))
                return head
            case ("fork", branches, style, inside_a_switch):
                return self._fork(branches, style, inside_a_switch, then)
            case ("sub", inner):
                node = self.new()
                nested = Drawing(self.decisions, f"{node}_").topology(inner, f"{node}_inner")
                self.bodies[node] = Sub(nested)
                self.edges.append(Goto(node, then))
                return node
        node = self.new()
        self.edges.append(Goto(node, then))
        return node

    def _fork(self, branches: list[Shape], style: str, inside_a_switch: bool, then: str) -> str:
        node, join = self.new(), self.new()
        self.edges.append(Goto(join, then))
        tails: list[str] = []
        heads: list[str] = []
        for place, branch in enumerate(branches):
            if style == "loose" and place > 0:
                heads.append(self.render(branch, join))
                continue
            tails.append(self.new())
            heads.append(self.render(branch, tails[-1]))
        self.edges.append(Join(tuple(tails), join, deferred=style != "plain"))
        fork = Fork(node, (heads[0],) if style == "optional" else tuple(heads))
        if style == "optional":
            fork = Fork(node, fork.branches, {head: self._wanted(head) for head in heads[1:]})
        self.edges.append(self._switch(node, {"left": fork, "right": then}) if inside_a_switch else fork)
        return node

    def _switch(self, node: str, ways: Mapping[str, str | Fork]) -> Switch:
        decisions = self.decisions

        async def route(state: State) -> Literal["left", "right"]:
            label: Literal["left", "right"] = "right" if _says_yes(state) else "left"
            decisions.labels[node].append(label)
            return label

        return Switch(node, route, ways)

    def _wanted(self, head: str) -> Any:
        decisions = self.decisions

        async def wanted(state: State) -> bool:
            is_wanted = _says_yes(state)
            decisions.wanted[head].append(is_wanted)
            return is_wanted

        return wanted

    def topology(self, shape: Shape, name: str = "drawn") -> Topology:
        entry = self.render(shape, END)
        limit = ["rounds" if one in self.keepers else "" for one in self.ids]
        return Topology(
            name=name,
            version=1,
            state=STATE,
            nodes=tuple(NodeSpec(one, self.bodies[one], limit=kept) for one, kept in zip(self.ids, limit, strict=True)),
            edges=tuple(self.edges),
            entries={FRESH: entry},
            limits=RunLimits(counted={"rounds": 9} if self.keepers else {}),
        )


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


async def run(topology: Topology, choices: list[int]) -> tuple[str, list[tuple[str, str]]]:
    """The status of a run and its events as (kind, node)."""
    ports = scripted_ports()
    drawn: Any = choices
    state = await compile_topology(topology).run(topology.state.initial(choices=drawn), FRESH, ports)
    return str(state["status"]), [(kind, str(data["node"])) for kind, data in ports.recorded.events]


@patient
@given(shapes, choices)
async def test_every_generated_topology_is_valid_and_ends_in_a_possible_order(shape: Shape, choices: list[int]) -> None:
    decisions = Decisions()
    topology = Drawing(decisions).topology(shape)
    assert validate(topology) == ()
    drawn = {(line.source, line.target) for line in lines_of(topology)}
    assert compile_topology(topology).wired_edges() == tuple(sorted(drawn)), "the manifest has exactly these"
    status, events = await run(topology, choices)
    assert status == "completed"
    walk = Walk(topology, decisions)
    for kind, node in events:
        walk.read(kind, node)
    walk.finish()
    assert await run(topology, choices) == (status, events), "a second run gives the same"


@settings(patient)
@given(st.data(), shapes, choices)
async def test_a_changed_topology_is_rejected_or_ordered(data: st.DataObject, shape: Shape, choices: list[int]) -> None:
    decisions = Decisions()
    changed = data.draw(changes(Drawing(decisions).topology(shape)))
    assume(validate(changed) == ())
    status, events = await run(changed, choices)
    walk = Walk(changed, decisions)
    for kind, node in events:
        walk.read(kind, node)
    if status != "limited":
        walk.finish()


@st.composite
def changes(draw: st.DrawFn, topology: Topology) -> Topology:
    """The topology with one edge led elsewhere, or a join or a fork of another kind; a cycle that this makes is
    limited by its steps, so that only what is about forks and joins decides."""
    place = draw(st.integers(0, len(topology.edges) - 1))
    targets = [*(node.id for node in topology.nodes), END]
    edge = draw(_changed(topology.edges[place], targets))
    return replace(
        topology,
        edges=(*topology.edges[:place], edge, *topology.edges[place + 1 :]),
        nodes=tuple(NodeSpec(node.id, node.run, limit="max_steps") for node in topology.nodes),
        limits=RunLimits(steps=60),
    )


def _changed(edge: Edge, targets: list[str]) -> st.SearchStrategy[Edge]:
    other = st.sampled_from(targets)
    match edge:
        case Goto():
            return other.map(lambda target: replace(edge, target=target))
        case Join():
            elsewhere = other.filter(lambda target: target != END).map(lambda target: replace(edge, target=target))
            return elsewhere | st.just(replace(edge, deferred=not edge.deferred))
        case Fork():
            heads = st.permutations(edge.heads).map(lambda heads: replace(edge, branches=tuple(heads), optional={}))
            return heads | other.map(lambda target: replace(edge, branches=(*edge.branches, target)))
        case Switch():
            label = st.sampled_from(list(edge.targets))
            return st.tuples(label, other).map(lambda led: replace(edge, targets={**edge.targets, led[0]: led[1]}))
