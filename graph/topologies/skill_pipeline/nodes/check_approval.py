"""approval_node: a checkpoint that a request forces (S0-66). Until checkpoints are built, forcing one fails closed."""

from dataclasses import dataclass

from contracts.errors import Problem
from contracts.messages import Patch
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class CheckApproval:
    """Go on where no checkpoint is asked for; never past one that is."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A request that forces a checkpoint must not be answered as if it had passed."""
        metadata = state["metadata"]
        forced = metadata.get("hitl_checkpoint_type") if isinstance(metadata, dict) else None
        if not forced:
            return {}
        problem = Problem(
            code="checkpoint_unsupported",
            message="metadata.hitl_checkpoint_type forces a checkpoint, which this agent cannot open; leave it out",
        )
        return {"error": problem.model_dump(mode="json"), "status": "failed", "skill_injection_done": False}
