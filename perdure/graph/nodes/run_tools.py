"""tool_node: gate a round whole before anything of it runs, run what is decided of it, and ask the rules of its
outcomes once all of it is settled (S0-46, S0-52 to S0-59, S0-65)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from perdure.contracts.agents import TurnPlan
from perdure.contracts.approvals import GatedCall, RequestKind, RequestRef
from perdure.contracts.calls import CallState, ToolAsk, ToolOutcome
from perdure.contracts.errors import Problem
from perdure.contracts.events import TOOLS_PENDING
from perdure.contracts.messages import CallRef, MessageRef, Patch, Role
from perdure.core.agents.rule_matching import Ran, Ruled, after_round, asked_paths, before_round
from perdure.core.agents.rules import COUNTERS, Fire
from perdure.core.agents.toolsets import LOAD_TOOLSET, is_of_memory
from perdure.core.approvals.gates import RULE_MUTATING, RULE_OUTCOME_UNKNOWN, gate_round, rule_for
from perdure.core.calls.ledger import SETTLED
from perdure.core.memory.facts import joined
from perdure.graph.nodes.call_model import ended_by
from perdure.graph.nodes.fields import (
    TOOL_WRITABLE,
    calls_of,
    error_of,
    messages_of,
    number_of,
    outcomes_of,
    plan_of,
    requests_of,
)
from perdure.graph.nodes.pause import at_checkpoint, record_fires, record_waivers, stripped
from perdure.graph.ports import Ports
from perdure.graph.spec import State

# --- A round of calls as tool_node finds it: fresh from the model, or come back from a pause with what was done before.


@dataclass(frozen=True, slots=True)
class OpenRound:
    """The calls of a round and how each stands."""

    calls: tuple[CallRef, ...]
    """All of them, in their order."""
    requests: tuple[RequestRef, ...]
    """What people have been asked about it and the pause still waited for; empty for a fresh round."""
    waiting: Mapping[str, RequestRef]
    """By call: what a call that may not start waits for."""
    done: Mapping[str, ToolOutcome]
    """By call: what was settled before the pause."""

    @property
    def unasked(self) -> list[CallRef]:
        """The calls that are to run and that nobody has been asked about."""
        asked = {request.call_id for request in self.requests}
        return [call for call in self.calls if not call.settled and call.call_id not in asked | self.done.keys()]

    @property
    def to_run(self) -> list[CallRef]:
        """The calls without an answer, those that wait too."""
        return [call for call in self.calls if not call.answer_id and call.call_id not in self.done]

    @property
    def reviewed(self) -> set[str]:
        """The calls that a reviewer has made again at a checkpoint."""
        return {request.call_id for request in self.requests if request.kind is RequestKind.CHECKPOINT}


def round_of(state: State) -> OpenRound:
    """The round that a state is about to run.

    Of one that a verdict has freed the state names the calls that may start (S0-33), the pause's round has them all.
    """
    calls = tuple(calls_of(state))
    requests = tuple(requests_of(state, "pending_mutation"))
    found = OpenRound(calls, requests, {}, outcomes_of(state) if requests else {})
    if not requests or found.reviewed:
        return found
    start = {call.call_id for call in calls}
    waiting = {request.call_id: request for request in requests if request.call_id not in start}
    return OpenRound(MessageRef.model_validate(state["pending_round"]).calls, requests, waiting, found.done)


def still_asked(plan: TurnPlan, requests: Sequence[RequestRef]) -> list[GatedCall]:
    """What waits for leave, to be asked for again. Its record stands, with the rule that fired then: opening it again
    changes nothing of it."""
    return [
        GatedCall(call_id=each.call_id, tool=each.tool, rule=_rule(plan, each))
        for each in requests
        if each.kind is RequestKind.APPROVAL
    ]


def to_settle(
    calls: Sequence[CallRef], requests: Sequence[RequestRef], outcomes: Mapping[str, ToolOutcome]
) -> list[GatedCall]:
    """The calls whose outcome nobody knows, from this run and from before it."""
    open_effects = {each.call_id for each in requests if each.kind is RequestKind.EFFECT}
    return [
        GatedCall(call_id=call.call_id, tool=call.tool, rule=RULE_OUTCOME_UNKNOWN)
        for call in calls
        if call.call_id in open_effects
        or (call.call_id in outcomes and outcomes[call.call_id].state is CallState.OUTCOME_UNKNOWN)
    ]


def _rule(plan: TurnPlan, request: RequestRef) -> str:
    return rule_for(plan, CallRef(call_id=request.call_id, tool=request.tool, digest="")) or RULE_MUTATING


# --- What a round of calls came to, as state (S0-46, S0-48).


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


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run the pending calls, or pause for the people who must decide on them."""

    ungated_first: bool = False
    """Whether the calls of a gated round that need nobody run as soon as its requests are open (S2-36). Else nothing
    runs before the first call is allowed (S0-56); then they run beside it, as the round is sure to be rebuilt."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Each gated call starts once its own request is decided; the ledger still checks its approval (S0-57).

        The model is called when all of the round is settled, and until then nothing of it stays in the messages.
        """
        if error_of(state) is not None:
            return {"pending_tool_calls": []}
        plan, found = plan_of(state), round_of(state)
        if found.requests:
            ruled = Ruled(gated=gate_round(plan, found.unasked))
        else:
            ruled = before_round(plan, found.unasked, {name: state[name] for name in COUNTERS})
            if pending := _pending(plan, found.calls, ruled.gated):
                ports.events.emit(TOOLS_PENDING, {"calls": pending})
            record_fires(ports, ruled.fired)
            record_waivers(ports, ruled.waived)
        if ruled.abort is not None:
            return ended(_aborted(ruled.abort))
        if ruled.gated:
            return self._gated(state, ports, plan, found, ruled.gated)
        asks = [_ask(state, plan, call) for call in found.to_run]
        outcomes = await ports.tools.run(asks, [*found.waiting.values()])
        return await _went_on(state, ports, plan, found, outcomes)

    def _gated(self, state: State, ports: Ports, plan: TurnPlan, found: OpenRound, gated: Sequence[GatedCall]) -> Patch:
        """Nothing of the round runs in this visit (S0-59); what was asked for before is asked for with it."""
        free = len(found.unasked) > len(gated)
        unknown = to_settle(found.calls, found.requests, {})
        asked = [*still_asked(plan, found.requests), *gated]
        return stripped(state, ports, asked, unknown, [*found.done.values()], goes_on=self.ungated_first and free)


async def _went_on(
    state: State, ports: Ports, plan: TurnPlan, found: OpenRound, outcomes: Sequence[ToolOutcome]
) -> Patch:
    """What the round has come to: a pause for what is open of it, its end, or all of it settled."""
    new = {outcome.call_id: outcome for outcome in outcomes}
    open_ones = [found.waiting[each.call_id] for each in outcomes if _waits(each)]
    unknown = to_settle(found.calls, open_ones, new)
    problem = next((outcome.problem for outcome in outcomes if outcome.problem is not None), None)
    if unknown or (open_ones and problem is None):
        done = {**found.done, **{each.call_id: each for each in outcomes if each.state in SETTLED}}
        kept = [done[call.call_id] for call in found.calls if call.call_id in done]
        return stripped(state, ports, still_asked(plan, open_ones), unknown, kept)
    if problem is not None:
        return ended(problem)
    missing = [call for call in found.calls if call.call_id in found.done and found.done[call.call_id].message is None]
    if missing:  # the pause could not carry them; the ledger answers with what it has stored
        stored = await ports.tools.run([_ask(state, plan, call) for call in missing])
        rest = {call_id: each for call_id, each in found.done.items() if each.message is not None}
        return await _went_on(state, ports, plan, replace(found, done=rest), [*outcomes, *stored])
    done = {**found.done, **new}
    every = [_refused(call) if call.answer_id else done[call.call_id] for call in found.calls]
    return _looked_at(state, ports, plan, settled(state, plan, found.calls, every, found.reviewed))


def _waits(outcome: ToolOutcome) -> bool:
    return outcome.state is CallState.PLANNED and outcome.problem is None


def _pending(plan: TurnPlan, calls: Sequence[CallRef], gated: Sequence[GatedCall]) -> list[JsonValue]:
    """What is told of a round; the engine's own calls are not (S2-35)."""
    needing = {call.call_id for call in gated}
    told = [call for call in calls if call.tool != LOAD_TOOLSET and not _is_memory(plan, call)]
    return [{"call_id": call.call_id, "tool": call.tool, "requires_approval": call.call_id in needing} for call in told]


def _is_memory(plan: TurnPlan, call: CallRef) -> bool:
    card = plan.card(call.tool)
    return card is not None and is_of_memory(card)


def _ask(state: State, plan: TurnPlan, call: CallRef) -> ToolAsk:
    card = plan.card(call.tool)
    if card is None:
        return ToolAsk(call_id=call.call_id, tool=call.tool)
    return ToolAsk(
        call_id=call.call_id,
        tool=call.tool,
        timeout_seconds=card.timeout_seconds,
        state={name: state[name] for name in card.wants_state if name in state},
        paths=asked_paths(plan, call.tool),
    )


def _refused(call: CallRef) -> ToolOutcome:
    """What a call that could not run came to where it was planned: it costs no activity."""
    answer = MessageRef(id=call.answer_id, role=Role.TOOL, call_id=call.call_id)
    return ToolOutcome(call_id=call.call_id, state=CallState.FAILED, message=answer)


def _looked_at(state: State, ports: Ports, plan: TurnPlan, done: Round) -> Patch:
    """The round's patch, with what the rules make of it: its end, a checkpoint, or nothing. A pause comes before the
    limit (S0-06)."""
    ruled = after_round(plan, done.ran)
    record_fires(ports, ruled.fired)
    after = {**state, **done.patch}
    if ruled.abort is not None:
        return done.patch | ended(_aborted(ruled.abort))
    if ruled.gated:
        return done.patch | at_checkpoint(after, ports, ruled.gated)
    return done.patch | over_limit(after)


def _aborted(fired: Fire) -> Problem:
    message = fired.message or f"the rule {fired.rule_id} ends the turn at a call to {fired.tool}"
    return Problem(code="rule_abort", message=message)
