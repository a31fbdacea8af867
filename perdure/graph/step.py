"""One step of a run: the work around every node.

By contract, nodes do not raise. If one does, its exception passes through, so that the workflow task fails and a fixed
deploy continues from there. Inside a fork, the exception is held until the branches have ended. If several nodes fail,
the first in the topology's order is raised, whichever failed first.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from perdure.contracts.activities import TurnContext
from perdure.contracts.calls import ModelCallRequest, ModelReply
from perdure.contracts.errors import InvariantBroken, Problem
from perdure.contracts.events import ALARM, MAX_ALARMS, NODE_END, NODE_START, Alarm, AlarmType, Severity
from perdure.contracts.memory import FactsAnswer, FactsRequest
from perdure.contracts.messages import PREVIEW_CHARACTERS, Patch, Role
from perdure.contracts.values import canonical_json
from perdure.graph.ports import Memory, Model, Ports
from perdure.graph.spec import NodeSpec, State, Topology

MODEL = "model"
MEMORY = "memory"


class StepsExhausted(Exception):
    """A run would take more steps than its topology allows."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        super().__init__(topology.name)

    def problem(self) -> dict[str, JsonValue]:
        """Returns the end of the run as data, with the name of the setting."""
        limits, name = self.topology.limits, self.topology.name
        message = f"The run was ended after {limits.steps} steps, the limit {limits.steps_setting} of {name}."
        return Problem(code="iteration_limit", message=message).model_dump(mode="json")


class RunRenewed(Exception):
    """A run ends before the node at which a new run continues, because it is long."""

    def __init__(self, state: State, entry: str) -> None:
        self.state = state
        self.entry = entry
        """The entry of the new run."""
        super().__init__("a new run continues this one")


@dataclass(slots=True)
class Run:
    """The data of one run in addition to its state. It is passed along in LangGraph's config and never stored."""

    entry: str
    ports: Ports
    state: State
    """The state after the last finished step."""
    path: str = ""
    """The prefix of the node ids of a nested topology."""
    failures: dict[str, Exception] = field(default_factory=dict)
    """The exceptions of the current fork, by the id of the node that failed."""
    failed_branches: set[str] = field(default_factory=set)
    wrote: dict[str, frozenset[str]] = field(default_factory=dict)
    """Field that only one branch of the current fork can write -> the branch that wrote it."""
    apart: dict[str, Ports] = field(default_factory=dict)
    """The ports of the current fork's branches, by the head of the branch."""
    alarmed: set[str] = field(default_factory=set)
    """The alarms that were already emitted; equal ones are emitted once."""

    def alarm(self, alarm: Alarm) -> None:
        """Emits an alarm about a broken invariant, which changes nothing else. A run emits at most MAX_ALARMS alarms,
        because they travel to the log with the next call."""
        data = alarm.model_dump(mode="json")
        key = canonical_json(data)
        if key not in self.alarmed and len(self.alarmed) < MAX_ALARMS:
            self.alarmed.add(key)
            self.ports.events.emit(ALARM, data)

    def enter_fork(self, heads: Sequence[str]) -> None:
        """Gives each of several branches that make calls its own ports."""
        if len(heads) > 1:
            self.apart = dict(zip(heads, self.ports.apart(len(heads)), strict=True))

    def leave_fork(self, topology: Topology) -> None:
        """Clears the fork that has ended. Raises the first of its failures in the topology's order."""
        for node in topology.nodes if self.failures else ():
            if node.id in self.failures:
                raise self.failures[node.id]
        self.wrote.clear()
        self.apart.clear()

    def ports_of(self, branches: frozenset[str]) -> Ports:
        """Returns the ports of a node: those of its parallel branch, or else those of the run."""
        return next((ports for head, ports in self.apart.items() if head in branches), self.ports)


Body = Callable[[State, Run, Ports], Awaitable[Patch]]
"""The work of a node, or of a whole nested topology."""


@dataclass(frozen=True, slots=True)
class Step:
    """A node in its topology."""

    spec: NodeSpec
    body: Body
    topology: Topology
    branches: frozenset[str]
    """The heads of the branches that contain the node; empty outside of forks."""

    @property
    def id(self) -> str:
        """The node's id."""
        return self.spec.id

    async def take(self, state: State, run: Run, number: int) -> Patch:
        """Runs the node as step `number` of the run, between its two events.

        Raises: StepsExhausted; RunRenewed; InvariantBroken for an invalid patch; any exception of the node.
        """
        if number > self.topology.limits.steps:
            raise StepsExhausted(self.topology)
        entry = self.topology.renewal_before(self.id) if number > 1 and not run.path else ""
        if entry and run.ports.is_long(entry, number > self.topology.limits.steps // 2):
            raise RunRenewed(state, entry)
        if not self.branches:
            run.leave_fork(self.topology)
            return await self._run_body(state, run)
        if self.branches & run.failed_branches:
            return {}
        try:
            patch = await self._run_body(state, run)
            self._claim(patch, run)
        except Exception as failure:
            self.hold_failure(failure, run)
            return {}
        return patch

    def hold_failure(self, failure: Exception, run: Run) -> None:
        """Holds a failure inside a fork until the fork has ended. Outside of forks, raises it immediately."""
        if not self.branches:
            raise failure
        run.failures[self.id] = failure
        run.failed_branches |= self.branches

    async def _run_body(self, state: State, run: Run) -> Patch:
        name = run.path + self.id
        node_field: dict[str, JsonValue] = {"current_node": name}
        run.ports.events.emit(NODE_START, {"node": name})
        patch = await self.body({**state, **node_field}, run, run.ports_of(self.branches))
        self.topology.state.check(patch, f"Node `{name}`")
        for alarm in undeclared_writes(self.topology, self.spec, patch):
            run.alarm(alarm)
        patch = {**patch, **node_field}
        after = self.topology.state.apply(state, patch)
        run.ports.events.emit(NODE_END, {"node": name, "data": _visible_fields(state, after)})
        return patch

    def _claim(self, patch: Patch, run: Run) -> None:
        """Rejects a second branch that writes a field of which only the last value would remain."""
        for name in patch:
            if self.topology.state.is_shared(name) or name in ("status", "error", "current_node"):
                continue
            if not run.wrote.setdefault(name, self.branches) & self.branches:
                raise InvariantBroken(
                    "branches_collide",
                    f"Node `{self.id}` wrote `{name}`, and so did another branch of its fork; "
                    "give the field a reducer that joins both.",
                )


def _visible_fields(before: State, after: State) -> dict[str, JsonValue]:
    """Returns the fields that a stream shows of a finished node."""
    seen: dict[str, JsonValue] = {"status": after["status"], "tokens_used": after.get("tokens_used", 0)}
    message = _last_message(before["messages"], after["messages"])
    return seen | {"message": message} if message else seen


def _last_message(before: JsonValue, after: JsonValue) -> dict[str, JsonValue] | None:
    """Returns the last assistant message that a node added, shortened."""
    if not isinstance(before, list) or not isinstance(after, list):
        return None
    known = {message.get("id") for message in before if isinstance(message, dict)} - {None, ""}
    kept = 0
    while kept < min(len(before), len(after)) and before[kept] == after[kept]:
        kept += 1
    for message in reversed(after[kept:]):
        if isinstance(message, dict) and message.get("role") == Role.ASSISTANT and message.get("id") not in known:
            text = message.get("text", message.get("content"))
            return {"role": Role.ASSISTANT.value, "content": str(text or "")[:PREVIEW_CHARACTERS]}
    return None


# Declarations of nodes are compared with what the nodes do. A difference raises an alarm and changes nothing. A node
# that writes a field of another node has written it. A port that a node did not declare still answers. Advice that a
# node should not use remains readable.
AlarmHandler = Callable[[Alarm], None]


def undeclared_writes(topology: Topology, node: NodeSpec, patch: Patch) -> Iterator[Alarm]:
    """Yields an alarm for each field of the patch that the node does not declare. The kind of the alarm depends on
    whether another node declares the field."""
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


def watch_ports(ports: Ports, node: NodeSpec, on_alarm: AlarmHandler) -> Ports:
    """Returns the ports for a node with a declaration. All of them answer; undeclared use raises an alarm."""
    if node.reaches is None:
        return ports
    model = ports.model if MODEL in node.reaches else WatchedModel(ports.model, node, on_alarm)
    return replace(ports, model=model, memory=WatchedMemory(ports.memory, node, on_alarm))


def watch_state(state: State, topology: Topology, node_id: str, on_alarm: AlarmHandler) -> State:
    """Returns the state for a router, or for a node that is not `advised`. All of it is readable; reading advice raises
    an alarm."""
    return WatchedState(state, topology.advice, node_id, on_alarm) if topology.advice else state


class WatchedState(dict[str, JsonValue]):
    """A state in which reading advice raises an alarm. A copy does not count as reading."""

    __slots__ = ("_advice", "_node_id", "_on_alarm")

    def __init__(self, state: State, advice: tuple[str, ...], node_id: str, on_alarm: AlarmHandler) -> None:
        super().__init__(state)
        self._advice, self._node_id, self._on_alarm = advice, node_id, on_alarm

    def __getitem__(self, name: str) -> JsonValue:
        """Returns the value; raises an alarm if it is advice."""
        self._read(name)
        return super().__getitem__(name)

    def get(self, name: str, default: JsonValue = None) -> JsonValue:  # type: ignore[override]
        """Returns the value; raises an alarm if it is advice."""
        self._read(name)
        return super().get(name, default)

    def _read(self, name: str) -> None:
        if name in self._advice:
            description = "a node that decides read a field that only advises"
            kind = AlarmType.MEMORY_ADVISORY_OVERRIDDEN
            self._on_alarm(Alarm(type=kind, node=self._node_id, description=description, context={"field": name}))


@dataclass(frozen=True, slots=True)
class WatchedModel:
    """The model, for a node that did not declare it."""

    model: Model
    node: NodeSpec
    on_alarm: AlarmHandler

    async def complete(self, request: ModelCallRequest) -> ModelReply:
        """Raises an alarm and returns the model's answer."""
        description = "a node called the model without having declared it"
        self.on_alarm(Alarm(type=AlarmType.MODEL_ACCESS_UNAUTHORIZED, node=self.node.id, description=description))
        return await self.model.complete(request)


@dataclass(frozen=True, slots=True)
class WatchedMemory:
    """The memory, for a node that must declare it and must be authorized for each operation."""

    memory: Memory
    node: NodeSpec
    on_alarm: AlarmHandler

    async def load(self) -> TurnContext:
        """Loads the context of the turn, which every node can do."""
        return await self.memory.load()

    async def facts(self, request: FactsRequest) -> FactsAnswer:
        """Returns the answer. Without authorization, its status is `unauthorized`; undeclared or unauthorized use
        raises an alarm."""
        declared = MEMORY in (self.node.reaches or ())
        if not declared or not request.authorized:
            kind = AlarmType.MEMORY_WRITE_UNAUTHORIZED if request.write else AlarmType.MEMORY_READ_UNAUTHORIZED
            description = (
                "a node used memory without authorization"
                if declared
                else "a node used memory without having declared it"
            )
            severity = Severity.WARN if declared else Severity.ERROR
            self.on_alarm(Alarm(type=kind, node=self.node.id, description=description, severity=severity))
        answer = await self.memory.facts(request)
        if answer.refused_change:
            description = "a fact about a person would have been changed; the database refused it"
            self.on_alarm(Alarm(type=AlarmType.MEMORY_NOT_APPEND_ONLY, node=self.node.id, description=description))
        return answer
