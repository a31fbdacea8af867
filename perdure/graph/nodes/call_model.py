"""One model call of a phase: the budget check, the call, and its result as state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from perdure.contracts.agents import TurnPlan
from perdure.contracts.calls import ModelCallRequest, ModelReply, OutputAsk
from perdure.contracts.errors import Problem
from perdure.contracts.events import BUDGET
from perdure.contracts.messages import MessageRef, Patch, Role
from perdure.contracts.turns import OnSpent, Usage
from perdure.core.agents.skills import LOAD_SKILL
from perdure.core.agents.toolsets import LOAD_TOOLSET, known_toolsets, offered_cards, offered_tools
from perdure.core.budgets import DAY_CODES, TURN_CODES, spent_limit
from perdure.core.calls.endings import MAX_CONTINUATIONS
from perdure.core.calls.ledger import STOPPED
from perdure.core.calls.retries import TRIES, is_permanent
from perdure.graph.nodes.fields import (
    continuation_of,
    error_of,
    folded_patch,
    limits_of,
    messages_of,
    number_of,
    plan_of,
    sources_of,
    toolsets_of,
)
from perdure.graph.nodes.pause import pause_at_limit
from perdure.graph.nodes.skills import can_load, explained_patch, loaded_patch
from perdure.graph.ports import Ports
from perdure.graph.spec import State

BUDGET_CODES = DAY_CODES | TURN_CODES
"""The codes of problems that a spent budget causes."""
STOP_CODES = {STOPPED.code: "stopped", **dict.fromkeys(BUDGET_CODES, "limited")}
"""The status for each problem that ends a run with a status other than failed, by its code."""


def end_status(problem: Problem) -> str:
    """Returns the status of a run that this problem ends: that of a stop or limit, otherwise `failed`."""
    return STOP_CODES.get(problem.code, "failed")


def reached_limit(state: State) -> Problem | None:
    """Returns the problem if the turn has spent its tokens or money, or None."""
    return spent_limit(
        limits_of(state),
        tokens_used=number_of(state, "tokens_used"),
        cost_microusd=number_of(state, "cost_microusd"),
    )


@dataclass(frozen=True, slots=True)
class CallModel:
    """A node that calls the model. It offers every tool of the plan, except blocks of skills that are not loaded."""

    extract_pattern: str = ""
    skill_marks: bool = False
    """True if markers of skills are removed from the answer, and `extracted` has the ids that they select."""
    loads_skills: bool = False
    """True if `load_skill` is offered. A marker in an answer with calls loads its skill too."""
    by_toolsets: bool = False
    """True if tools of toolsets are offered only when their toolset is loaded, with `load_toolset` in addition."""
    deaf: bool = False
    """True if the call receives no message that the user sends to the open turn. Such a message starts its own turn."""
    folds: bool = False
    """True if the state keeps the settled rounds as ranges of steps, so that it stays small."""
    continues: bool = False
    """True if the topology comes back to this node while an answer that was cut is continued."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the patch of the call. A failure or a spent budget is its `error`. If reviewers can raise the spent
        limit of the turn, the run pauses for them."""
        if error_of(state) is not None:
            return {}
        state = {**state, **folded_patch(state)} if self.folds else state
        problem, plan = reached_limit(state), plan_of(state)
        reviewer_can_raise = plan.limits.on_spent is OnSpent.ASK
        if problem is not None and reviewer_can_raise:
            return pause_at_limit(state, ports, problem)
        if problem is not None:
            ports.events.emit(BUDGET, {"code": problem.code, "message": problem.message})
            return {"error": problem.model_dump(mode="json"), "status": "limited"}
        user = state["user"]
        continued, message_id = continuation_of(state)
        loaded = toolsets_of(state) if self.by_toolsets else None
        reply = await ports.model.complete(
            ModelCallRequest(
                messages=tuple(messages_of(state)),
                tools=self._tools(state, plan, loaded),
                prompt=user if isinstance(user, dict) else {},
                extract_pattern=self.extract_pattern,
                skill_marks=self.skill_marks,
                deaf=self.deaf or continued > 0,
                toolsets=loaded,
                ttft_told=bool(state.get("ttft_emitted")) or continued > 0,
                may_continue=self.continues and continued < MAX_CONTINUATIONS,
                continues=message_id if continued else None,
                sections=sources_of(state),
                guidance=str(state.get("context_guidance") or ""),
            )
        )
        if reply.problem is not None and reply.problem.code in TURN_CODES and reviewer_can_raise:
            # The answer was broken off, so its text is dropped and the model is called again.
            counted = _reply_patch(state, reply.model_copy(update={"message": None, "problem": None}))
            counted.pop("continuation", None)  # the answer that was cut before is continued later
            return counted | pause_at_limit({**state, **counted}, ports, reply.problem)
        if reply.problem is not None and reply.problem.code in BUDGET_CODES:
            ports.events.emit(BUDGET, {"code": reply.problem.code, "message": reply.problem.message})
        return self._with_skills(state, ports, reply)

    def _with_skills(self, state: State, ports: Ports, reply: ModelReply) -> Patch:
        """Returns the patch of a reply, with the skills that it loads."""
        patch = _reply_patch(state, reply)
        if not self.loads_skills or (reply.message is None and not self.by_toolsets):
            return patch
        patch |= loaded_patch({**state, **patch}, ports, reply, always=self.by_toolsets)
        ended = reply.problem is not None or reply.goes_on
        if reply.message is not None or ended or patch["selected_skill_ids"]:
            return patch
        return patch | explained_patch({**state, **patch}, reply.extracted)

    def _tools(self, state: State, plan: TurnPlan, loaded: dict[str, bool] | None) -> tuple[str, ...]:
        injected = state.get("injected_skill_ids")
        tools = offered_tools(plan, map(str, injected) if isinstance(injected, list) else ())
        loader = (LOAD_SKILL,) if self.loads_skills and can_load(plan) else ()
        return (*loader, *(tools if loaded is None else _loaded_tools(plan, tools, loaded)))


def _loaded_tools(plan: TurnPlan, tools: Sequence[str], loaded: dict[str, bool]) -> tuple[str, ...]:
    """Returns those of `tools` that the loaded toolsets contain, and `load_toolset` if the plan has toolsets."""
    offered = set(offered_cards(plan.cards, loaded))
    loader = (LOAD_TOOLSET,) if known_toolsets(plan.cards) else ()
    return (*loader, *(name for name in tools if name in offered))


def _reply_patch(state: State, reply: ModelReply) -> Patch:
    before = state["messages"]
    messages: list[JsonValue] = list(before) if isinstance(before, list) else []
    patch: Patch = {**add_costs(state, reply), "pending_tool_calls": []}
    continued, message_id = continuation_of(state)
    if "extracted" in state:
        before_it = state["extracted"] if continued else []
        patch["extracted"] = [*dict.fromkeys([*(before_it if isinstance(before_it, list) else []), *reply.extracted])]
    if "ttft_emitted" in state and reply.message is not None and reply.message.text:
        patch["ttft_emitted"] = True
    if "continuation" in state:
        patch["continuation"] = {}
    if reply.goes_on:
        last_id = reply.message.id if reply.message is not None else message_id
        patch["continuation"] = {"number": continued + 1, "message_id": last_id}
    added = [*reply.joined, *([reply.message] if reply.message is not None else [])]
    if added:
        messages = [each for each in messages if not message_id or _id_of(each) != message_id]
        patch["messages"] = [*messages, *(message.model_dump(mode="json") for message in added)]
    if reply.message is not None:
        patch["pending_tool_calls"] = [call.model_dump(mode="json") for call in reply.message.calls]
    if reply.problem is not None:
        patch |= {"error": reply.problem.model_dump(mode="json"), "status": end_status(reply.problem)}
        patch["pending_tool_calls"] = []
    return patch


def _id_of(message: JsonValue) -> JsonValue:
    return message.get("id") if isinstance(message, dict) else None


class PaidReply(Protocol):
    """A reply with its cost."""

    @property
    def usage(self) -> Usage:
        """The usage of the attempt that settled."""
        ...

    @property
    def turn_used(self) -> Usage | None:
        """The usage of the whole turn at that time, if it is known."""
        ...


def add_costs(state: State, *replies: PaidReply) -> Patch:
    """Returns the turn's counters after `replies`. Attempts that were broken off are paid for too; only a reply's
    `turn_used` includes them."""
    turn_usages = [reply.turn_used or Usage() for reply in replies]
    tokens = number_of(state, "tokens_used") + sum(reply.usage.tokens for reply in replies)
    cost_microusd = number_of(state, "cost_microusd") + sum(reply.usage.cost_microusd for reply in replies)
    return {
        "tokens_used": max(tokens, *(used.tokens for used in turn_usages)),
        "cost_microusd": max(cost_microusd, *(used.cost_microusd for used in turn_usages)),
    }


# Structured output: up to six tries, each with the fault of the last one; no object if all of them fail. These
# functions never raise, because the node continues without the object.
@dataclass(frozen=True, slots=True)
class WantedOutput:
    """A structured output, with the stage in which the agent defines its prompt."""

    stage: str
    fits: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class OutputResult:
    """The result of all tries."""

    value: dict[str, JsonValue] | None
    tokens: int = 0
    cost_microusd: int = 0
    tries: int = 0
    problem: Problem | None = None
    """The problem that ended the tries early, or None."""
    last: Problem | None = None
    """The problem of the last try if none of them gave the object, or None if that try gave another answer."""

    @property
    def cost(self) -> Patch:
        """The usage of the tries, for a state whose counters add up. If a problem ends the run, it includes that end.
        The run continues after any other failure."""
        patch: Patch = {"tokens_used": self.tokens, "cost_microusd": self.cost_microusd}
        if self.problem is not None and self.problem.code in STOP_CODES:
            patch |= {"error": self.problem.model_dump(mode="json"), "status": STOP_CODES[self.problem.code]}
        return patch


async def ask_object(state: State, ports: Ports, wanted: WantedOutput, messages: Sequence[MessageRef]) -> OutputResult:
    """Returns the object, if an answer fits the schema strictly. Returns no value after the last try, or immediately if
    another try cannot help."""
    tokens = cost = tries = 0
    last: Problem | None = None
    prompt = [*messages]
    user = state["user"]
    for form in TRIES:
        problem = _reached_limit_after(state, tokens, cost)
        if problem is not None:
            return OutputResult(None, tokens, cost, tries, problem)
        reply = await ports.model.complete(
            ModelCallRequest(
                messages=tuple(prompt),
                tools=(),
                prompt=user if isinstance(user, dict) else {},
                stage=wanted.stage,
                output=OutputAsk(name=wanted.stage, fits=wanted.fits, form=form),
            )
        )
        tries, last = tries + 1, reply.problem
        tokens += reply.usage.tokens
        cost += reply.usage.cost_microusd
        if reply.problem is not None and is_permanent(reply.problem):
            return OutputResult(None, tokens, cost, tries, reply.problem)
        if reply.problem is None and reply.value is not None:
            return OutputResult(reply.value, tokens, cost, tries)
        if reply.fault:
            prompt = [*messages, engine_note(f"Your last answer was refused: {reply.fault}")]
    return OutputResult(None, tokens, cost, tries, last=last)


def engine_note(text: str) -> MessageRef:
    """Returns a system message to the model, written by Perdure."""
    return MessageRef(role=Role.SYSTEM, text=text)


def _reached_limit_after(state: State, tokens: int, cost_microusd: int) -> Problem | None:
    used, paid = number_of(state, "tokens_used") + tokens, number_of(state, "cost_microusd") + cost_microusd
    return spent_limit(limits_of(state), tokens_used=used, cost_microusd=paid)
