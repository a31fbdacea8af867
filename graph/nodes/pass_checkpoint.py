"""What a decided checkpoint leaves (S0-65, S0-66): the turn goes on, is told why not, or runs a call as a reviewer
changed it."""

from collections.abc import Sequence

from pydantic import JsonValue

from contracts.events import HITL_WARNING
from contracts.ids import reviewed_call
from contracts.messages import MessageRef, Patch, Role
from contracts.people import Verdict, VerdictState
from graph.nodes.fields import INITIAL, SYNTHESIS
from graph.nodes.outcomes import over_limit
from graph.nodes.reading import messages_of
from graph.ports import Ports
from graph.spec import State
from policy.gate import ALLOWING


def passed(state: State, verdicts: Sequence[Verdict]) -> Patch:
    """The state after these verdicts, one for each checkpoint of the pause.

    Approved, nothing is said to the model: the result stands as the tool gave it. Edited, the call is made again as a
    call of its own, once, in a round that the decision has written. Where such a call's outcome had to be settled, the
    checkpoints were passed before that pause: what they left is there, but for the round that it took away.
    """
    settled = any(verdict.state is VerdictState.SETTLED for verdict in verdicts)
    refused = [] if settled else [verdict for verdict in verdicts if _is_refused(verdict)]
    notes = [_note(verdict) for verdict in refused]
    again = [verdict.round for verdict in verdicts if verdict.round is not None]
    before = messages_of(state)
    there = {message.id for message in before if message.id}
    messages = [*before, *notes, *(each for each in again if each.id not in there)]
    patch: Patch = {
        "status": "running",
        "messages": [message.model_dump(mode="json") for message in messages],
        "pending_tool_calls": [call.model_dump(mode="json") for each in again for call in each.calls],
        "pending_requests": [],
    }
    if any(verdict.state is not VerdictState.UNAVAILABLE for verdict in verdicts):
        patch["consecutive_failed_resolves"] = 0  # somebody has answered
    if not again:
        patch |= {
            "pending_mutation": None,
            "hitl_required": False,
            "hitl_checkpoint_type": "",
            "hitl_approval_id": None,
            "hitl_reviewer_id": None,
        } | over_limit(state)
    if any(reviewed_call(verdict.call_id) is None for verdict in verdicts):
        patch |= _unforced(state, refused=bool(notes))
    return patch


def record_unasked(ports: Ports, verdicts: Sequence[Verdict]) -> None:
    """Put on record what goes on though nobody could be asked (S0-68)."""
    for verdict in verdicts:
        if verdict.state is VerdictState.UNAVAILABLE:
            told: dict[str, JsonValue] = {"approval_id": verdict.request_id, "tool": verdict.tool}
            ports.events.emit(HITL_WARNING, told, reviewed_call(verdict.call_id))


def _unforced(state: State, *, refused: bool) -> Patch:
    """A checkpoint that the request forced is asked for once. Approved, the synthesis is next; refused, the model
    acknowledges it and nothing is synthesised."""
    metadata = state["metadata"]
    left: dict[str, JsonValue] = dict(metadata) if isinstance(metadata, dict) else {}
    left.pop("hitl_checkpoint_type", None)
    if refused:
        return {"metadata": left, "llm_phase": INITIAL, "skill_injection_done": False}
    return {"metadata": left, "llm_phase": SYNTHESIS}


def _is_refused(verdict: Verdict) -> bool:
    return verdict.state not in ALLOWING


_WHAT = {
    VerdictState.REJECTED: "was rejected",
    VerdictState.EXPIRED: "expired undecided and counts as rejected",
    VerdictState.CANCELLED: "was cancelled",
    VerdictState.WITHDRAWN: "was withdrawn",
}


def _note(verdict: Verdict) -> MessageRef:
    quotes = (verdict.request_id,) if verdict.is_cut else ()
    return MessageRef(role=Role.SYSTEM, text=_told(verdict), quotes=quotes)


def _told(verdict: Verdict) -> str:
    of = f"The result of {verdict.tool}" if verdict.tool else "The answer"
    by = f" by {verdict.decided_by}" if verdict.decided_by else ""
    if verdict.state is VerdictState.UNAVAILABLE:
        return (
            f"HITL_WARNING: {of} should have been reviewed by a person, and nobody could be asked.\n"
            "You may go on, and must tell the user that nobody has reviewed it."
        )
    if verdict.state is VerdictState.RESPONDED:
        answer = f"{of} was answered{by}: {verdict.comment}\nGo on with this answer."
        return f"{answer} Do not call {verdict.tool} again unless it asks for that." if verdict.tool else answer
    what = _WHAT.get(verdict.state, "was not approved")
    why = f": {verdict.comment}" if verdict.comment else ""
    return (
        f"{of} {what}{by}{why}\n"
        "Do not go on with it. Tell the user so, with the reason, and do not try it again unless they ask."
    )
