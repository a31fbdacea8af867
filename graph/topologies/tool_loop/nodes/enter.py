"""entry: a turn begins, or goes on where it waited (S2-04). A stop is the engine's: it ends any node's next call."""

from dataclasses import dataclass

from contracts.memory import TurnContext
from contracts.messages import Patch
from graph.nodes.call_model import ended_by
from graph.nodes.recalled import found_gate, planned, remembered
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class Enter:
    """Reset what a run has of its own; a fresh turn also takes its plan, and a gate that was opened before."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A resumed run keeps its state, and loads nothing (S2-06)."""
        patch: Patch = {
            "awaiting_approval": False,
            "memory_context_loaded": False,
            "ttft_emitted": False,
            "done": False,
            "status": "running",
        }
        if state["pending_mutation"]:
            return patch
        context = await ports.memory.load()
        patch |= {"run_id": state["execution_id"], "started_at": ports.clock.now().isoformat()}
        if context.problem is not None:
            return patch | {"error": context.problem.model_dump(mode="json"), "status": ended_by(context.problem)}
        if context.user_message is not None and context.pending:
            patch |= remembered(context, context.user_message) | found_gate(context, context.user_message)
        return patch | _planned(context)


def _planned(context: TurnContext) -> Patch:
    """What the turn pinned, with what its conversation has loaded."""
    if context.plan is None:
        return {}
    return planned(context) | {"loaded_toolsets": {**context.plan.toolsets}}
