"""resume_guard: reconcile a gated round with its verdicts (S0-32 to S0-37). What it cannot read, it does not pass."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.approvals import Verdicts
from contracts.messages import MessageRef, Patch, Role
from contracts.people import RequestKind, RequestRef, Verdict, VerdictState
from graph.nodes.fields import AWAITING_HITL, INITIAL
from graph.nodes.pass_checkpoint import passed, record_unasked
from graph.nodes.pass_limit import raised
from graph.nodes.reading import error_of, messages_of, outcomes_of, requests_of
from graph.ports import Ports
from graph.spec import State
from policy.gate import open_requests, round_is_decided, round_is_refused, startable
from policy.refusals import STOPPED


@dataclass(frozen=True, slots=True)
class AwaitVerdict:
    """Pass where nothing is gated; else start what is decided, acknowledge, go on past a checkpoint, or pause again."""

    ungated_first: bool = False
    """As RunTools': calls that need nobody run before any verdict, and a round that is refused whole stays, each call
    with its denial (S2-37)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Verdicts are read fresh from their durable records, every time (S0-37)."""
        requests = requests_of(state, "pending_mutation")
        if not requests or error_of(state) is not None:
            return {}
        read = await ports.people.verdicts(requests)
        if read.problem is not None and read.problem.code == STOPPED.code:
            return {"error": read.problem.model_dump(mode="json"), "status": "stopped"}
        if read.problem is not None:
            return _paused(requests)
        kinds = {request.kind for request in requests}
        if not kinds & {RequestKind.LIMIT, RequestKind.CHECKPOINT}:
            return self._of_round(state, requests, read)
        if not round_is_decided(read.verdicts, len(requests)):
            return _paused(requests)
        if RequestKind.LIMIT in kinds:
            return raised(state, read)
        record_unasked(ports, read.verdicts)
        return passed(state, read.verdicts)

    def _of_round(self, state: State, requests: Sequence[RequestRef], read: Verdicts) -> Patch:
        """Each call by its own request; refused whole, with nothing of it begun, the round is dropped."""
        done = outcomes_of(state)
        whole = not self.ungated_first and not done and not open_requests(requests, read.verdicts)
        if whole and round_is_refused(read.verdicts):
            return _acknowledge(state, read.verdicts)
        gated_round = MessageRef.model_validate(state["pending_round"])
        calls = [call.call_id for call in gated_round.calls if not call.answer_id]
        start = startable(calls, requests, read.verdicts, begun=done, ungated_first=self.ungated_first)
        return _replay(state, gated_round, start) if start else _paused(requests)


def _paused(requests: Sequence[RequestRef]) -> Patch:
    return {
        "status": AWAITING_HITL,
        "pending_requests": [request.model_dump(mode="json") for request in requests],
        "pending_tool_calls": [],
    }


def _acknowledge(state: State, verdicts: Sequence[Verdict]) -> Patch:
    """Nothing of the round may run: drop it and tell the model why (S0-34)."""
    messages = [message.model_dump(mode="json") for message in messages_of(state)]
    note = MessageRef(
        role=Role.SYSTEM,
        text="\n".join(_told(verdict) for verdict in verdicts),
        quotes=tuple(verdict.request_id for verdict in verdicts if verdict.is_cut),
    )
    return {
        "status": "running",
        "llm_phase": INITIAL,  # S0-04, also where the synthesis had asked
        "skill_injection_done": False,  # the acknowledgement is the answer: no synthesis comes after it (S0-44)
        "pending_mutation": None,
        "pending_round": None,
        "pending_requests": [],
        "pending_tool_calls": [],
        "hitl_required": False,
        "hitl_approval_id": None,
        "hitl_reviewer_id": None,
        "messages": [*messages, note.model_dump(mode="json")],
    }


def _told(verdict: Verdict) -> str:
    what = {
        VerdictState.REJECTED: "was rejected",
        VerdictState.RESPONDED: "was answered instead of run",
        VerdictState.EXPIRED: "was not decided in time and counts as denied",
        VerdictState.CANCELLED: "was cancelled",
        VerdictState.WITHDRAWN: "was withdrawn",
    }.get(verdict.state, "was denied")
    by = f" by {verdict.decided_by}" if verdict.decided_by else ""
    why = f": {verdict.comment}" if verdict.comment else ""
    return (
        f"The call to {verdict.tool} {what}{by}{why}\n"
        "It has not run. Tell the user so, with the reason, and do not call it again unless they ask."
    )


def _replay(state: State, gated_round: MessageRef, start: Collection[str]) -> Patch:
    """Rebuild the stripped round whole (S0-33), its assistant message first, and hand over the calls that may start.

    Whether they run is for the ledger: a settled call answers with its stored result, a denied one with its denial.
    """
    before = state["messages"]
    messages: list[JsonValue] = list(before) if isinstance(before, list) else []
    return {
        "status": "running",
        "pending_requests": [],
        "messages": [*messages, gated_round.model_dump(mode="json")],
        "pending_tool_calls": [call.model_dump(mode="json") for call in gated_round.calls if call.call_id in start],
    }
