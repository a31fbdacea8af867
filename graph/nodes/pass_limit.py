"""What a reviewer's answer to a spent limit leaves: the turn goes on under a higher one, or ends as limited."""

from contracts.approvals import Verdicts
from contracts.errors import Problem
from contracts.messages import Patch
from contracts.people import Verdict, VerdictState
from graph.nodes.call_model import spent_by
from graph.spec import State
from policy.gate import ALLOWING


def raised(state: State, read: Verdicts) -> Patch:
    """The state after this verdict. Raised, the model is called in the phase that came to the limit."""
    patch: Patch = {
        "status": "running",
        "pending_mutation": None,
        "pending_requests": [],
        "pending_tool_calls": [],
        "hitl_required": False,
        "hitl_checkpoint_type": "",
        "hitl_approval_id": None,
        "hitl_reviewer_id": None,
    }
    refused = next((verdict for verdict in read.verdicts if verdict.state not in ALLOWING), None)
    if refused is None and read.limits is not None:
        return patch | {
            "max_tokens": read.limits.max_tokens,
            "max_cost_microusd": read.limits.max_cost_microusd,
        }
    over = spent_by(state) or Problem(code="limit_not_raised", message="the turn asked for a higher limit")
    told = over.model_copy(update={"message": f"{over.message}; {_told(refused)}"})
    return patch | {"error": told.model_dump(mode="json"), "status": "limited"}


def _told(refused: Verdict | None) -> str:
    if refused is None or refused.state is VerdictState.EXPIRED:
        return "nobody raised it in time"
    why = f": {refused.comment}" if refused.comment else ""
    return f"{refused.decided_by or 'a reviewer'} did not raise it{why}"
