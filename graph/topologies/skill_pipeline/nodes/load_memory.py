"""memory_node: the user's message, working memory, and a gate that was opened before (S0-25, S0-27)."""

from dataclasses import dataclass

from contracts.memory import TurnContext
from contracts.messages import MessageRef, Patch
from graph.ports import Ports
from graph.spec import State
from graph.topologies.skill_pipeline.nodes.snapshot import restored


@dataclass(frozen=True, slots=True)
class LoadMemory:
    """Put what was loaded into the state; the gate is the same warm (from state) and cold (from the store)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Answers from the one load of this turn: no hop of its own."""
        context = await ports.memory.load()
        if context.problem is not None or context.user_message is None:
            return {}
        memory: Patch = {"fields": context.injected_fields}
        if context.injected:
            memory["injected"] = [*context.injected]
        patch: Patch = {
            "messages": [context.user_message.model_dump(mode="json")],
            "memory_context": memory,
            "working": context.working,
        }
        recent = context.working.get("recent_entity_context")
        if isinstance(recent, list):
            patch["recent_entity_context"] = recent
        if state["pending_mutation"] is None and context.pending:
            patch |= _gate(context, context.user_message)
        return patch


def _gate(context: TurnContext, user_message: MessageRef) -> Patch:
    """What the turn waits for, and where it stood: by its snapshot where that is whole, else by its rounds."""
    said = [user_message, *context.earlier]
    gate: Patch = {
        "pending_mutation": [request.model_dump(mode="json") for request in context.pending],
        "pending_round": context.pending_round.model_dump(mode="json") if context.pending_round else None,
        "messages": [message.model_dump(mode="json") for message in said],
        "tokens_used": context.used.tokens,
        "cost_microusd": context.used.cost_microusd,
        "iteration": sum(1 for message in context.earlier if message.calls),
    }
    return gate | restored(context.restored)
