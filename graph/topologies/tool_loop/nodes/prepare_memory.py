"""memory_prepare: the user's message, and that what is remembered is in place (S2-06, S2-17, S2-18)."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.nodes.reading import error_of
from graph.nodes.recalled import remembered
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class PrepareMemory:
    """Take what the turn's one load has found. Its text is fixed for the turn and put before the model in each request,
    never into the messages, so nothing of it piles up."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """No hop of its own; nothing where it was done already."""
        if state["memory_context_loaded"] or error_of(state) is not None:
            return {}
        context = await ports.memory.load()
        patch: Patch = {"memory_context_loaded": True}
        if context.problem is None and context.user_message is not None:
            patch |= remembered(context, context.user_message)
        return patch
