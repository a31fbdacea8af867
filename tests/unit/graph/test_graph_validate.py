"""The validator: one row for every fault, and all faults of a topology at once."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

import perdure.graph.validate
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.messages import Patch
from perdure.graph.compile import compile_topology
from perdure.graph.ports import Ports
from perdure.graph.spec import END, FRESH, Fork, NodeSpec, Outcome, RunLimits, State, Sub, Switch, Topology
from perdure.graph.state import ADDITIVE, Field, StateSchema
from perdure.graph.validate import validate
from tests.topologies.stand_ins import StandIn
from tests.unit.graph.sketches import always, left_or_right, sketch, ways

CHAIN, FORKED, OPTIONAL = "a>b b>.", "a>b+c b+c>d d>.", "b+c>>d d>."
NESTED = sketch("x", "x>.", name="inner", statuses={})
PAUSING = sketch("x", "x>.", name="inner", statuses={}, pauses="x", entries={FRESH: "x", "approval": "x"})


@dataclass(frozen=True)
class SyncNode:
    """A node to be refused: its `__call__` is not async."""

    def __call__(self, state: State, ports: Ports) -> Patch:
        return {}


@dataclass
class MutableNode:
    """A node to be refused: turns would share its state."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        return {}


def sync_router(state: State) -> Literal["left", "right"]:
    """A node to be refused: it is not async."""
    return "left"


async def open_router(state: State) -> str:
    """A router to be refused: its labels are unknown."""
    return "left"


def sync_wanted(state: State) -> bool:
    """A node to be refused: it is not async."""
    return True


def switch(source: str, left: Any, right: Any, router: Any = left_or_right, **more: Any) -> Switch:
    return Switch(source, router, {"left": left, "right": right}, **more)


def one(**more: Any) -> Topology:
    """A valid node, with other settings."""
    return sketch("a", "a>.", **more)


def holding(nested: Topology) -> Topology:
    return sketch("n", "n>.", bodies={"n": Sub(nested)})


FAULTS: tuple[tuple[str, str, Topology], ...] = (
    ("bad_name", "Bad-Name", one(name="Bad-Name")),
    ("bad_name", "__a", sketch("__a", "__a>.")),
    ("bad_name", "START", sketch("START", "START>.")),
    ("reserved_name", "end", sketch("a end", "a>end end>.")),
    ("reserved_name", "subgraph", sketch("subgraph", "subgraph>.")),
    ("duplicate_node", "a", one(extra=(NodeSpec("a", StandIn("a")),))),
    ("duplicate_field", "x", one(state=StateSchema((Field("x"), Field("x"))))),
    ("bad_name", "X-Y", one(state=StateSchema((Field("X-Y"),)))),
    ("kernel_field", "error", one(state=StateSchema((Field("error", [], ADDITIVE),)))),
    ("default_not_json", "x", one(state=StateSchema((Field("x", (1,)),)))),  # type: ignore[arg-type]
    ("unknown_field", "x", one(advice=("x",))),
    ("kernel_status", "failed", one(statuses={"failed": Outcome.AWAITING})),
    ("sync_node", "a", one(bodies={"a": SyncNode()})),
    ("mutable_node", "a", one(bodies={"a": MutableNode()})),
    ("unknown_source", "z", sketch("a", "a>. z>.")),
    ("unknown_target", "z", sketch("a", switch("a", "z", END))),
    ("no_way_out", "b", sketch("a b", "a>b")),
    ("several_ways_out", "a", sketch("a b", CHAIN, "a>.")),
    ("several_ways_out", "b", sketch("a b c d", FORKED, "b>.")),
    ("sync_router", "a", sketch("a b", switch("a", "b", END, sync_router), "b>.")),
    ("open_labels", "a", sketch("a b", switch("a", "b", END, open_router), "b>.")),
    ("no_target", "a", sketch("a", Switch("a", left_or_right, {"left": END}))),
    ("unknown_label", "a", sketch("a", Switch("a", left_or_right, {"left": END, "right": END, "up": END}))),
    ("unknown_label", "a", sketch("a", switch("a", END, END, kinds={"up": "X"}))),
    ("unknown_label", "a", sketch("a", switch("a", END, END, conditions={"up": "X"}))),
    ("sync_router", "a", sketch("a b c d", Fork("a", ("b",), {"c": sync_wanted}), OPTIONAL)),  # type: ignore[dict-item]
    ("no_fresh_entry", "sketch", one(entries={"approval": "a"}, pauses="a")),
    ("unknown_entry", "nap", one(entries={FRESH: "a", "nap": "a"}, pauses="a")),
    ("unknown_target", "z", one(entries={FRESH: "z"})),
    ("no_way_back", "a", one(pauses="a")),
    ("nothing_pauses", "approval", one(entries={FRESH: "a", "approval": "a"})),
    ("unreachable", "b", sketch("a b", "a>. b>.")),
    ("endless", "b", sketch("a b c", switch("a", "b", END), "b>c c>b")),
    ("bad_limit", "max_steps", one(limits=RunLimits(steps=0))),
    ("unknown_limit", "a", one(limit="a", limits=RunLimits())),
    ("unkept_limit", "rounds", one(limits=RunLimits(counted={"rounds": 3}))),
    ("unlimited_cycle", "a", sketch("a b", switch("a", "b", END), "b>a")),
    ("unlimited_cycle", "a", sketch("a", switch("a", "a", END))),
    ("one_branch", "a", sketch("a b d", "a>b+ b+>d d>.")),
    ("no_sure_branch", "a", sketch("a b c d", Fork("a", (), {"b": always, "c": always}), OPTIONAL)),
    ("same_branch_twice", "b", sketch("a b d", "a>b+b b+>d d>.")),
    ("foreign_fork", "a", sketch("a b c d", switch("a", END, Fork("b", ("c", "d"))), "b>. c>. d>.")),
    ("empty_branch", "d", sketch("a b d", "a>b+d b+>>d d>.")),
    ("branch_ends", "c", sketch("a b c d", "a>b+c b+>d c>. d>.")),
    ("nested_fork", "b", sketch("a b c d e f", "a>b+c b>d+e d+e+c>f f>.")),
    ("nested_fork", "a", sketch("a b c d", "a>b+c b>a c+>d d>.")),
    ("no_join", "c", sketch("a b c d", "a>b+c b+>d d>.", switch("c", "c", END))),
    ("several_joins", "a", sketch("a b c d e", "a>b+c b+>d c+>e d>. e>.")),
    ("shared_node", "d", sketch("a b c d e", "a>b+c b>d c>d d+>e e>.")),
    ("no_fork", "a", sketch("a b", "a+>b b>.")),
    ("plain_join", "d", sketch("a b c d", Fork("a", ("b",), {"c": always}), "b+c>d d>.")),
    ("plain_join", "f", sketch("a b c d e f", "a>b+c", switch("b", "d", "e"), "d+e+c>f f>.")),
    ("plain_join", "e", sketch("a b c d e", switch("a", ways("a>b+c")[0], ways("a>b+d")[0]), "b+c+d>e e>.")),
    ("join_bypassed", "d", sketch("x a b c d", switch("x", "a", "d"), FORKED)),
    ("pause_in_fork", "b", sketch("a b c d", FORKED, pauses="b", entries={FRESH: "a", "approval": "a"})),
    ("entry_in_fork", "b", sketch("a b c d", FORKED, pauses="d", entries={FRESH: "a", "approval": "b"})),
    ("entered_from_outside", "b", sketch("x a b c d", switch("x", "a", "b"), FORKED)),
    ("entered_from_outside", "b", sketch("a b c d", switch("a", ways("a>b+c")[0], "b"), "b+c>d d>.")),
    ("other_state", "n", holding(replace(NESTED, state=StateSchema((Field("x"),))))),
    ("pausing_sub", "n", holding(PAUSING)),
    ("other_statuses", "n", holding(replace(NESTED, statuses={"x": Outcome.FAILED}))),
    ("no_way_out", "n/x", holding(replace(NESTED, edges=()))),
)


@pytest.mark.parametrize(("rule", "subject", "topology"), FAULTS, ids=[f"{rule} at {at}" for rule, at, _ in FAULTS])
def test_a_fault_is_found_and_named(rule: str, subject: str, topology: Topology) -> None:
    assert (rule, subject) in [(fault.rule, fault.subject) for fault in validate(topology)]


SOUND: dict[str, Topology] = {
    "a chain": sketch("a b", CHAIN),
    "a switch to END": sketch("a b", switch("a", "b", END), "b>."),
    "a loop with a limit": sketch("a b", switch("a", "b", END), "b>a", limit="b"),
    "a loop limited by steps": replace(
        sketch("a", switch("a", "a", END)), nodes=(NodeSpec("a", StandIn("a"), limit="max_steps"),)),
    "a fork and a plain join": sketch("a b c d", FORKED),
    "a fork inside a switch": sketch("a b c d", switch("a", END, ways("a>b+c")[0]), "b+c>d d>."),
    "an optional branch and a deferred join": sketch("a b c d", Fork("a", ("b",), {"c": always}), OPTIONAL),
    "a deferred join that a direct edge reaches too": sketch("x a b c d", switch("x", "a", "d"), "a>b+c", OPTIONAL),
    "a branch with two ways to its deferred join": sketch(
        "a b c d e f", "a>b+c", switch("b", "d", "e"), "d+e+c>>f f>."),
    "a loop inside a branch": sketch("a b c d e", "a>b+c", switch("b", "b", "e"), "e+c>d d>.", limit="b"),
    "a fork inside a loop": sketch("a b c d", "a>b+c b+c>d", switch("d", "a", END), limit="d"),
    "a nested topology": holding(NESTED),
    "a pause with its entry": sketch("a b", CHAIN, pauses="b", entries={FRESH: "a", "approval": "b"}),
}  # fmt: skip


@pytest.mark.parametrize("topology", SOUND.values(), ids=SOUND)
def test_a_sound_topology_has_no_fault(topology: Topology) -> None:
    assert validate(topology) == ()


def test_every_rule_of_the_validator_has_a_row() -> None:
    rules = set(re.findall(r'Fault\(\s*"(\w+)"', Path(str(perdure.graph.validate.__file__)).read_text()))
    assert len(rules) > 40
    assert {rule for rule, _, _ in FAULTS} == rules


def test_all_faults_are_reported_at_once_with_their_names() -> None:
    broken = sketch("a b c", switch("a", "z", END, sync_router), "b>b", bodies={"a": SyncNode()}, pauses="a")
    with pytest.raises(InvariantBroken) as refused:
        compile_topology(broken)
    assert refused.value.code == "topology_invalid"
    listed: Any = refused.value.details["faults"]
    rules = {"sync_node", "sync_router", "unknown_target", "endless", "no_way_out", "unreachable", "no_way_back"}
    assert {fault["rule"] for fault in listed} >= rules
    assert {fault["subject"] for fault in listed} >= {"a", "b", "c", "z"}
