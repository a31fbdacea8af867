"""memory_node: the user's message, working memory, and a gate that was opened before (S0-25, S0-27)."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.nodes.recalled import found_gate, remembered
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class LoadMemory:
    """Put what was loaded into the state; the gate is the same warm (from state) and cold (from the store)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Answers from the one load of this turn: no hop of its own."""
        context = await ports.memory.load()
        if context.problem is not None or context.user_message is None:
            return {}
        patch = remembered(context, context.user_message)
        if state["pending_mutation"] is None:
            patch |= found_gate(context, context.user_message)
        return patch
