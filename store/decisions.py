"""Deciding on an approval: one conditional UPDATE, made once, with its audit row and its wake-up."""

import asyncpg
from pydantic import JsonValue

from contracts.digests import frozen_call_digest
from contracts.errors import CallerError, InvariantBroken
from contracts.events import TOOL_APPROVED, TOOL_DENIED
from contracts.frozen import Frozen
from contracts.people import RequestKind
from contracts.turns import TurnAddress
from policy.arguments import check_arguments
from policy.decision import STATUS_OF, Decider, Decision, Facts, refusal
from store import audit
from store.checkpoints import call_told_of, plan_again
from store.database import Connection
from store.ids import new_id
from store.journal import NewEvent, write
from store.outbox import Note, Wake, put


class DecisionAsk(Frozen):
    """A reviewer's decision as it comes from the API."""

    decision: Decision
    digest: str
    args: dict[str, JsonValue] | None = None
    comment: str = ""
    reason_code: str = ""
    channel: str = "api"


class Decided(Frozen):
    """A decision that now stands."""

    approval_id: str
    status: str
    version: int
    turn_id: str
    conversation_id: str


async def decide(
    tx: Connection, approval_id: str, decider: Decider, name: str, ask: DecisionAsk
) -> tuple[Decided, Note]:
    """Take `ask` as the one decision on this approval; the note is the turn's doorbell.

    Raises: CallerError 404, 403, 409 decided (with the decision), 410, 409 digest, 422, in this order.
    """
    # The turn's row before the approval's, as everywhere: the two never wait for each other crosswise.
    turn = await tx.fetchrow(
        "SELECT t.id, t.conversation_id, t.tenant_id, t.stop_requested_at FROM turns t "
        "WHERE t.id = (SELECT turn_id FROM approvals WHERE id = $1) FOR UPDATE",
        approval_id,
    )
    if turn is None:
        raise CallerError("approval_not_found", "there is no such approval", status=404)
    row = await tx.fetchrow("SELECT *, clock_timestamp() AS now FROM approvals WHERE id = $1 FOR UPDATE", approval_id)
    if row is None:
        raise InvariantBroken("approval_vanished", "an approval's row went away under its turn's lock")
    facts = Facts(
        row["status"],
        row["digest"],
        row["expires_at"],
        row["now"],
        str(row["requested_by"]),
        row["reviewer_role"],
        row["allow_self_approval"],
        row["decision"] or {},
        editable=row["kind"] == RequestKind.APPROVAL or bool(row["tool"]),
    )
    refused = refusal(
        facts,
        decider,
        ask.decision,
        ask.digest,
        reasoned=bool(ask.comment.strip() or ask.reason_code.strip()),
        args_given=ask.args is not None,
        text=bool(ask.comment.strip()),
    )
    if refused is not None:
        raise refused
    if row["kind"] == RequestKind.LIMIT and ask.decision is not Decision.REJECT:
        raise CallerError("raise_the_limit", "raise it with POST /v1/turns/{id}/limits, or reject it", status=422)
    if turn["stop_requested_at"] is not None:
        stopped: dict[str, object] = {"turn_id": str(turn["id"]), "stopped_at": turn["stop_requested_at"]}
        raise CallerError("turn_stopped", "the turn was stopped; nothing of it runs any more", stopped, status=409)
    record = _record(row, turn["tenant_id"], ask, name)
    again = row["kind"] == RequestKind.CHECKPOINT and "args" in record
    if again:
        record["message_id"] = new_id()
    version = await tx.fetchval(
        "UPDATE approvals SET status = $2, decision = $3 || jsonb_build_object('at', clock_timestamp()), "
        "decided_by = $4, decided_at = clock_timestamp(), version = version + 1 "
        "WHERE id = $1 AND status = 'pending' AND expires_at > clock_timestamp() RETURNING version",
        approval_id,
        STATUS_OF[ask.decision],
        record,
        decider.user_id,
    )
    if version is None:
        raise CallerError("approval_expired", "the approval expired undecided and counts as denied", status=410)
    address = TurnAddress(
        tenant_id=turn["tenant_id"], conversation_id=str(turn["conversation_id"]), turn_id=str(turn["id"])
    )
    await audit.record(tx, "approval.decided", approval_id, record, actor=decider.user_id, turn_id=address.turn_id)
    note = await put(tx, address.tenant_id, Wake.RING, address.turn_id, approval_id)
    allowed = ask.decision in (Decision.APPROVE, Decision.EDIT)
    event: dict[str, JsonValue] = {
        "tool": row["tool"],
        "approval_id": approval_id,
        "decision": ask.decision.value,
        "by": name,
        "comment": ask.comment or ask.reason_code,
    }
    if row["checkpoint"]:
        event["checkpoint"] = row["checkpoint"]
    told = NewEvent(TOOL_APPROVED if allowed else TOOL_DENIED, event, call_told_of(row["kind"], row["call_id"]))
    await write(tx, address, [told], [await plan_again(tx, row, record)] if again else [])
    decided = Decided(
        approval_id=approval_id,
        status=STATUS_OF[ask.decision],
        version=version,
        turn_id=address.turn_id,
        conversation_id=address.conversation_id,
    )
    return decided, note


def _record(row: asyncpg.Record, tenant_id: str, ask: DecisionAsk, name: str) -> dict[str, JsonValue]:
    """The decision as stored; an edit carries its own arguments and digest, so both versions stay (S0-39)."""
    record: dict[str, JsonValue] = {
        "type": ask.decision.value,
        "by": name,
        "comment": ask.comment,
        "reason_code": ask.reason_code,
        "channel": ask.channel,
        "seen_digest": ask.digest,
    }
    if ask.decision is not Decision.EDIT or ask.args is None:
        return record
    checked = check_arguments(ask.args, row["schema"])
    if checked.fault is not None:
        raise CallerError("args_invalid", f"the edited arguments do not fit: {checked.fault}", status=422)
    digest = frozen_call_digest(
        tenant_id=tenant_id,
        turn_id=str(row["turn_id"]),
        call_id=row["call_id"],
        tool=row["tool"],
        tool_version=row["tool_version"],
        args=checked.args,
        nonce=row["nonce"],
    )
    return {**record, "args": checked.args, "digest": digest, "args_before": row["args"]}
