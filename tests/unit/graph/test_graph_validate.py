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
from perdure.graph.spec import END, FRESH, Fork, Goto, Join, NodeSpec, Outcome, RunLimits, State, Sub, Switch, Topology
from perdure.graph.state import ADDITIVE, Field, StateSchema
from perdure.graph.validate import validate
from tests.topologies.stand_ins import StandIn
from tests.unit.graph.sketches import always, left_or_right, sketch


@dataclass(frozen=True)
class SyncNode:
    """What must be refused: its `__call__` is not async."""

    def __call__(self, state: State, ports: Ports) -> Patch:
        """Nothing."""
        return {}


@dataclass
class MutableNode:
    """What must be refused: turns would share what it keeps."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Nothing."""
        return {}


def sync_router(state: State) -> Literal["left", "right"]:
    """What must be refused: it is not async."""
    return "left"


async def open_router(state: State) -> str:
    """What must be refused: nobody knows its labels."""
    return "left"


def sync_wanted(state: State) -> bool:
    """What must be refused: it is not async."""
    return True


def switch(source: str, left: Any, right: Any, router: Any = left_or_right, **more: Any) -> Switch:
    return Switch(source, router, {"left": left, "right": right}, **more)


CHAIN = (Goto("a", "b"), Goto("b", END))
FORKED = (Fork("a", ("b", "c")), Join(("b", "c"), "d"), Goto("d", END))
NESTED = sketch("x", Goto("x", END), name="inner", statuses={})
PAUSING = sketch("x", Goto("x", END), name="inner", statuses={}, pauses="x", entries={FRESH: "x", "approval": "x"})
FAILING = replace(NESTED, statuses={"lost": Outcome.FAILED})

FAULTS: tuple[tuple[str, str, Topology], ...] = (
    ("bad_name", "Bad-Name", sketch("a", Goto("a", END), name="Bad-Name")),
    ("bad_name", "__a", sketch("__a", Goto("__a", END))),
    ("bad_name", "START", sketch("START", Goto("START", END))),
    ("reserved_name", "end", sketch("a end", Goto("a", "end"), Goto("end", END))),
    ("reserved_name", "subgraph", sketch("subgraph", Goto("subgraph", END))),
    ("duplicate_node", "a", sketch("a", Goto("a", END), extra=(NodeSpec("a", StandIn("a")),))),
    ("duplicate_field", "x", sketch("a", Goto("a", END), state=StateSchema((Field("x"), Field("x"))))),
    ("bad_name", "X-Y", sketch("a", Goto("a", END), state=StateSchema((Field("X-Y"),)))),
    ("kernel_field", "error", sketch("a", Goto("a", END), state=StateSchema((Field("error", [], ADDITIVE),)))),
    ("default_not_json", "x", sketch("a", Goto("a", END), state=StateSchema((Field("x", (1,)),)))),  # type: ignore[arg-type]
    ("unknown_field", "x", sketch("a", Goto("a", END), advice=("x",))),
    ("kernel_status", "failed", sketch("a", Goto("a", END), statuses={"failed": Outcome.AWAITING})),
    ("sync_node", "a", sketch("a", Goto("a", END), bodies={"a": SyncNode()})),
    ("mutable_node", "a", sketch("a", Goto("a", END), bodies={"a": MutableNode()})),
    ("unknown_source", "z", sketch("a", Goto("a", END), Goto("z", END))),
    ("unknown_target", "z", sketch("a", switch("a", "z", END))),
    ("no_way_out", "b", sketch("a b", Goto("a", "b"))),
    ("several_ways_out", "a", sketch("a b", *CHAIN, Goto("a", END))),
    ("several_ways_out", "b", sketch("a b c d", *FORKED, Goto("b", END))),
    ("sync_router", "a", sketch("a b", switch("a", "b", END, sync_router), Goto("b", END))),
    ("open_labels", "a", sketch("a b", switch("a", "b", END, open_router), Goto("b", END))),
    ("no_target", "a", sketch("a", Switch("a", left_or_right, {"left": END}))),
    ("unknown_label", "a", sketch("a", Switch("a", left_or_right, {"left": END, "right": END, "up": END}))),
    ("unknown_label", "a", sketch("a", switch("a", END, END, kinds={"up": "X"}))),
    ("unknown_label", "a", sketch("a", switch("a", END, END, conditions={"up": "X"}))),
    (
        "sync_router",
        "a",
        sketch("a b c d", Fork("a", ("b",), {"c": sync_wanted}), Join(("b", "c"), "d", True), Goto("d", END)),  # type: ignore[dict-item]
    ),
    ("no_fresh_entry", "sketch", sketch("a", Goto("a", END), entries={"approval": "a"}, pauses="a")),
    ("unknown_entry", "nap", sketch("a", Goto("a", END), entries={FRESH: "a", "nap": "a"}, pauses="a")),
    ("unknown_target", "z", sketch("a", Goto("a", END), entries={FRESH: "z"})),
    ("no_way_back", "a", sketch("a", Goto("a", END), pauses="a")),
    ("nothing_pauses", "approval", sketch("a", Goto("a", END), entries={FRESH: "a", "approval": "a"})),
    ("unreachable", "b", sketch("a b", Goto("a", END), Goto("b", END))),
    ("endless", "b", sketch("a b c", switch("a", "b", END), Goto("b", "c"), Goto("c", "b"))),
    ("bad_limit", "max_steps", sketch("a", Goto("a", END), limits=RunLimits(steps=0))),
    ("unknown_limit", "a", sketch("a", Goto("a", END), limit="a", limits=RunLimits())),
    ("unkept_limit", "rounds", sketch("a", Goto("a", END), limits=RunLimits(counted={"rounds": 3}))),
    ("unlimited_cycle", "a", sketch("a b", switch("a", "b", END), Goto("b", "a"))),
    ("unlimited_cycle", "a", sketch("a", switch("a", "a", END))),
    ("one_branch", "a", sketch("a b d", Fork("a", ("b",)), Join(("b",), "d"), Goto("d", END))),
    (
        "no_sure_branch",
        "a",
        sketch("a b c d", Fork("a", (), {"b": always, "c": always}), Join(("b", "c"), "d", True), Goto("d", END)),
    ),
    ("same_branch_twice", "b", sketch("a b d", Fork("a", ("b", "b")), Join(("b",), "d"), Goto("d", END))),
    (
        "foreign_fork",
        "a",
        sketch("a b c d", switch("a", END, Fork("b", ("c", "d"))), Goto("b", END), Goto("c", END), Goto("d", END)),
    ),
    ("empty_branch", "d", sketch("a b d", Fork("a", ("b", "d")), Join(("b",), "d", True), Goto("d", END))),
    ("branch_ends", "c", sketch("a b c d", Fork("a", ("b", "c")), Join(("b",), "d"), Goto("c", END), Goto("d", END))),
    (
        "nested_fork",
        "b",
        sketch(
            "a b c d e f",
            *(Fork("a", ("b", "c")), Fork("b", ("d", "e")), Join(("d", "e", "c"), "f"), Goto("f", END)),
        ),
    ),
    ("nested_fork", "a", sketch("a b c d", Fork("a", ("b", "c")), Goto("b", "a"), Join(("c",), "d"), Goto("d", END))),
    (
        "no_join",
        "c",
        sketch("a b c d", Fork("a", ("b", "c")), Join(("b",), "d"), switch("c", "c", END), Goto("d", END)),
    ),
    (
        "several_joins",
        "a",
        sketch(
            "a b c d e",
            *(Fork("a", ("b", "c")), Join(("b",), "d"), Join(("c",), "e"), Goto("d", END), Goto("e", END)),
        ),
    ),
    (
        "shared_node",
        "d",
        sketch("a b c d e", Fork("a", ("b", "c")), Goto("b", "d"), Goto("c", "d"), Join(("d",), "e"), Goto("e", END)),
    ),
    ("no_fork", "a", sketch("a b", Join(("a",), "b"), Goto("b", END))),
    (
        "plain_join",
        "d",
        sketch("a b c d", Fork("a", ("b",), {"c": always}), Join(("b", "c"), "d"), Goto("d", END)),
    ),
    (
        "plain_join",
        "f",
        sketch(
            "a b c d e f",
            *(Fork("a", ("b", "c")), switch("b", "d", "e"), Join(("d", "e", "c"), "f"), Goto("f", END)),
        ),
    ),
    (
        "plain_join",
        "e",
        sketch(
            "a b c d e",
            switch("a", Fork("a", ("b", "c")), Fork("a", ("b", "d"))),
            Join(("b", "c", "d"), "e"),
            Goto("e", END),
        ),
    ),
    (
        "join_bypassed",
        "d",
        sketch("x a b c d", switch("x", "a", "d"), *FORKED),
    ),
    (
        "pause_in_fork",
        "b",
        sketch("a b c d", *FORKED, pauses="b", entries={FRESH: "a", "approval": "a"}),
    ),
    (
        "entry_in_fork",
        "b",
        sketch("a b c d", *FORKED, pauses="d", entries={FRESH: "a", "approval": "b"}),
    ),
    ("entered_from_outside", "b", sketch("x a b c d", switch("x", "a", "b"), *FORKED)),
    (
        "entered_from_outside",
        "b",
        sketch("a b c d", switch("a", Fork("a", ("b", "c")), "b"), Join(("b", "c"), "d"), Goto("d", END)),
    ),
    (
        "other_state",
        "n",
        sketch("n", Goto("n", END), bodies={"n": Sub(replace(NESTED, state=StateSchema((Field("x"),))))}),
    ),
    ("pausing_sub", "n", sketch("n", Goto("n", END), bodies={"n": Sub(PAUSING)})),
    (
        "other_statuses",
        "n",
        sketch("n", Goto("n", END), bodies={"n": Sub(replace(NESTED, statuses={"x": Outcome.FAILED}))}),
    ),
    ("no_way_out", "n/x", sketch("n", Goto("n", END), bodies={"n": Sub(replace(NESTED, edges=()))})),
)


@pytest.mark.parametrize(("rule", "subject", "topology"), FAULTS, ids=[f"{rule} at {at}" for rule, at, _ in FAULTS])
def test_a_fault_is_found_and_named(rule: str, subject: str, topology: Topology) -> None:
    assert (rule, subject) in [(fault.rule, fault.subject) for fault in validate(topology)]


SOUND: dict[str, Topology] = {
    "a chain": sketch("a b", *CHAIN),
    "a switch to END": sketch("a b", switch("a", "b", END), Goto("b", END)),
    "a loop with a limit": sketch("a b", switch("a", "b", END), Goto("b", "a"), limit="b"),
    "a loop limited by steps": replace(
        sketch("a", switch("a", "a", END)), nodes=(NodeSpec("a", StandIn("a"), limit="max_steps"),)
    ),
    "a fork and a plain join": sketch("a b c d", *FORKED),
    "a fork inside a switch": sketch(
        "a b c d", switch("a", END, Fork("a", ("b", "c"))), Join(("b", "c"), "d"), Goto("d", END)
    ),
    "an optional branch and a deferred join": sketch(
        "a b c d", Fork("a", ("b",), {"c": always}), Join(("b", "c"), "d", deferred=True), Goto("d", END)
    ),
    "a deferred join that a direct edge reaches too": sketch(
        "x a b c d",
        *(switch("x", "a", "d"), Fork("a", ("b", "c")), Join(("b", "c"), "d", deferred=True), Goto("d", END)),
    ),
    "a branch with two ways to its deferred join": sketch(
        "a b c d e f",
        *(Fork("a", ("b", "c")), switch("b", "d", "e"), Join(("d", "e", "c"), "f", deferred=True), Goto("f", END)),
    ),
    "a loop inside a branch": sketch(
        "a b c d e", Fork("a", ("b", "c")), switch("b", "b", "e"), Join(("e", "c"), "d"), Goto("d", END), limit="b"
    ),
    "a fork inside a loop": sketch(
        "a b c d", Fork("a", ("b", "c")), Join(("b", "c"), "d"), switch("d", "a", END), limit="d"
    ),
    "a nested topology": sketch("n", Goto("n", END), bodies={"n": Sub(NESTED)}),
    "a pause with its entry": sketch("a b", *CHAIN, pauses="b", entries={FRESH: "a", "approval": "b"}),
}


@pytest.mark.parametrize("topology", SOUND.values(), ids=SOUND)
def test_a_sound_topology_has_no_fault(topology: Topology) -> None:
    assert validate(topology) == ()


def test_every_rule_of_the_validator_has_a_row() -> None:
    source = Path(str(perdure.graph.validate.__file__)).read_text()
    rules = set(re.findall(r'Fault\(\s*"(\w+)"', source))
    assert len(rules) > 40
    assert {rule for rule, _, _ in FAULTS} == rules


def test_all_faults_are_reported_at_once_with_their_names() -> None:
    broken = sketch(
        *("a b c", switch("a", "z", END, sync_router), Goto("b", "b")),
        bodies={"a": SyncNode()},
        pauses="a",
    )
    with pytest.raises(InvariantBroken) as refused:
        compile_topology(broken)
    assert refused.value.code == "topology_invalid"
    listed: Any = refused.value.details["faults"]
    rules = {"sync_node", "sync_router", "unknown_target", "endless", "no_way_out", "unreachable", "no_way_back"}
    assert {fault["rule"] for fault in listed} >= rules
    assert {fault["subject"] for fault in listed} >= {"a", "b", "c", "z"}


def test_an_async_function_is_a_node_too() -> None:
    async def run(state: State, ports: Ports) -> Patch:
        return {}

    assert validate(sketch("a", Goto("a", END), bodies={"a": run})) == ()
