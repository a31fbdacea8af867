"""error_router_node: what kind of failure it was, and what is said in place of an answer (S3-03, S3-11, S3-17)."""

from dataclasses import dataclass

from contracts.errors import Problem
from contracts.messages import Patch
from graph.nodes.call_model import STOP_CODES
from graph.ports import Ports
from graph.spec import State
from policy.model_answers import ErrorType, fallback_text

SPENT_CODES = frozenset({"token_budget_spent", "cost_budget_spent"})


@dataclass(frozen=True, slots=True)
class RouteError:
    """The only node that writes `error_type` (S3-20)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A stop and a spent limit keep their own name as the turn's error; every other failure has its type's."""
        response = state["model_response"]
        said = response if isinstance(response, dict) else {}
        kind = ErrorType(str(said.get("error_type") or ErrorType.UNKNOWN.value))
        fallback = fallback_text(kind)
        problem = Problem.model_validate(said["problem"]) if said.get("problem") else None
        if problem is None or (problem.code not in STOP_CODES and problem.code not in SPENT_CODES):
            problem = Problem(code=kind.value, message=fallback)
        return {"error_type": kind.value, "final_output": fallback, "error": problem.model_dump(mode="json")}
