"""tool_node: gate a round whole before anything of it runs, run what is decided of it, and ask the rules of its
outcomes once all of it is settled (S0-46, S0-52 to S0-59, S0-65)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from contracts.agents import TurnPlan
from contracts.errors import Problem
from contracts.events import TOOLS_PENDING
from contracts.messages import CallRef, MessageRef, Patch, Role
from contracts.people import GatedCall
from contracts.tools import CallState, ToolAsk, ToolOutcome
from graph.nodes.open_round import OpenRound, round_of, still_asked, to_settle
from graph.nodes.outcomes import Round, ended, over_limit, settled
from graph.nodes.pause import at_checkpoint, record_fires, record_waivers, stripped
from graph.nodes.reading import error_of, plan_of
from graph.ports import Ports
from graph.spec import State
from policy.conditions import COUNTERS
from policy.firing import Ruled, after_round, asked_paths, before_round
from policy.gate import gate_round
from policy.ledger import SETTLED
from policy.rules import Fire
from policy.toolsets import LOAD_TOOLSET, is_of_memory


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
