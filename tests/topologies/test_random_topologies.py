"""Whatever the validator accepts runs to its end, in an order that the edges allow."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from perdure.graph.compile import compile_topology
from perdure.graph.manifest import lines_of
from perdure.graph.spec import END, FRESH, Edge, Fork, Goto, Join, NodeSpec, RunLimits, Switch, Topology
from perdure.graph.validate import validate
from tests.topologies.drawings import Decisions, Drawing, Shape, Walk, shapes
from tests.topologies.stand_ins import scripted_ports

choices = st.lists(st.integers(0, 1), min_size=1, max_size=12)
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
