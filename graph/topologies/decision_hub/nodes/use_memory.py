"""The four nodes of memory: a read and a write of this conversation's facts, a read and a write of the person's.

Each runs once, where the deciding node said so, and ends in a status. What is found is advice: it goes into a note for
the model and nowhere else (S3-29).
"""

from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from contracts.events import MEMORY_SEARCH, MEMORY_WRITE_BLOCKED, MEMORY_WRITE_CREATED
from contracts.facts import FactsAnswer, FactScope, FactStatus
from contracts.messages import Patch
from graph.ports import Ports
from graph.spec import State
from graph.topologies.decision_hub.memory_door import MemoryDoor
from policy.derived_facts import derived_facts
from policy.hub_commands import Command

DEAD: Final = frozenset({FactStatus.UNAVAILABLE, FactStatus.FAILED})


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """Read the facts of a scope."""

    scope: FactScope

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """No result where nothing was found, or nobody answered (S3-23)."""
        long_term = self.scope is FactScope.USER
        command = Command.LONG_TERM_MEMORY_READ if long_term else Command.MEMORY_READ
        door = MemoryDoor(ports, self.scope, _may(state, command))
        answer = await door.read(about=str(state["preprocessing_result"]) if long_term else "")
        found: list[JsonValue] = [fact.model_dump(mode="json") for fact in answer.facts]
        status: JsonValue = answer.status.value
        ports.events.emit(MEMORY_SEARCH, {"scope": self.scope.value, "status": status, "facts": len(found)})
        result: JsonValue = {"facts": found} if answer.status is FactStatus.SUCCESS else None
        prefix = "long_term_memory" if long_term else "memory"
        return {f"{prefix}_read_status": status, f"{prefix}_read_result": result} | _health(self.scope, answer)


@dataclass(frozen=True, slots=True)
class WriteMemory:
    """Keep what the message states about whoever wrote it: derived facts, never the message (S3-26)."""

    scope: FactScope

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """One operation, whatever comes of it."""
        long_term = self.scope is FactScope.USER
        command = Command.LONG_TERM_MEMORY_WRITE if long_term else Command.MEMORY_WRITE
        facts = derived_facts(str(state["preprocessing_result"])) if state["input_type"] == "text" else ()
        answer = await MemoryDoor(ports, self.scope, _may(state, command)).write(facts)
        status: JsonValue = answer.status.value
        if answer.status is not FactStatus.SUCCESS:
            ports.events.emit(MEMORY_WRITE_BLOCKED, {"scope": self.scope.value, "status": status})
        elif facts:
            ports.events.emit(MEMORY_WRITE_CREATED, {"scope": self.scope.value, "facts": len(facts)})
        name = "long_term_memory_write_status" if long_term else "memory_write_status"
        return {name: status} | _health(self.scope, answer)


def _may(state: State, command: Command) -> bool:
    """Leave is the turn's and the deciding node's: the command that was just given is this operation's (S3-21)."""
    allowed_by = {
        Command.MEMORY_READ: "memory_read_authorized",
        Command.MEMORY_WRITE: "memory_write_authorized",
    }.get(command, "long_term_memory_requested")
    return state[allowed_by] is True and state["command"] == command.value


def _health(scope: FactScope, answer: FactsAnswer) -> Patch:
    """Said once memory is found dead; it decides nothing."""
    if answer.status not in DEAD:
        return {}
    return {"long_term_memory_status": "unavailable"} if scope is FactScope.USER else {"memory_available": False}
