"""router_node: what kind of input this is (S3-15)."""

from dataclasses import dataclass

from contracts.errors import Problem
from contracts.messages import Patch
from graph.nodes.call_model import ended_by
from graph.ports import Ports
from graph.spec import State
from policy.inputs import INPUT_TYPES


@dataclass(frozen=True, slots=True)
class RouteInput:
    """Annotate the request; where there is none, say why the turn ends."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Text, unless the request's metadata says otherwise by `input_type`."""
        context = await ports.memory.load()
        problem = context.problem
        if problem is None:
            kind = context.metadata.get("input_type", INPUT_TYPES[0])
            raw = context.user_message.text if context.user_message else ""
            problem = _wrong(kind, raw)
            if problem is None:
                return {"input_type": kind, "raw_input": raw}
        return {"error": problem.model_dump(mode="json"), "status": ended_by(problem)}


def _wrong(kind: object, raw: str) -> Problem | None:
    if kind not in INPUT_TYPES:
        return Problem(code="bad_input_type", message=f"metadata.input_type must be one of {', '.join(INPUT_TYPES)}")
    if not raw.strip():
        return Problem(code="empty_input", message="there is nothing to answer")
    return None
