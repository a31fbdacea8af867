"""system_prompt_node: persona, user block and budget of this turn (S0-17, S0-18, S0-24). The texts stay outside."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.nodes.call_model import ended_by
from graph.nodes.fields import INITIAL
from graph.nodes.recalled import planned
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class SetSystemPrompt:
    """Start a fresh turn from the plan that it pinned."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The prompt is named here and assembled where the model is called."""
        patch: Patch = {
            "llm_phase": INITIAL,
            "skill_injection_done": False,
            "selected_skill_ids": [],
            "status": "running",
        }
        context = await ports.memory.load()
        if context.problem is not None:
            return patch | {"error": context.problem.model_dump(mode="json"), "status": ended_by(context.problem)}
        return patch | planned(context)
