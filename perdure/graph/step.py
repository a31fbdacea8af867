"""One step of a run: what surrounds every node, whatever the node does.

Nodes do not raise by contract. If one does, its exception is let through, so that the workflow task fails and a
fixed deploy goes on from there. Inside a fork it is held until the branches have ended: of several that fail
together the first in the topology's order surfaces, whichever was faster.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from perdure.contracts.activities import TurnContext
from perdure.contracts.calls import ModelAsk, ModelReply
from perdure.contracts.errors import InvariantBroken, Problem
from perdure.contracts.events import ALARM, MOST_ALARMS, NODE_END, NODE_START, Alarm, AlarmType, Severity
from perdure.contracts.memory import FactsAnswer, FactsAsk
from perdure.contracts.messages import PREVIEW_CHARACTERS, Patch, Role
from perdure.contracts.values import canonical_json
from perdure.graph.ports import Memory, Model, Ports
from perdure.graph.spec import NodeSpec, State, Topology


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


# --- What a node declared, against what it does.
# A difference is an alarm: it is told and changes nothing (S3-38).
#
# Smoke detectors: a node that writes what is not its own has written it, a port that it should not use answers, and
# advice that it should not go by is there to be read.

Tell = Callable[[Alarm], None]
MODEL = "model"
MEMORY = "memory"


def unlawful(topology: Topology, node: NodeSpec, patch: Patch) -> Iterator[Alarm]:
    """An alarm for each field of the patch that is not the node's: one that others declare, or nobody (S3-20)."""
    if node.writes is None:
        return
    for name in patch:
        if name in node.writes:
            continue
        others = any(name in (one.writes or ()) for one in topology.nodes)
        kind = AlarmType.STATE_MUTATION_OUTSIDE_ALLOWED_NODE if others else AlarmType.FORBIDDEN_STATE_FIELD_MUTATED
        yield Alarm(
            type=kind, node=node.id, description="a node wrote a field that is not its own", context={"field": name}
        )


def watched(ports: Ports, node: NodeSpec, tell: Tell) -> Ports:
    """The ports as a node with a declaration sees them: all of them answer."""
    if node.reaches is None:
        return ports
    model = ports.model if MODEL in node.reaches else WatchedModel(ports.model, node, tell)
    return replace(ports, model=model, memory=WatchedMemory(ports.memory, node, tell))


def unadvised(state: State, topology: Topology, node_id: str, tell: Tell) -> State:
    """The state as a router sees it, or a node that may not go by advice: all of it is there to be read."""
    return Unadvised(state, topology.advice, node_id, tell) if topology.advice else state


class Unadvised(dict[str, JsonValue]):
    """A state whose advice is nothing to go by for whoever holds it (S3-29). To copy it is not to read it."""

    __slots__ = ("_advice", "_node_id", "_tell")

    def __init__(self, state: State, advice: tuple[str, ...], node_id: str, tell: Tell) -> None:
        super().__init__(state)
        self._advice, self._node_id, self._tell = advice, node_id, tell

    def __getitem__(self, name: str) -> JsonValue:
        """The value all the same."""
        self._read(name)
        return super().__getitem__(name)

    def get(self, name: str, default: JsonValue = None) -> JsonValue:  # type: ignore[override]
        """The value all the same."""
        self._read(name)
        return super().get(name, default)

    def _read(self, name: str) -> None:
        if name in self._advice:
            told = "what only advises was read where something is decided"
            kind = AlarmType.MEMORY_ADVISORY_OVERRIDDEN
            self._tell(Alarm(type=kind, node=self._node_id, description=told, context={"field": name}))


@dataclass(frozen=True, slots=True)
class WatchedModel:
    """The model, in the hands of a node that did not declare it."""

    model: Model
    node: NodeSpec
    tell: Tell

    async def complete(self, ask: ModelAsk) -> ModelReply:
        """The answer all the same."""
        told = "a node called the model without having declared it"
        self.tell(Alarm(type=AlarmType.MODEL_ACCESS_UNAUTHORIZED, node=self.node.id, description=told))
        return await self.model.complete(ask)


@dataclass(frozen=True, slots=True)
class WatchedMemory:
    """Memory, in the hands of a node that must have declared it, and must have leave for each operation."""

    memory: Memory
    node: NodeSpec
    tell: Tell

    async def load(self) -> TurnContext:
        """What the turn starts from is everybody's."""
        return await self.memory.load()

    async def facts(self, ask: FactsAsk) -> FactsAnswer:
        """The answer all the same; without leave it is `unauthorized`."""
        declared = MEMORY in (self.node.reaches or ())
        if not declared or not ask.authorized:
            kind = AlarmType.MEMORY_WRITE_UNAUTHORIZED if ask.write else AlarmType.MEMORY_READ_UNAUTHORIZED
            told = "a node used memory without leave" if declared else "a node used memory without having declared it"
            severity = Severity.WARN if declared else Severity.ERROR
            self.tell(Alarm(type=kind, node=self.node.id, description=told, severity=severity))
        answer = await self.memory.facts(ask)
        if answer.refused_change:
            told = "a fact about a person would have been changed; the database refused it"
            self.tell(Alarm(type=AlarmType.MEMORY_NOT_APPEND_ONLY, node=self.node.id, description=told))
        return answer
