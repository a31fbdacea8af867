"""decision_logic_node: the next command, from what is done and allowed; it changes nothing else (S3-05, S3-06)."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.ports import Ports
from graph.spec import State
from policy.hub_commands import Command, Standing, next_command

DONE_BY = {
    Command.PREPROCESS: "preprocessing_result",
    Command.MEMORY_READ: "memory_read_status",
    Command.LONG_TERM_MEMORY_READ: "long_term_memory_read_status",
    Command.CALL_MODEL: "final_output",
    Command.MEMORY_WRITE: "memory_write_status",
    Command.LONG_TERM_MEMORY_WRITE: "long_term_memory_write_status",
}
"""Command -> the field that has a value once it is done."""
ALLOWED_BY = {
    Command.MEMORY_READ: "memory_read_authorized",
    Command.MEMORY_WRITE: "memory_write_authorized",
    Command.LONG_TERM_MEMORY_READ: "long_term_memory_requested",
    Command.LONG_TERM_MEMORY_WRITE: "long_term_memory_requested",
}


@dataclass(frozen=True, slots=True)
class Decide:
    """Nobody else says where a turn goes."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The command."""
        return {"command": next_command(standing(state)).value}


def standing(state: State) -> Standing:
    """How far the turn is: whether a field has a value, never which."""
    return Standing(
        failed=state["error"] is not None,
        done=frozenset(command for command, name in DONE_BY.items() if state[name] is not None),
        allowed=frozenset(command for command, name in ALLOWED_BY.items() if state[name] is True),
    )
