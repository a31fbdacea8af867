"""preflight: intent and safety, asked side by side, and nothing of a turn before them (S1-12, S1-16). Words of danger
take the turn over before that: they are looked for where the whole message is, as the turn is loaded."""

import asyncio
from dataclasses import dataclass

from contracts.errors import Problem
from contracts.events import BUDGET, STAGE
from contracts.memory import TurnContext
from contracts.messages import Patch
from contracts.model import ModelReply
from graph.nodes.call_model import BUDGET_CODES, STOP_CODES, ended_by, spent_by
from graph.nodes.paid import paid
from graph.nodes.recalled import found_gate, planned, remembered
from graph.ports import Ports
from graph.spec import State
from graph.topologies.context_assembly.nodes.asking import asked, assembly_of
from policy.classification import Question, Safety, intent_of, safety_of

NO_ASSEMBLY = Problem(code="no_assembly", message="the agent has no `assembly`, which its topology needs")


@dataclass(frozen=True, slots=True)
class Classify:
    """Begin the turn and have it classified. A verdict that did not come, or cannot be read, clears nothing."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The verdicts, and what the turn pinned. A turn that waits for a decision was cleared before it asked for it,
        so a cold resume is not classified anew."""
        context = await ports.memory.load()
        patch: Patch = {"completed_stages": ["preflight"], "status": "running"}
        if context.problem is not None:
            return patch | {"error": context.problem.model_dump(mode="json"), "status": ended_by(context.problem)}
        if context.plan is None or context.plan.assembly is None:
            return patch | {"error": NO_ASSEMBLY.model_dump(mode="json"), "status": "failed"}
        patch |= planned(context) | _context(context)
        if context.user_message is not None:
            patch |= remembered(context, context.user_message) | found_gate(context, context.user_message)
        after = {**state, **patch}
        if context.pending:
            ports.events.emit(STAGE, {"stage": "preflight", "resumed": True})
            return patch | {"safety_hijacked": False, "intent": assembly_of(after).default_intent}
        if context.context is not None and context.context.danger:
            return patch | _taken_over(after, ports, context.context.danger)
        over = spent_by(after)
        if over is not None:
            ports.events.emit(BUDGET, {"code": over.code, "message": over.message})
            return patch | {"error": over.model_dump(mode="json"), "status": "limited"}
        return patch | await _verdicts(after, ports)


def _taken_over(state: State, ports: Ports, category: str) -> Patch:
    """The message has words of danger: nobody is asked, and no budget is looked at."""
    intent = assembly_of(state).default_intent
    ports.events.emit(
        STAGE, {"stage": "preflight", "intent": intent, "safety_hijacked": True, "safety_category": category}
    )
    return {"safety_hijacked": True, "safety_category": category, "intent": intent}


async def _verdicts(state: State, ports: Ports) -> Patch:
    safety, intent = await asyncio.gather(asked(state, ports, Question.SAFETY), asked(state, ports, Question.INTENT))
    patch = paid(state, safety, intent)
    found = safety_of(safety.value)
    ended = _ended(safety, intent, found)
    if ended is not None:
        if ended.code in BUDGET_CODES:
            ports.events.emit(BUDGET, {"code": ended.code, "message": ended.message})
        return patch | {"error": ended.model_dump(mode="json"), "status": ended_by(ended)}
    plan = assembly_of(state)
    known = intent_of(intent.value, plan.intents, plan.default_intent)
    ports.events.emit(
        STAGE,
        {"stage": "preflight", "intent": known, "safety_hijacked": found.hijacked, "safety_category": found.category},
    )
    return patch | {"safety_hijacked": found.hijacked, "safety_category": found.category, "intent": known}


def _ended(safety: ModelReply, intent: ModelReply, found: Safety) -> Problem | None:
    """What ends the turn before it is classified: a stop, or a budget. One that only the intent has met ends no turn
    that is taken over: the fixed text costs nothing."""
    problems = (reply.problem for reply in (safety, intent))
    ended = next((each for each in problems if each is not None and each.code in STOP_CODES), None)
    only_intent = safety.problem is None or safety.problem.code not in STOP_CODES
    spent = ended is not None and ended.code in BUDGET_CODES
    return None if spent and only_intent and found.hijacked else ended


def _context(context: TurnContext) -> Patch:
    left = context.context
    if left is None:
        return {}
    return {"slice_hash": left.slice_hash, "kept_bundles": [each.model_dump(mode="json") for each in left.kept]}
