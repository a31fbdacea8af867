"""What a node declared, against what it does. A difference is an alarm: it is told and changes nothing (S3-38).

Smoke detectors: a node that writes what is not its own has written it, a port that it should not use answers, and
advice that it should not go by is there to be read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pydantic import JsonValue

from contracts.alarms import Alarm, AlarmType, Severity
from contracts.facts import FactsAnswer, FactsAsk
from contracts.memory import TurnContext
from contracts.messages import Patch
from contracts.model import ModelAsk, ModelReply
from graph.ports import Memory, Model, Ports
from graph.spec import NodeSpec, State, Topology

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
