"""How a round comes to a pause: what it asks people for, and the state that it leaves."""

from collections.abc import Sequence

from pydantic import JsonValue

from contracts.digests import canonical_json
from contracts.errors import Problem
from contracts.events import HITL_RULE_FIRE
from contracts.messages import CallRef, Patch
from contracts.people import GatedCall, RequestKind, RequestRef
from contracts.tools import ToolOutcome
from graph.nodes.fields import AWAITING_HITL, NAMED_INDIVIDUAL, ROLE_BASED
from graph.nodes.reading import messages_of, requests_of, reviewers_of
from graph.nodes.snapshot import snapshot
from graph.ports import Ports
from graph.spec import State
from policy.firing import Fired
from policy.gate import RULE_LIMIT_SPENT
from policy.waivers import told_of

MOST_KEPT_CHARACTERS = 16 * 1024
"""Of the outcomes that a partly run round carries through its pauses; a state rides through histories."""


def record_fires(ports: Ports, fired: Sequence[Fired]) -> None:
    """Put every fire on record, with where its rule comes from (S0-69)."""
    for each in fired:
        ports.events.emit(HITL_RULE_FIRE, each.fire.told(), each.call_id)


def record_waivers(ports: Ports, waived: Sequence[CallRef]) -> None:
    """Put on record which calls the tenant's policy lets pass, where a rule that stops one is told."""
    for each in waived:
        ports.events.emit(HITL_RULE_FIRE, told_of(each.tool), each.call_id)


def stripped(
    state: State,
    ports: Ports,
    gated: Sequence[GatedCall],
    unknown: Sequence[GatedCall],
    done: Sequence[ToolOutcome] = (),
    *,
    goes_on: bool = False,
) -> Patch:
    """Open every request at once and strip the round (S0-53 to S0-56); of what is `done` of it the outcomes are kept.

    The requests are all that the pause waits for: what was decided before is not asked for again.
    """
    messages = messages_of(state)
    asked = ports.people.ask(gated, unknown, snapshot(state, messages[:-1]), goes_on=goes_on)
    # Of calls that a reviewer made again the checkpoints stay: passing them is what rebuilds their round.
    reviewed = [each for each in requests_of(state, "pending_mutation") if each.kind is RequestKind.CHECKPOINT]
    checkpoint = next((each.checkpoint for each in gated if each.checkpoint), "before_tool_call")
    return _waits(state, asked, checkpoint if gated else "outcome_unknown") | {
        "pending_mutation": [*_dumped(reviewed), *_dumped(asked)],
        "pending_round": messages[-1].model_dump(mode="json"),
        "pending_tool_calls": [],
        "settled_calls": kept(done),
        "messages": [message.model_dump(mode="json") for message in messages[:-1]],
    }


def kept(done: Sequence[ToolOutcome]) -> list[JsonValue]:
    """Outcomes as a pause carries them: whole while they fit, beyond that only as settled, for the ledger has them."""
    found: list[JsonValue] = []
    left = MOST_KEPT_CHARACTERS
    for outcome in done:
        whole = outcome.model_dump(mode="json", exclude_defaults=True)
        size = len(canonical_json(whole))
        bare: JsonValue = {"call_id": outcome.call_id, "state": outcome.state.value}
        found.append(whole if size <= left else bare)
        left -= size if size <= left else 0
    return found


def at_checkpoint(state: State, ports: Ports, gated: Sequence[GatedCall]) -> Patch:
    """Have people look at what is there: nothing is stripped, for every call has its answer (S0-65 to S0-67)."""
    asked = ports.people.ask(gated, [], snapshot(state, messages_of(state), whole=True))
    return _waits(state, asked, gated[0].checkpoint) | {"pending_mutation": _dumped(asked), "pending_round": None}


def at_limit(state: State, ports: Ports, over: Problem) -> Patch:
    """Ask a reviewer to raise the limit that is spent; every call has its answer, so nothing is stripped."""
    asked = ports.people.ask(
        [GatedCall(call_id="", tool="", rule=RULE_LIMIT_SPENT, kind=RequestKind.LIMIT, message=over.message)],
        [],
        snapshot(state, messages_of(state), whole=True),
    )
    return _waits(state, asked, RequestKind.LIMIT) | {
        "pending_mutation": _dumped(asked),
        "pending_round": None,
        "pending_tool_calls": [],
    }


def _waits(state: State, asked: Sequence[RequestRef], checkpoint: str) -> Patch:
    reviewers = reviewers_of(state)
    return {
        "status": AWAITING_HITL,
        "hitl_required": True,
        "hitl_checkpoint_type": checkpoint,
        "hitl_approval_id": asked[0].request_id if asked else None,
        # Of several that are named no single one is it; whose list a request is on by now, its record knows.
        "hitl_reviewer_id": reviewers[0] if len(reviewers) == 1 else None,
        "hitl_reviewer_strategy": NAMED_INDIVIDUAL if reviewers else ROLE_BASED,
        "pending_requests": _dumped(asked),
    }


def _dumped(requests: Sequence[RequestRef]) -> list[JsonValue]:
    return [request.model_dump(mode="json") for request in requests]
