"""What the one load of a turn gives its state: its plan, the user's message, working memory, a gate opened before."""

from contracts.memory import TurnContext
from contracts.messages import MessageRef, Patch
from graph.nodes.snapshot import restored


def planned(context: TurnContext) -> Patch:
    """What the turn pinned. The prompt is named here and assembled where the model is called."""
    plan = context.plan
    if plan is None:
        return {}
    patch: Patch = {
        "plan": plan.model_dump(mode="json"),
        "agent_id": plan.agent_id,
        "agent_type": plan.agent_id,
        "system_prompt": plan.persona_key,
        "user": {"name": context.user_name or "user", "role": context.user_role},
        "metadata": context.metadata,
        "max_tokens": plan.limits.max_tokens,
        "max_cost_microusd": plan.limits.max_cost_microusd,
        "max_iterations": plan.limits.max_iterations,
    }
    return patch | {"model": plan.model} if plan.model else patch


def remembered(context: TurnContext, user_message: MessageRef) -> Patch:
    """The message and what is remembered with it."""
    memory: Patch = {"fields": context.injected_fields}
    if context.injected:
        memory["injected"] = [*context.injected]
    patch: Patch = {
        "messages": [user_message.model_dump(mode="json")],
        "memory_context": memory,
        "working": context.working,
    }
    recent = context.working.get("recent_entity_context")
    if isinstance(recent, list):
        patch["recent_entity_context"] = recent
    return patch


def found_gate(context: TurnContext, user_message: MessageRef) -> Patch:
    """What the turn waits for, and where it stood: by its snapshot where that is whole, else by its rounds. Empty
    where it waits for nothing."""
    if not context.pending:
        return {}
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
