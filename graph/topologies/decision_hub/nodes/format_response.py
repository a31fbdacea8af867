"""format_response_node: the response, and how the run ends (S3-17)."""

from dataclasses import dataclass

from contracts.events import STAGE
from contracts.messages import Patch
from graph.nodes.call_model import ended_by
from graph.nodes.reading import error_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.decision_hub.nodes.route_error import SPENT_CODES
from policy.model_answers import ErrorType


@dataclass(frozen=True, slots=True)
class FormatResponse:
    """Put together what the caller is told; the stream has it too, its text as a beginning."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """An error has a type, one that came before the model is of the type `unknown`."""
        error = error_of(state)
        metadata = state["model_metadata"]
        response: Patch = {
            "conversation_id": state["conversation_id"],
            "trace_id": state["trace_id"],
            "status": "success" if error is None else "error",
            "output": state["final_output"] if error is None or state["final_output"] else error.message,
            "error_type": None if error is None else state["error_type"] or ErrorType.UNKNOWN.value,
            "metadata": {"usage": metadata, "input_type": state["input_type"]},
        }
        ports.events.emit(STAGE, {"stage": "response", **response})
        if error is None:
            return {"response": response, "status": "completed"}
        return {"response": response, "status": "limited" if error.code in SPENT_CODES else ended_by(error)}
