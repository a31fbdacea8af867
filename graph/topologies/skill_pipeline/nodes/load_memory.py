"""memory_node: the user's message, working memory, and a gate that was opened before (S0-25, S0-27)."""

from dataclasses import dataclass

from contracts.messages import Patch
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
        patch: Patch = {
            "messages": [context.user_message.model_dump(mode="json")],
            "memory_context": {"fields": context.injected_fields},
            "working": context.working,
        }
        recent = context.working.get("recent_entity_context")
        if isinstance(recent, list):
            patch["recent_entity_context"] = recent
        if state["pending_mutation"] is None and context.pending and context.pending_round is not None:
            patch["pending_mutation"] = [request.model_dump(mode="json") for request in context.pending]
            patch["pending_round"] = context.pending_round.model_dump(mode="json")
            said = [context.user_message, *context.earlier]
            patch |= {
                "messages": [message.model_dump(mode="json") for message in said],
                "tokens_used": context.used.tokens,
                "cost_microusd": context.used.cost_microusd,
                "iteration": sum(1 for message in context.earlier if message.calls),
            }
        return patch
