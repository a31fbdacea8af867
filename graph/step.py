"""One step of a run: what surrounds every node, whatever the node does.

Nodes do not raise by contract. If one does, its exception is let through, so that the workflow task fails and a
fixed deploy goes on from there. Inside a fork it is held until the branches have ended: of several that fail
together the first in the topology's order surfaces, whichever was faster.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from contracts.alarms import MOST_ALARMS, Alarm
from contracts.digests import canonical_json
from contracts.errors import InvariantBroken, Problem
from contracts.events import ALARM, NODE_END, NODE_START
from contracts.messages import PREVIEW_CHARACTERS, Patch, Role
from graph.ports import Ports
from graph.spec import NodeSpec, State, Topology
from graph.watch import unlawful


class StepsExhausted(Exception):
    """A run would have taken more steps than its topology allows."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        super().__init__(topology.name)

    def problem(self) -> dict[str, JsonValue]:
        """The end of the run as data, naming the setting (S2-44)."""
        limits, name = self.topology.limits, self.topology.name
        told = f"The run was ended after {limits.steps} steps, the limit {limits.steps_setting} of {name}."
        return Problem(code="iteration_limit", message=told).model_dump(mode="json")


@dataclass(slots=True)
class Run:
    """What one run keeps beside its state: it is passed along in LangGraph's config and never stored."""

    entry: str
    ports: Ports
    state: State
    """The state after the last finished step."""
    path: str = ""
    """Before the ids of nodes of a nested topology."""
    failures: dict[str, Exception] = field(default_factory=dict)
    """By the id of the node that failed inside the current fork."""
    failed_branches: set[str] = field(default_factory=set)
    wrote: dict[str, frozenset[str]] = field(default_factory=dict)
    """Field that only one branch of the current fork may write -> the branch that did."""
    apart: dict[str, Ports] = field(default_factory=dict)
    """By the head of a branch of the current fork: the ports that it calls by."""
    alarmed: set[str] = field(default_factory=set)
    """What was told already, of each kind and place once."""

    def alarm(self, alarm: Alarm) -> None:
        """Tell of a broken invariant; it changes nothing else. However many there are, MOST_ALARMS of a run are told:
        they ride to the log with the next call."""
        told = alarm.model_dump(mode="json")
        key = canonical_json(told)
        if key not in self.alarmed and len(self.alarmed) < MOST_ALARMS:
            self.alarmed.add(key)
            self.ports.events.emit(ALARM, told)

    def enter_fork(self, heads: Sequence[str]) -> None:
        """Give each of these branches, of which more than one makes calls, ports of its own."""
        if len(heads) > 1:
            self.apart = dict(zip(heads, self.ports.apart(len(heads)), strict=True))

    def leave_fork(self, topology: Topology) -> None:
        """Forget the fork that has ended; raise the first of its failures in the topology's order."""
        for node in topology.nodes if self.failures else ():
            if node.id in self.failures:
                raise self.failures[node.id]
        self.wrote.clear()
        self.apart.clear()

    def ports_of(self, branches: frozenset[str]) -> Ports:
        """The ports of a node of these branches."""
        return next((ports for head, ports in self.apart.items() if head in branches), self.ports)


Body = Callable[[State, Run, Ports], Awaitable[Patch]]
"""A node's work, or a whole nested topology."""


@dataclass(frozen=True, slots=True)
class Step:
    """A node inside its topology."""

    spec: NodeSpec
    body: Body
    topology: Topology
    branches: frozenset[str]
    """The heads of the branches that the node belongs to; empty outside of forks."""

    @property
    def id(self) -> str:
        """The node's id."""
        return self.spec.id

    async def take(self, state: State, run: Run, number: int) -> Patch:
        """Run the node as the `number`-th step of the run, between its two events.

        Raises: StepsExhausted; InvariantBroken for a patch that is none; whatever the node raises.
        """
        if number > self.topology.limits.steps:
            raise StepsExhausted(self.topology)
        if not self.branches:
            run.leave_fork(self.topology)
            return await self._work(state, run)
        if self.branches & run.failed_branches:
            return {}
        try:
            patch = await self._work(state, run)
            self._claim(patch, run)
        except Exception as failure:
            self.fail(failure, run)
            return {}
        return patch

    def fail(self, failure: Exception, run: Run) -> None:
        """Hold a failure inside a fork until the fork has ended; raise it at once outside of forks."""
        if not self.branches:
            raise failure
        run.failures[self.id] = failure
        run.failed_branches |= self.branches

    async def _work(self, state: State, run: Run) -> Patch:
        name = run.path + self.id
        here: dict[str, JsonValue] = {"current_node": name}
        run.ports.events.emit(NODE_START, {"node": name})
        patch = await self.body({**state, **here}, run, run.ports_of(self.branches))
        self.topology.state.check(patch, f"Node `{name}`")
        for alarm in unlawful(self.topology, self.spec, patch):
            run.alarm(alarm)
        patch = {**patch, **here}
        after = self.topology.state.apply(state, patch)
        run.ports.events.emit(NODE_END, {"node": name, "data": _seen(state, after)})
        return patch

    def _claim(self, patch: Patch, run: Run) -> None:
        """Refuse a second branch that writes a field where only the last value would stand."""
        for name in patch:
            if self.topology.state.is_shared(name) or name in ("status", "error", "current_node"):
                continue
            if not run.wrote.setdefault(name, self.branches) & self.branches:
                raise InvariantBroken(
                    "branches_collide",
                    f"Node `{self.id}` wrote `{name}`, and so did another branch of its fork; "
                    "give the field a reducer that joins both.",
                )


def _seen(before: State, after: State) -> dict[str, JsonValue]:
    """What a stream shows of a finished node (S0-78)."""
    seen: dict[str, JsonValue] = {"status": after["status"], "tokens_used": after.get("tokens_used", 0)}
    said = _said(before["messages"], after["messages"])
    return seen | {"message": said} if said else seen


def _said(before: JsonValue, after: JsonValue) -> dict[str, JsonValue] | None:
    """The last assistant message that a node added, cut short."""
    if not isinstance(before, list) or not isinstance(after, list):
        return None
    kept = 0
    while kept < min(len(before), len(after)) and before[kept] == after[kept]:
        kept += 1
    for message in reversed(after[kept:]):
        if isinstance(message, dict) and message.get("role") == Role.ASSISTANT:
            text = message.get("text", message.get("content"))
            return {"role": Role.ASSISTANT.value, "content": str(text or "")[:PREVIEW_CHARACTERS]}
    return None
