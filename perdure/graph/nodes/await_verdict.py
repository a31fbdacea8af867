"""resume_guard: reconciles a gated round with its verdicts. It never passes a verdict that it cannot read."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from perdure.contracts.activities import Verdicts
from perdure.contracts.approvals import RequestKind, RequestRef, Verdict, VerdictState
from perdure.contracts.errors import Problem
from perdure.contracts.events import HITL_WARNING
from perdure.contracts.ids import reviewed_call, step_of
from perdure.contracts.messages import MessageRef, Patch, Role
from perdure.core.approvals.gates import (
    ALLOWING_STATES,
    open_requests,
    refusal_text,
    round_is_decided,
    round_is_refused,
    startable_calls,
)
from perdure.core.calls.ledger import STOPPED
from perdure.graph.nodes.call_model import reached_limit
from perdure.graph.nodes.fields import (
    AWAITING_HITL,
    INITIAL,
    SYNTHESIS,
    error_of,
    messages_of,
    number_of,
    outcomes_of,
    requests_of,
)
from perdure.graph.nodes.run_tools import iteration_limit_patch
from perdure.graph.ports import Ports
from perdure.graph.spec import State

_CHECKPOINT_OUTCOMES = {
    VerdictState.REJECTED: "was rejected",
    VerdictState.EXPIRED: "expired undecided and counts as rejected",
    VerdictState.CANCELLED: "was cancelled",
    VerdictState.WITHDRAWN: "was withdrawn",
}


@dataclass(frozen=True, slots=True)
class AwaitVerdict:
    """A node that reads verdicts. It starts decided calls, acknowledges a refused round, passes a checkpoint, or pauses
    again.

    Without requests, it changes nothing.
    """

    ungated_first: bool = False
    """True if calls without a request run before any verdict, as in `RunTools`. A round whose calls are all refused
    then stays, and each call gets its denial."""
    refers: bool = False
    """True if the note about a refused round refers to the decisions' records. Otherwise it carries their text, which
    can be 100 KB for a round of 64 calls."""
    counts: bool = False
    """True if a refused round counts as an iteration, so that a model that repeats refused calls reaches the limit."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the patch for the current verdicts, which are read from their durable records every time."""
        requests = requests_of(state, "pending_mutation")
        if not requests or error_of(state) is not None:
            return {}
        read = await ports.people.verdicts(requests)
        if read.problem is not None and read.problem.code == STOPPED.code:
            return {"error": read.problem.model_dump(mode="json"), "status": "stopped"}
        if read.problem is not None:
            return _pause_patch(requests)
        kinds = {request.kind for request in requests}
        if not kinds & {RequestKind.LIMIT, RequestKind.CHECKPOINT}:
            return self._of_round(state, requests, read)
        if not round_is_decided(read.verdicts, len(requests)):
            return _pause_patch(requests)
        if RequestKind.LIMIT in kinds:
            return raise_limits(state, read)
        record_skipped_checkpoints(ports, read.verdicts)
        return pass_checkpoints(state, read.verdicts)

    def _of_round(self, state: State, requests: Sequence[RequestRef], read: Verdicts) -> Patch:
        """Starts each call by its own request. If all calls are refused and none has begun, drops the round."""
        done = outcomes_of(state)
        droppable = not self.ungated_first and not done and not open_requests(requests, read.verdicts)
        gated_round = MessageRef.model_validate(state["pending_round"])
        if droppable and round_is_refused(read.verdicts):
            patch = _drop_round(state, self._note(gated_round, read.verdicts))
            return patch | (_count_round(state) if self.counts else {})
        calls = [call.call_id for call in gated_round.calls if not call.answer_id]
        startable = startable_calls(calls, requests, read.verdicts, begun=done, ungated_first=self.ungated_first)
        return _replay_round(state, gated_round, startable) if startable else _pause_patch(requests)

    def _note(self, gated_round: MessageRef, verdicts: Sequence[Verdict]) -> MessageRef:
        """Returns what gives the model the reasons of a refused round."""
        if self.refers:
            step = step_of(gated_round.calls[0].call_id)
            return MessageRef(role=Role.SYSTEM, refused=((step, step),))
        return MessageRef(
            role=Role.SYSTEM,
            text="\n".join(refusal_text(verdict) for verdict in verdicts),
            quotes=tuple(verdict.request_id for verdict in verdicts if verdict.is_cut),
        )


def _pause_patch(requests: Sequence[RequestRef]) -> Patch:
    return {
        "status": AWAITING_HITL,
        "pending_requests": [request.model_dump(mode="json") for request in requests],
        "pending_tool_calls": [],
    }


def _drop_round(state: State, note: MessageRef) -> Patch:
    """Drops the round, of which no call can run, and adds `note`."""
    messages = [message.model_dump(mode="json") for message in messages_of(state)]
    return {
        "status": "running",
        "llm_phase": INITIAL,  # also if the synthesis phase made the calls
        "skill_injection_done": False,  # the acknowledgement is the answer, so no synthesis follows
        "pending_mutation": None,
        "pending_round": None,
        "pending_requests": [],
        "pending_tool_calls": [],
        "hitl_required": False,
        "hitl_approval_id": None,
        "hitl_reviewer_id": None,
        "messages": [*messages, note.model_dump(mode="json")],
    }


def _count_round(state: State) -> Patch:
    """Counts a refused round. The round after the last possible one ends the turn: the model can acknowledge the
    refusal before that."""
    iteration, limit = number_of(state, "iteration") + 1, number_of(state, "max_iterations")
    return {"iteration": iteration} | (
        iteration_limit_patch({**state, "iteration": iteration}) if iteration > limit else {}
    )


def _replay_round(state: State, gated_round: MessageRef, startable: Collection[str]) -> Patch:
    """Rebuilds the removed round, its assistant message first, with the calls that can start.

    The ledger decides whether they run. A settled call returns its stored result, a denied one its denial.
    """
    before = state["messages"]
    messages: list[JsonValue] = list(before) if isinstance(before, list) else []
    return {
        "status": "running",
        "pending_requests": [],
        "messages": [*messages, gated_round.model_dump(mode="json")],
        "pending_tool_calls": [call.model_dump(mode="json") for call in gated_round.calls if call.call_id in startable],
    }


# The turn continues, receives the reason for a rejection, or runs an edited call.
def pass_checkpoints(state: State, verdicts: Sequence[Verdict]) -> Patch:
    """Returns the state after these verdicts, one for each checkpoint of the pause.

    If a result is approved, the model receives no note and the result remains. If a call is edited, the edited call
    runs once as a separate call, in a round that the decision has written. If the outcome of such a call had to be
    settled, its checkpoints were passed before that pause. Their patch is in the state, except for the round that the
    pause removed.
    """
    settled = any(verdict.state is VerdictState.SETTLED for verdict in verdicts)
    refused = [] if settled else [verdict for verdict in verdicts if _is_refused(verdict)]
    notes = [_verdict_note(verdict) for verdict in refused]
    repeated_rounds = [verdict.round for verdict in verdicts if verdict.round is not None]
    before = messages_of(state)
    present_ids = {message.id for message in before if message.id}
    messages = [*before, *notes, *(each for each in repeated_rounds if each.id not in present_ids)]
    patch: Patch = {
        "status": "running",
        "messages": [message.model_dump(mode="json") for message in messages],
        "pending_tool_calls": [call.model_dump(mode="json") for each in repeated_rounds for call in each.calls],
        "pending_requests": [],
    }
    if any(verdict.state is not VerdictState.UNAVAILABLE for verdict in verdicts):
        patch["consecutive_failed_resolves"] = 0  # a reviewer has answered
    if not repeated_rounds:
        patch |= {
            "pending_mutation": None,
            "hitl_required": False,
            "hitl_checkpoint_type": "",
            "hitl_approval_id": None,
            "hitl_reviewer_id": None,
        } | iteration_limit_patch(state)
    if any(reviewed_call(verdict.call_id) is None for verdict in verdicts):
        patch |= _clear_forced(state, refused=bool(notes))
    return patch


def record_skipped_checkpoints(ports: Ports, verdicts: Sequence[Verdict]) -> None:
    """Records checkpoints that could not be opened, so that the turn continues without a review."""
    for verdict in verdicts:
        if verdict.state is VerdictState.UNAVAILABLE:
            data: dict[str, JsonValue] = {"approval_id": verdict.request_id, "tool": verdict.tool}
            ports.events.emit(HITL_WARNING, data, reviewed_call(verdict.call_id))


def _clear_forced(state: State, *, refused: bool) -> Patch:
    """Removes a checkpoint that the request forced, so that it opens once. If it was approved, the synthesis follows.
    If it was refused, the model acknowledges that and there is no synthesis."""
    metadata = state["metadata"]
    cleared: dict[str, JsonValue] = dict(metadata) if isinstance(metadata, dict) else {}
    cleared.pop("hitl_checkpoint_type", None)
    if refused:
        return {"metadata": cleared, "llm_phase": INITIAL, "skill_injection_done": False}
    return {"metadata": cleared, "llm_phase": SYNTHESIS}


def _is_refused(verdict: Verdict) -> bool:
    return verdict.state not in ALLOWING_STATES


def _verdict_note(verdict: Verdict) -> MessageRef:
    quotes = (verdict.request_id,) if verdict.is_cut else ()
    return MessageRef(role=Role.SYSTEM, text=_checkpoint_message(verdict), quotes=quotes)


def _checkpoint_message(verdict: Verdict) -> str:
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
    what = _CHECKPOINT_OUTCOMES.get(verdict.state, "was not approved")
    why = f": {verdict.comment}" if verdict.comment else ""
    return (
        f"{of} {what}{by}{why}\n"
        "Do not go on with it. Tell the user so, with the reason, and do not try it again unless they ask."
    )


def raise_limits(state: State, read: Verdicts) -> Patch:
    """Returns the state after this verdict. After a raise, the model is called in the phase that reached the limit."""
    patch: Patch = {
        "status": "running",
        "pending_mutation": None,
        "pending_requests": [],
        "pending_tool_calls": [],
        "hitl_required": False,
        "hitl_checkpoint_type": "",
        "hitl_approval_id": None,
        "hitl_reviewer_id": None,
    }
    refused = next((verdict for verdict in read.verdicts if verdict.state not in ALLOWING_STATES), None)
    if refused is None and read.limits is not None:
        return patch | {
            "max_tokens": read.limits.max_tokens,
            "max_cost_microusd": read.limits.max_cost_microusd,
        }
    over = reached_limit(state) or Problem(code="limit_not_raised", message="the turn requested a higher limit")
    problem = over.model_copy(update={"message": f"{over.message}; {_limit_message(refused)}"})
    return patch | {"error": problem.model_dump(mode="json"), "status": "limited"}


def _limit_message(refused: Verdict | None) -> str:
    if refused is None or refused.state is VerdictState.EXPIRED:
        return "no reviewer raised it in time"
    why = f": {refused.comment}" if refused.comment else ""
    return f"{refused.decided_by or 'a reviewer'} did not raise it{why}"
