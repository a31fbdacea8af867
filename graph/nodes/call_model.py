"""One model call of a phase: budget first, then the call, then its result as state."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.errors import Problem
from contracts.events import BUDGET
from contracts.messages import Patch
from contracts.model import ModelAsk, ModelReply
from graph.nodes.reading import error_of, limits_of, messages_of, number_of, plan_of
from graph.ports import Ports
from graph.spec import State
from policy.budget import spent
from policy.refusals import STOPPED

STOP_CODES = {STOPPED.code: "stopped"}
"""Problems that end a run otherwise than as failed: code to status."""


def ended_by(problem: Problem) -> str:
    """The status of a run that a problem ends."""
    return STOP_CODES.get(problem.code, "failed")


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model with every tool of the plan."""

    extract_pattern: str = ""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A failure, or a budget that is spent, comes back as `error` (S0-05, S0-40)."""
        if error_of(state) is not None:
            return {}
        over = spent(
            limits_of(state),
            tokens_used=number_of(state, "tokens_used"),
            cost_microusd=number_of(state, "cost_microusd"),
        )
        if over is not None:
            ports.events.emit(BUDGET, {"code": over.code, "message": over.message})
            return {"error": over.model_dump(mode="json"), "status": "limited"}
        plan = plan_of(state)
        user = state["user"]
        reply = await ports.model.complete(
            ModelAsk(
                messages=tuple(messages_of(state)),
                tools=tuple(card.name for card in plan.cards),
                prompt=user if isinstance(user, dict) else {},
                extract_pattern=self.extract_pattern,
            )
        )
        return _patch(state, reply)


def _patch(state: State, reply: ModelReply) -> Patch:
    before = state["messages"]
    messages: list[JsonValue] = list(before) if isinstance(before, list) else []
    patch: Patch = {
        "tokens_used": number_of(state, "tokens_used") + reply.usage.tokens,
        "cost_microusd": number_of(state, "cost_microusd") + reply.usage.cost_microusd,
        "extracted": [*reply.extracted],
        "pending_tool_calls": [],
    }
    if reply.message is not None:
        patch["messages"] = [*messages, reply.message.model_dump(mode="json")]
        patch["pending_tool_calls"] = [call.model_dump(mode="json") for call in reply.message.calls]
    if reply.problem is not None:
        patch |= {"error": reply.problem.model_dump(mode="json"), "status": ended_by(reply.problem)}
        patch["pending_tool_calls"] = []
    return patch
