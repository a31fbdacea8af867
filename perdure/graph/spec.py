"""A topology as a value: nodes, edges, entries, limits. Everything else is drawn, checked or compiled from it.

Two rules for editors. A node id is a public string: changing one raises the topology's version. A node has exactly
one way out: one Goto, Switch or Fork, or its place among the sources of one Join.

The labels of a router are the members of its return type, a Literal or a StrEnum: mypy proves that it returns
nothing else, the validator proves that each has a target.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from pydantic import JsonValue

from perdure.contracts.activities import ActivityRef
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.messages import Patch
from perdure.graph.ports import Ports
from perdure.graph.state import StateSchema

START: Final = "START"
"""Where every run begins, in manifests and pictures."""
END: Final = "END"
"""Where every run ends; a target, never a node."""
FRESH: Final = "fresh"
"""The entry of a turn that starts; every other entry is named by the kind of pause that it resumes from."""

State = Mapping[str, JsonValue]
Router = Callable[[State], Awaitable[str]]
"""`async def`, pure, returns one of its declared labels."""
Wanted = Callable[[State], Awaitable[bool]]
"""`async def`, pure: whether an optional branch runs."""


class Node(Protocol):
    """What a node does: a frozen dataclass, so that concurrent turns share nothing through it (S0-02)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A partial update of the state; failures of the outside come back in it, never as an exception."""
        ...


class Outcome(StrEnum):
    """How a run of a graph ended, in the engine's words."""

    RUNNING = "running"
    COMPLETED = "completed"
    AWAITING = "awaiting"
    FAILED = "failed"
    LIMITED = "limited"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Sub:
    """The body of a node that is a topology of its own, over the same state. It runs as one node: inside it no
    pause and only the fresh entry, outside it one step of a branch."""

    topology: "Topology"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node and its place in the pictures."""

    id: str
    run: Node | Sub
    pauses: bool = False
    """Whether a run may end here to wait for somebody."""
    purpose: str = ""
    """One line."""
    limit: str = ""
    """The declared limit by which this node ends the cycles through it."""
    spanned: bool = True
    """Whether a trace has a span for it; one that only decides needs none (S3-34)."""
    writes: tuple[str, ...] | None = None
    """The fields that are this node's to write; None for any. Another is an alarm, and stands."""
    reaches: tuple[str, ...] | None = None
    """Which of `model` and `memory` it may use; None for both. The other is an alarm, and answers."""
    advised: bool = False
    """Whether it may go by the topology's `advice`. Another one that reads it is an alarm, and has it."""
    calls: tuple[ActivityRef[Any, Any], ...] = ()
    """The activities by which it reaches outside, for the pictures; every test that plays it holds it to them."""


@dataclass(frozen=True, slots=True)
class Goto:
    """Always the same next node."""

    source: str
    target: str
    kind: str = ""
    """The seed's own name for this edge, where it has one; so for every edge."""
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Fork:
    """Several next nodes at once: all of `branches`, and those `optional` ones that are wanted."""

    source: str
    branches: tuple[str, ...]
    optional: Mapping[str, Wanted] = field(default_factory=dict)
    kind: str = ""
    condition: str = ""

    @property
    def heads(self) -> tuple[str, ...]:
        """The first node of every branch, optional ones last."""
        return (*self.branches, *self.optional)


@dataclass(frozen=True, slots=True)
class Switch:
    """One of several ways, by the label that a router returns."""

    source: str
    router: Router
    targets: Mapping[str, str | Fork]
    """Per label a node, END, or a Fork from the same source."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Per label, where the seed names the edge."""
    conditions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Join:
    """Where the branches of a fork meet.

    Plain: `target` runs once all `sources` have; only after a fork without optional branches. Deferred: once
    everything that was scheduled has run, however many branches that was; other edges may lead there too. (Tried:
    a plain join with a branch that was not scheduled ends the run silently.)
    """

    sources: tuple[str, ...]
    target: str
    deferred: bool = False
    kind: str = ""
    condition: str = ""


Edge = Goto | Switch | Fork | Join


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What ends a run that would go on."""

    steps: int = 500
    """Steps of one run of the graph; the branches of a fork share theirs. A pause starts a new count."""
    steps_setting: str = "max_steps"
    """What the error calls that limit."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Limits that nodes keep themselves by a counter in the state, with their defaults."""

    def names(self) -> tuple[str, ...]:
        """Every limit that a node may declare as the one that ends its cycles."""
        return (*self.counted, self.steps_setting)


@dataclass(frozen=True, slots=True)
class Topology:
    """A graph as a value; build one at import and share it."""

    name: str
    version: int
    state: StateSchema
    nodes: tuple[NodeSpec, ...]
    """In the order in which branches start, their patches join and their failures surface."""
    edges: tuple[Edge, ...]
    entries: Mapping[str, str]
    """`fresh` and, for each kind of pause that the topology uses, the node at which a resumed run enters."""
    limits: RunLimits = RunLimits()
    strict: bool = False
    """The strict profile: what a provider says is said once, an error too, and no other model is asked. The death of a
    worker is no answer, so its work is done again (S3-13)."""
    advice: tuple[str, ...] = ()
    """Fields that only inform: no router goes by them, and no node that does not say so (S3-29)."""
    statuses: Mapping[str, Outcome] = field(default_factory=dict)
    """The topology's own statuses beside those of `Outcome`, and what they mean to the engine."""

    def outcome(self, state: State) -> Outcome:
        """What the state's `status` means.

        Raises: InvariantBroken `unknown_status`.
        """
        known = {outcome.value: outcome for outcome in Outcome} | dict(self.statuses)
        status = state["status"]
        if isinstance(status, str) and status in known:
            return known[status]
        raise InvariantBroken("unknown_status", f"Topology `{self.name}` has no status {status!r}.")
