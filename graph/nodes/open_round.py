"""A round of calls as tool_node finds it: fresh from the model, or come back from a pause with what was done before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.agents import TurnPlan
from contracts.messages import CallRef, MessageRef
from contracts.people import GatedCall, RequestKind, RequestRef
from contracts.tools import CallState, ToolOutcome
from graph.nodes.reading import calls_of, outcomes_of, requests_of
from graph.spec import State
from policy.gate import RULE_MUTATING, RULE_OUTCOME_UNKNOWN, rule_for


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
