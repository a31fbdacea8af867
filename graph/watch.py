"""What a node declared, against what it does. A difference is an alarm: it is told and changes nothing (S3-38).

Smoke detectors: a node that writes what is not its own has written it, and a port that it should not use answers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from contracts.alarms import Alarm, AlarmType, Severity
from contracts.facts import FactsAnswer, FactsAsk
from contracts.memory import TurnContext
from contracts.messages import Patch
from contracts.model import ModelAsk, ModelReply
from graph.ports import Memory, Model, Ports
from graph.spec import NodeSpec, Topology

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
        return await self.memory.facts(ask)
