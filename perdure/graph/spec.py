"""A topology as a value: nodes, edges, entries, limits. Everything else is drawn, checked or compiled from it.

Two rules for editors. A node id is a public string; a change of one raises the topology's version. A node has exactly
one outgoing edge: one Goto, Switch or Fork, or one Join among whose sources it is.

The labels of a router are the members of its return type, a Literal or a StrEnum. mypy proves that it returns nothing
else. The validator proves that each label has a target.
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
"""The start of every run, in manifests and drawings."""
END: Final = "END"
"""The end of every run: a target, never a node."""
FRESH: Final = "fresh"
"""The entry of a new turn. Every other entry, except those of renewed runs, has the name of the kind of pause from
which it resumes."""
RENEWED: Final = "renewed"
"""The entry of a run that continues one which became long. That run ended before this node."""
RENEWED_IN_SYNTHESIS: Final = "renewed_synthesis"
"""The entry of such a run before the model call of a second phase."""
RENEWALS: Final = (RENEWED, RENEWED_IN_SYNTHESIS)

State = Mapping[str, JsonValue]
Router = Callable[[State], Awaitable[str]]
"""An async, pure function that returns one of its declared labels."""
Wanted = Callable[[State], Awaitable[bool]]
"""An async, pure function that returns whether an optional branch runs."""


class Node(Protocol):
    """The body of a node: a frozen dataclass, so that concurrent turns share no state through it."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns a partial update of the state. External failures are part of the update, never exceptions."""
        ...


class Outcome(StrEnum):
    """The state in which a run of a graph ended, as the engine names it."""

    RUNNING = "running"
    COMPLETED = "completed"
    AWAITING = "awaiting"
    FAILED = "failed"
    LIMITED = "limited"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Sub:
    """A topology as the body of a node, over the same state.

    It runs as one node. It cannot pause, has only the fresh entry, and counts as one step of its branch.
    """

    topology: "Topology"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node of a topology, with its position in the drawings."""

    id: str
    run: Node | Sub
    pauses: bool = False
    """True if a run can pause at this node."""
    purpose: str = ""
    """The purpose in one line."""
    limit: str = ""
    """The declared limit with which this node ends the cycles through it."""
    spanned: bool = True
    """True if a trace has a span for this node. A node that only decides needs none."""
    writes: tuple[str, ...] | None = None
    """The fields that this node declares to write, or None for any. Another field raises an alarm and is written."""
    reaches: tuple[str, ...] | None = None
    """The ports that this node declares to use, of `model` and `memory`; None for both. Another port raises an alarm
    and answers."""
    advised: bool = False
    """True if the node can use the topology's `advice`. Another node that reads advice raises an alarm and gets it."""
    calls: tuple[ActivityRef[Any, Any], ...] = ()
    """The activities that the node calls, for the drawings. Every test that runs the node holds it to them."""


@dataclass(frozen=True, slots=True)
class Goto:
    """An edge to a fixed next node."""

    source: str
    target: str
    kind: str = ""
    """The name of this kind of edge in the manifest, if it has one. All edges have this field."""
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Fork:
    """An edge to several next nodes together: all `branches`, and the `optional` ones that are wanted."""

    source: str
    branches: tuple[str, ...]
    optional: Mapping[str, Wanted] = field(default_factory=dict)
    kind: str = ""
    condition: str = ""

    @property
    def heads(self) -> tuple[str, ...]:
        """Returns the first node of every branch, optional ones last."""
        return (*self.branches, *self.optional)


@dataclass(frozen=True, slots=True)
class Switch:
    """An edge to one of several targets, by the label that a router returns."""

    source: str
    router: Router
    targets: Mapping[str, str | Fork]
    """A node, END, or a Fork from the same source for each label."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """The name of the kind of edge for each label that has one."""
    conditions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Join:
    """The node at which the branches of a fork meet.

    A plain join runs `target` when all `sources` have run. It is for forks without optional branches only: a plain join
    with a branch that was not scheduled ends the run silently (measured). A deferred join runs `target` when all
    scheduled branches have run, however many there are. Other edges can lead to its target too.
    """

    sources: tuple[str, ...]
    target: str
    deferred: bool = False
    kind: str = ""
    condition: str = ""


Edge = Goto | Switch | Fork | Join


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The limits that end a run."""

    steps: int = 500
    """Steps of one run of the graph; the branches of a fork share theirs. A pause starts a new count, and so does a
    renewal. In a topology with an entry for it, a run is renewed after half of them, so its loops do not reach it."""
    steps_setting: str = "max_steps"
    """The name of that limit in the error."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Limits that nodes enforce with a counter in the state, with their defaults."""

    def names(self) -> tuple[str, ...]:
        """Returns every limit that a node can declare to end its cycles."""
        return (*self.counted, self.steps_setting)


@dataclass(frozen=True, slots=True)
class Topology:
    """A graph as a value; it is built once at import and shared."""

    name: str
    version: int
    state: StateSchema
    nodes: tuple[NodeSpec, ...]
    """All nodes, in the order in which branches start, their patches merge and their failures are raised."""
    edges: tuple[Edge, ...]
    entries: Mapping[str, str]
    """The node at which a run enters: for `fresh`, for each kind of pause that the topology uses, and for `renewed` and
    `renewed_synthesis` if long runs are renewed."""
    limits: RunLimits = RunLimits()
    strict: bool = False
    """True for the strict profile. The first answer of a provider is final, even an error, and no other model is
    called. If a worker dies, there is no answer, so its work is repeated."""
    advice: tuple[str, ...] = ()
    """Fields that only inform. No router uses them, and no node uses them unless it is `advised`."""
    metadata: tuple[str, ...] = ()
    """Names of request metadata that only this topology reads. Every topology reads those of `memory.load`."""
    statuses: Mapping[str, Outcome] = field(default_factory=dict)
    """The topology's statuses in addition to those of `Outcome`, with their meaning for the engine."""

    @property
    def renews(self) -> bool:
        """Returns whether long runs are renewed. The state that passes to the next run then has ranges of rounds."""
        return RENEWED in self.entries

    def renewal_before(self, node_id: str) -> str:
        """Returns the entry of the run that continues before this node; empty if no run ends there."""
        return next((entry for entry in RENEWALS if self.entries.get(entry) == node_id), "")

    def outcome(self, state: State) -> Outcome:
        """Returns the meaning of the state's `status`.

        Raises: InvariantBroken `unknown_status`.
        """
        known = {outcome.value: outcome for outcome in Outcome} | dict(self.statuses)
        status = state["status"]
        if isinstance(status, str) and status in known:
            return known[status]
        raise InvariantBroken("unknown_status", f"Topology `{self.name}` has no status {status!r}.")
