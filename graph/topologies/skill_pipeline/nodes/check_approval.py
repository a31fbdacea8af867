"""approval_node: a checkpoint that a request forces before the synthesis (S0-66). The rules' own checkpoints open in
tool_node, in either phase."""

import re
from dataclasses import dataclass

from contracts.errors import Problem
from contracts.messages import Patch
from contracts.people import GatedCall, RequestKind
from contracts.skills import SKILL_ID_PATTERN
from graph.nodes.pause import at_checkpoint
from graph.nodes.reading import error_of
from graph.ports import Ports
from graph.spec import State
from policy.gate import RULE_FORCED_CHECKPOINT


@dataclass(frozen=True, slots=True)
class CheckApproval:
    """Go on where no checkpoint is asked for; never past one that is."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The pause skips the synthesis (S0-67); a name that is none fails the turn instead of passing."""
        metadata = state["metadata"]
        forced = metadata.get("hitl_checkpoint_type") if isinstance(metadata, dict) else None
        if not forced or error_of(state) is not None:
            return {}
        if not isinstance(forced, str) or not re.fullmatch(SKILL_ID_PATTERN, forced):
            problem = Problem(
                code="bad_checkpoint",
                message="metadata.hitl_checkpoint_type must name a checkpoint: small letters, digits and _",
            )
            return {"error": problem.model_dump(mode="json"), "status": "failed", "skill_injection_done": False}
        asked = GatedCall(
            call_id="", tool="", rule=RULE_FORCED_CHECKPOINT, kind=RequestKind.CHECKPOINT, checkpoint=forced
        )
        return at_checkpoint(state, ports, [asked])
