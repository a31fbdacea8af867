"""One model call of a phase: budget first, then the call, then its result as state."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.agents import TurnPlan
from contracts.errors import Problem
from contracts.events import BUDGET
from contracts.messages import Patch
from contracts.model import ModelAsk, ModelReply
from contracts.turns import OnSpent
from graph.nodes.paid import paid
from graph.nodes.pause import at_limit
from graph.nodes.reading import error_of, limits_of, messages_of, number_of, plan_of, sources_of, toolsets_of
from graph.ports import Ports
from graph.spec import State
from policy.budget import TURN_CODES, spent
from policy.day_budget import DAY_CODES
from policy.loading import offered_tools
from policy.refusals import STOPPED
from policy.toolsets import LOAD_TOOLSET, known_toolsets, offered_cards

BUDGET_CODES = DAY_CODES | TURN_CODES
"""Problems of a call that a budget ended."""
STOP_CODES = {STOPPED.code: "stopped", **dict.fromkeys(BUDGET_CODES, "limited")}
"""Problems that end a run otherwise than as failed: code to status."""


def ended_by(problem: Problem) -> str:
    """The status of a run that a problem ends."""
    return STOP_CODES.get(problem.code, "failed")


def spent_by(state: State) -> Problem | None:
    """The limit that the turn has met, if it has met one."""
    return spent(
        limits_of(state),
        tokens_used=number_of(state, "tokens_used"),
        cost_microusd=number_of(state, "cost_microusd"),
    )


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model with every tool of the plan that is not a block of a skill which is not loaded (S0-41)."""

    extract_pattern: str = ""
    by_toolsets: bool = False
    """Whether of the tools that belong to toolsets only those of loaded ones are offered, beside `load_toolset`."""
    deaf: bool = False
    """Whether what the user sends into the turn stays unheard by it, and becomes a turn of its own."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A failure, or a budget that is spent, comes back as `error` (S0-05, S0-40); where people may be asked for a
        higher limit of the turn's own, it waits for them."""
        if error_of(state) is not None:
            return {}
        over, plan = spent_by(state), plan_of(state)
        asks = plan.limits.on_spent is OnSpent.ASK
        if over is not None and asks:
            return at_limit(state, ports, over)
        if over is not None:
            ports.events.emit(BUDGET, {"code": over.code, "message": over.message})
            return {"error": over.model_dump(mode="json"), "status": "limited"}
        user, injected = state["user"], state.get("injected_skill_ids")
        tools = offered_tools(plan, map(str, injected) if isinstance(injected, list) else ())
        loaded = toolsets_of(state) if self.by_toolsets else None
        reply = await ports.model.complete(
            ModelAsk(
                messages=tuple(messages_of(state)),
                tools=tools if loaded is None else _within(plan, tools, loaded),
                prompt=user if isinstance(user, dict) else {},
                extract_pattern=self.extract_pattern,
                deaf=self.deaf,
                toolsets=loaded,
                ttft_told=bool(state.get("ttft_emitted")),
                sections=sources_of(state),
                guidance=str(state.get("context_guidance") or ""),
            )
        )
        if reply.problem is not None and reply.problem.code in TURN_CODES and asks:
            # What an answer had said that was broken off is left: the model is asked again.
            counted = _patch(state, reply.model_copy(update={"message": None, "problem": None}))
            return counted | at_limit({**state, **counted}, ports, reply.problem)
        if reply.problem is not None and reply.problem.code in BUDGET_CODES:
            ports.events.emit(BUDGET, {"code": reply.problem.code, "message": reply.problem.message})
        return _patch(state, reply)


def _within(plan: TurnPlan, tools: Sequence[str], loaded: dict[str, bool]) -> tuple[str, ...]:
    """Those of `tools` that the loaded toolsets open, and the tool that loads others where there are any."""
    opened = set(offered_cards(plan.cards, loaded))
    own = (LOAD_TOOLSET,) if known_toolsets(plan.cards) else ()
    return (*own, *(name for name in tools if name in opened))


def _patch(state: State, reply: ModelReply) -> Patch:
    before = state["messages"]
    messages: list[JsonValue] = list(before) if isinstance(before, list) else []
    patch: Patch = {**paid(state, reply), "pending_tool_calls": []}
    if "extracted" in state:
        patch["extracted"] = [*reply.extracted]
    if "ttft_emitted" in state and reply.message is not None and reply.message.text:
        patch["ttft_emitted"] = True
    said = [*reply.joined, *([reply.message] if reply.message is not None else [])]
    if said:
        patch["messages"] = [*messages, *(message.model_dump(mode="json") for message in said)]
    if reply.message is not None:
        patch["pending_tool_calls"] = [call.model_dump(mode="json") for call in reply.message.calls]
    if reply.problem is not None:
        patch |= {"error": reply.problem.model_dump(mode="json"), "status": ended_by(reply.problem)}
        patch["pending_tool_calls"] = []
    return patch
