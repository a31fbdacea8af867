"""resume_guard: reconcile a gated round with its verdicts (S0-32 to S0-37). What it cannot read, it does not pass."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.messages import MessageRef, Patch, Role
from contracts.people import RequestKind, Verdict, VerdictState
from graph.nodes.reading import error_of, messages_of, requests_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.skill_pipeline.nodes.pass_checkpoint import passed, record_unasked
from graph.topologies.skill_pipeline.nodes.pass_limit import raised
from graph.topologies.skill_pipeline.state import AWAITING_HITL, INITIAL
from policy.gate import round_is_decided, round_is_refused
from policy.refusals import STOPPED


@dataclass(frozen=True, slots=True)
class AwaitVerdict:
    """Pass where nothing is gated; else replay, acknowledge, go on past a checkpoint, or pause again."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Verdicts are read fresh from their durable records, every time (S0-37)."""
        requests = requests_of(state, "pending_mutation")
        if not requests or error_of(state) is not None:
            return {}
        read = await ports.people.verdicts(requests)
        if read.problem is not None and read.problem.code == STOPPED.code:
            return {"error": read.problem.model_dump(mode="json"), "status": "stopped"}
        if read.problem is not None or not round_is_decided(read.verdicts, len(requests)):
            return {
                "status": AWAITING_HITL,
                "pending_requests": [request.model_dump(mode="json") for request in requests],
                "pending_tool_calls": [],
            }
        if any(request.kind is RequestKind.LIMIT for request in requests):
            return raised(state, read)
        if any(request.kind is RequestKind.CHECKPOINT for request in requests):
            record_unasked(ports, read.verdicts)
            return passed(state, read.verdicts)
        gates = [verdict for verdict in read.verdicts if verdict.state is not VerdictState.SETTLED]
        effects = any(request.kind is RequestKind.EFFECT for request in requests)
        if not effects and round_is_refused(gates):
            return _acknowledge(state, read.verdicts)
        return _replay(state)


def _acknowledge(state: State, verdicts: Sequence[Verdict]) -> Patch:
    """Nothing of the round may run: drop it and tell the model why (S0-34)."""
    messages = [message.model_dump(mode="json") for message in messages_of(state)]
    note = MessageRef(role=Role.SYSTEM, text="\n".join(_told(verdict) for verdict in verdicts))
    return {
        "status": "running",
        "llm_phase": INITIAL,  # S0-04, also where the synthesis had asked
        "pending_mutation": None,
        "pending_round": None,
        "pending_requests": [],
        "pending_tool_calls": [],
        "hitl_required": False,
        "hitl_approval_id": None,
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


def _replay(state: State) -> Patch:
    """Rebuild the stripped round whole (S0-33): its assistant message, and every call of it.

    Which of them run is for the ledger: a settled call answers with its stored result, a denied one with its denial.
    """
    before = state["messages"]
    messages: list[JsonValue] = list(before) if isinstance(before, list) else []
    gated_round = MessageRef.model_validate(state["pending_round"])
    return {
        "status": "running",
        "pending_requests": [],
        "messages": [*messages, gated_round.model_dump(mode="json")],
        "pending_tool_calls": [call.model_dump(mode="json") for call in gated_round.calls],
    }
