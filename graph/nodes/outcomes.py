"""What a round of calls came to, as state (S0-46, S0-48)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.agents import TurnPlan
from contracts.errors import Problem
from contracts.messages import CallRef, Patch
from contracts.tools import CallState, ToolOutcome
from graph.nodes.call_model import ended_by
from graph.nodes.fields import TOOL_WRITABLE
from graph.nodes.reading import messages_of, number_of
from graph.spec import State
from policy.conditions import COUNTERS
from policy.entities import joined
from policy.firing import Ran


@dataclass(frozen=True, slots=True)
class Round:
    """A settled round."""

    patch: Patch
    ran: tuple[Ran, ...]
    """Its calls that answered, for the rules."""


def settled(
    state: State,
    plan: TurnPlan,
    calls: Sequence[CallRef],
    outcomes: Sequence[ToolOutcome],
    reviewed: Collection[str],
) -> Round:
    """Answers as messages, updates as fields, an iteration counted. `reviewed` calls are a reviewer's own edit of a
    call that rules have picked out: a person has seen to it, so no rule is asked again."""
    answers = [outcome.message for outcome in outcomes if outcome.message is not None]
    iteration = number_of(state, "iteration") + 1
    patch: Patch = {
        "messages": [message.model_dump(mode="json") for message in [*messages_of(state), *answers]],
        "pending_tool_calls": [],
        "pending_mutation": None,
        "pending_round": None,
        "settled_calls": [],
        "hitl_required": False,
        "hitl_approval_id": None,
        "hitl_reviewer_id": None,
        "iteration": iteration,
    }
    ran = []
    for call, outcome in zip(calls, outcomes, strict=True):
        card = plan.card(call.tool)
        # A tool may write fields that it asked to read and that are a tool's to write: no budget, no status.
        writable = TOOL_WRITABLE.intersection(card.wants_state) if card else ()
        for name, said in outcome.patch.items():
            if name in writable:
                patch[name] = _joined(state[name], patch.get(name, state[name]), said)
        if outcome.state is CallState.DONE and call.call_id not in reviewed:
            counters = {name: patch.get(name, state[name]) for name in COUNTERS}
            ran.append(Ran(call, outcome.facts, counters))
    return Round(patch, tuple(ran))


def _joined(before: JsonValue, now: JsonValue, said: JsonValue) -> JsonValue:
    """A field that several calls of a round have changed from what it was before all of them.

    Counters: each adds its own; 0 resets. Lists: what earlier calls have added stays.
    """
    if isinstance(before, list) and isinstance(now, list) and isinstance(said, list):
        return joined(before, now, said)
    counts = [each for each in (before, now, said) if isinstance(each, int) and not isinstance(each, bool)]
    if len(counts) < 3 or said == 0:
        return said
    return counts[1] + counts[2] - counts[0]


def over_limit(state: State) -> Patch:
    """The end of a turn that has made all its rounds (S0-60); empty where it may make another."""
    iteration, most = number_of(state, "iteration"), number_of(state, "max_iterations")
    if iteration < most:
        return {}
    over = Problem(
        code="iteration_limit",
        message=f"the turn made {iteration} rounds of tool calls, its limit; raise limits.max_iterations",
    )
    return {"error": over.model_dump(mode="json"), "status": "limited"}


def ended(problem: Problem) -> Patch:
    """The end that a problem makes."""
    return {"error": problem.model_dump(mode="json"), "status": ended_by(problem), "pending_tool_calls": []}
