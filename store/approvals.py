"""Opening the requests of a pause, and reading their verdicts fresh from the durable record (S0-37)."""

import secrets
from datetime import datetime

import asyncpg
from pydantic import JsonValue

from contracts.agents import PublishedAgent
from contracts.approvals import OpenAsk, Opened, Verdicts, VerdictsAsk
from contracts.digests import frozen_call_digest
from contracts.events import BUDGET, TOOL_AWAITING_APPROVAL, TOOL_DENIED
from contracts.ids import approval_id
from contracts.people import GatedCall, RequestKind, RequestRef, Verdict, VerdictState
from contracts.turns import Limits, TurnStatus
from policy.text import preview
from store import audit
from store.checkpoints import call_told_of, covered, edited_round, subject_of
from store.database import Connection
from store.journal import NewEvent, write

_PROMPT_CHARACTERS = 2_000
"""How much of the user's message a reviewer sees beside the call."""


async def open_requests(tx: Connection, ask: OpenAsk, agent: PublishedAgent) -> Opened | None:
    """Open every request of one pause and put the turn to wait; opening again answers with the same requests.

    None where the turn has ended or was stopped: nothing is opened for it.
    """
    turn = await tx.fetchrow(
        "SELECT t.user_id, t.ended_at IS NOT NULL OR t.stop_requested_at IS NOT NULL AS over, t.metadata, m.content "
        "FROM turns t JOIN messages m ON m.id = t.message_id WHERE t.id = $1 FOR UPDATE OF t",
        ask.address.turn_id,
    )
    if turn is None or turn["over"]:
        return None
    requests: list[RequestRef] = []
    events: list[NewEvent] = []
    decided = await tx.fetchval(
        "SELECT true FROM approvals WHERE turn_id = $1 AND call_id = ANY($2) AND status <> 'pending' LIMIT 1",
        ask.address.turn_id,
        [gated.call_id for gated in ask.gated],
    )
    for gated in ask.gated:
        request, is_new = await _open_one(tx, ask, gated, agent, turn)
        requests.append(request)
        if is_new:
            events.append(_awaiting(request, gated))
    requests += await _unknown_effects(tx, ask)
    await _wait(tx, ask.address.turn_id, requests)
    await write(tx, ask.address, events, pending=ask.events)
    return Opened(requests=tuple(requests), decided=bool(decided))


async def _open_one(
    tx: Connection, ask: OpenAsk, gated: GatedCall, agent: PublishedAgent, turn: asyncpg.Record
) -> tuple[RequestRef, bool]:
    found = await tx.fetchrow(
        "SELECT id, expires_at FROM approvals WHERE turn_id = $1 AND call_id = $2", ask.address.turn_id, gated.call_id
    )
    if found is not None:
        return _ref(str(found["id"]), gated, found["expires_at"]), False
    about = await subject_of(tx, ask, gated)
    card = agent.card(gated.tool)
    policy = agent.definition.approvals
    request_id, nonce = approval_id(ask.address.turn_id, gated.call_id), secrets.token_hex(16)
    digest = frozen_call_digest(
        tenant_id=ask.address.tenant_id,
        turn_id=ask.address.turn_id,
        call_id=gated.call_id,
        tool=gated.tool,
        tool_version=about.tool_version,
        args=covered(gated.kind, about.args, about.result),
        nonce=nonce,
    )
    expires_at = await tx.fetchval(
        "INSERT INTO approvals (id, tenant_id, conversation_id, turn_id, call_id, agent_id, tool, tool_version, "
        "effect, risk, description, args, schema, digest, nonce, rule, prompt_excerpt, snapshot, requested_by, "
        "reviewer_role, allow_self_approval, expires_at, kind, checkpoint, reason, result) "
        "VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6, $7, $8, $9, "
        "$10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, now() + make_interval(secs => $21), "
        "$22, $23, $24, $25) "
        "RETURNING expires_at",
        request_id,
        ask.address.conversation_id,
        ask.address.turn_id,
        gated.call_id,
        ask.agent_id,
        gated.tool,
        about.tool_version,
        about.effect,
        card.risk if card else "high",
        card.description if card else "",
        about.args,
        card.parameters if card else {},
        digest,
        nonce,
        gated.rule,
        turn["content"][:_PROMPT_CHARACTERS],
        {**ask.snapshot, "metadata": turn["metadata"]},
        turn["user_id"],
        policy.reviewer_role,
        policy.allow_self_approval,
        policy.expires_seconds,
        gated.kind.value,
        gated.checkpoint,
        gated.message,
        about.result,
    )
    await audit.record(
        tx,
        "approval.opened",
        request_id,
        {"tool": gated.tool, "rule": gated.rule, "digest": digest, "call_id": gated.call_id},
        actor=str(turn["user_id"]),
        turn_id=ask.address.turn_id,
    )
    return _ref(request_id, gated, expires_at), True


def _ref(request_id: str, gated: GatedCall, expires_at: datetime) -> RequestRef:
    return RequestRef(
        request_id=request_id, kind=gated.kind, call_id=gated.call_id, tool=gated.tool, expires_at=expires_at
    )


def _awaiting(request: RequestRef, gated: GatedCall) -> NewEvent:
    data: dict[str, JsonValue] = {
        "tool": request.tool,
        "approval_id": request.request_id,
        "rule": gated.rule,
        "expires_at": request.expires_at.isoformat() if request.expires_at else None,
    }
    if gated.kind is RequestKind.LIMIT:
        return NewEvent(BUDGET, {"code": "limit_spent", "message": gated.message, **data})
    if gated.checkpoint:
        data["checkpoint"] = gated.checkpoint
    return NewEvent(TOOL_AWAITING_APPROVAL, data, call_told_of(gated.kind, gated.call_id))


async def _unknown_effects(tx: Connection, ask: OpenAsk) -> list[RequestRef]:
    rows = await tx.fetch(
        "SELECT call_id, key, tool FROM tool_calls WHERE turn_id = $1 AND call_id = ANY($2) ORDER BY call_id",
        ask.address.turn_id,
        [call.call_id for call in ask.unknown],
    )
    return [
        RequestRef(request_id=row["key"], kind=RequestKind.EFFECT, call_id=row["call_id"], tool=row["tool"])
        for row in rows
    ]


async def _wait(tx: Connection, turn_id: str, requests: list[RequestRef]) -> None:
    expiries = [request.expires_at for request in requests if request.expires_at]
    since: datetime = await tx.fetchval("SELECT now()")
    await tx.execute(
        "UPDATE turns SET status = $2, waiting = $3 WHERE id = $1",
        turn_id,
        TurnStatus.AWAITING_APPROVAL.value,
        {
            "kind": requests[0].kind.value if requests else RequestKind.APPROVAL.value,
            "ids": [request.request_id for request in requests],
            "since": since.isoformat(),
            "expires_at": min(expiries).isoformat() if expiries else None,
        },
    )


async def read_verdicts(tx: Connection, ask: VerdictsAsk) -> Verdicts:
    """Every request's verdict as the record says now; overdue ones expire here, by the database's clock.

    The turn's status stays: it runs again when its next call is claimed, so a lost answer of this leaves it waiting.
    """
    # The turn first: every writer of a turn's rows takes its lock before any other.
    turn = await tx.fetchrow("SELECT limits FROM turns WHERE id = $1 FOR UPDATE", ask.address.turn_id)
    expired = await tx.fetch(
        "UPDATE approvals SET status = 'expired', version = version + 1, decided_at = now() "
        "WHERE turn_id = $1 AND status = 'pending' AND expires_at <= clock_timestamp() "
        "RETURNING id, kind, call_id, tool",
        ask.address.turn_id,
    )
    for row in expired:
        await audit.record(tx, "approval.expired", str(row["id"]), {}, actor=None, turn_id=ask.address.turn_id)
    rows = await tx.fetch(
        "SELECT a.*, u.name AS decider FROM approvals a LEFT JOIN users u ON u.id = a.decided_by WHERE a.turn_id = $1",
        ask.address.turn_id,
    )
    approvals = {str(row["id"]): row for row in rows}
    effects = {
        row["key"]: row
        for row in await tx.fetch(
            "SELECT key, state, comment FROM tool_calls WHERE turn_id = $1 AND key = ANY($2)",
            ask.address.turn_id,
            [request.request_id for request in ask.requests],
        )
    }
    verdicts = tuple(
        _effect_verdict(request, effects.get(request.request_id))
        if request.kind is RequestKind.EFFECT
        else _verdict(request, approvals.get(request.request_id), ask)
        for request in ask.requests
    )
    denied = [
        NewEvent(TOOL_DENIED, {"tool": row["tool"], "reason": "expired"}, call_told_of(row["kind"], row["call_id"]))
        for row in expired
    ]
    if denied or ask.events:
        await write(tx, ask.address, denied, pending=ask.events)
    if turn is None or all(request.kind is not RequestKind.LIMIT for request in ask.requests):
        return Verdicts(verdicts=verdicts)
    return Verdicts(verdicts=verdicts, limits=Limits.model_validate(turn["limits"]))


_STATES = {state.value: state for state in VerdictState if state is not VerdictState.UNAVAILABLE} | {
    # Executed already, or under way: the call was allowed, and the ledger answers for it.
    "reserved": VerdictState.APPROVED,
    "done": VerdictState.APPROVED,
    "failed": VerdictState.APPROVED,
    "outcome_unknown": VerdictState.APPROVED,
}


def _verdict(request: RequestRef, row: asyncpg.Record | None, ask: VerdictsAsk) -> Verdict:
    unreadable = Verdict(
        request_id=request.request_id, call_id=request.call_id, tool=request.tool, state=VerdictState.UNREADABLE
    )
    if row is None:
        return unreadable.model_copy(update={"no_record": True})
    if row["call_id"] != request.call_id or row["status"] not in _STATES:
        return unreadable
    frozen = frozen_call_digest(
        tenant_id=row["tenant_id"],
        turn_id=ask.address.turn_id,
        call_id=row["call_id"],
        tool=row["tool"],
        tool_version=row["tool_version"],
        args=covered(row["kind"], row["args"], row["result"]),
        nonce=row["nonce"],
    )
    if frozen != row["digest"]:
        return unreadable
    decision, again = row["decision"] or {}, edited_round(row)
    return unreadable.model_copy(
        update={
            "state": VerdictState.EDITED if again else _STATES[row["status"]],
            "round": again,
            "comment": preview(decision.get("comment") or decision.get("reason_code") or ""),
            "decided_by": row["decider"] or "",
        }
    )


def _effect_verdict(request: RequestRef, row: asyncpg.Record | None) -> Verdict:
    state = VerdictState.UNREADABLE
    if row is not None:
        state = VerdictState.PENDING if row["state"] == "outcome_unknown" else VerdictState.SETTLED
    comment = preview(row["comment"] or "") if row is not None else ""
    return Verdict(
        request_id=request.request_id, call_id=request.call_id, tool=request.tool, state=state, comment=comment
    )
