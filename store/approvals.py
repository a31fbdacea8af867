"""Opening the requests of a pause: each frozen with the call, and with the policy that it is decided by."""

import secrets
from datetime import datetime

import asyncpg
from pydantic import JsonValue

from contracts.agents import PublishedAgent
from contracts.approval_policy import HIGH_RISK, ApprovalPolicy
from contracts.approvals import OpenAsk, Opened
from contracts.digests import digest_of, frozen_call_digest
from contracts.events import BUDGET, TOOL_AWAITING_APPROVAL
from contracts.ids import approval_id
from contracts.people import GatedCall, PauseKind, RequestKind, RequestRef
from contracts.turns import TurnStatus
from policy.pause import pause_kind
from store import audit
from store.checkpoints import Subject, call_told_of, covered, subject_of
from store.database import Connection
from store.journal import NewEvent, write
from store.questions import open_questions

_PROMPT_CHARACTERS = 2_000
"""How much of the user's message a reviewer sees beside the call."""


async def open_requests(
    tx: Connection, ask: OpenAsk, agent: PublishedAgent, policy: ApprovalPolicy | None = None
) -> Opened | None:
    """Open every request of one pause and put the turn to wait; opening again answers with the same requests.

    `policy` is the one in force, where it is not the one that the turn began with. None where the turn has ended or was
    stopped: nothing is opened for it.
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
        found = await _found(tx, ask, gated)
        requests.append(found or await _open(tx, ask, gated, agent, policy or agent.definition.approvals, turn))
        if found is None:
            events.append(_awaiting(requests[-1], gated))
    if ask.questions:
        in_force = policy or agent.definition.approvals
        asked, told, answered = await open_questions(tx, ask, in_force.expires_seconds)
        requests, events, decided = [*requests, *asked], [*events, *told], decided or answered
    requests += await _unknown_effects(tx, ask)
    await _wait(tx, ask.address.turn_id, requests)
    await write(tx, ask.address, events, pending=ask.events)
    return Opened(requests=tuple(requests), decided=bool(decided))


async def _found(tx: Connection, ask: OpenAsk, gated: GatedCall) -> RequestRef | None:
    row = await tx.fetchrow(
        "SELECT id, expires_at FROM approvals WHERE turn_id = $1 AND call_id = $2", ask.address.turn_id, gated.call_id
    )
    return _ref(str(row["id"]), gated, row["expires_at"]) if row is not None else None


async def _open(
    tx: Connection,
    ask: OpenAsk,
    gated: GatedCall,
    agent: PublishedAgent,
    policy: ApprovalPolicy,
    turn: asyncpg.Record,
) -> RequestRef:
    about = await subject_of(tx, ask, gated)
    frozen = _call(ask, gated, about, agent) | _policy(gated, policy, agent)
    frozen |= {
        "prompt_excerpt": turn["content"][:_PROMPT_CHARACTERS],
        "snapshot": {**ask.snapshot, "metadata": turn["metadata"]},
        "requested_by": turn["user_id"],
    }
    waits = policy.fallback_after_seconds if policy.fallback_reviewer else None
    expires_at = await tx.fetchval(_INSERT, policy.expires_seconds, waits, *(frozen[name] for name in _COLUMNS))
    request_id = str(frozen["id"])
    told: dict[str, JsonValue] = {
        "tool": gated.tool,
        "rule": gated.rule,
        "digest": str(frozen["digest"]),
        "call_id": gated.call_id,
        "args": about.args,
        "args_digest": digest_of(about.args),
    }
    actor = str(turn["user_id"])
    await audit.record(tx, "approval.opened", request_id, told, actor=actor, turn_id=ask.address.turn_id)
    return _ref(request_id, gated, expires_at)


def _call(ask: OpenAsk, gated: GatedCall, about: Subject, agent: PublishedAgent) -> dict[str, object]:
    """The call as it is frozen, and what a reviewer is told of it."""
    card, nonce = agent.card(gated.tool), secrets.token_hex(16)
    digest = frozen_call_digest(
        tenant_id=ask.address.tenant_id,
        turn_id=ask.address.turn_id,
        call_id=gated.call_id,
        tool=gated.tool,
        tool_version=about.tool_version,
        args=covered(gated.kind, about.args, about.result),
        nonce=nonce,
    )
    return {
        "id": approval_id(ask.address.turn_id, gated.call_id),
        "conversation_id": ask.address.conversation_id,
        "turn_id": ask.address.turn_id,
        "call_id": gated.call_id,
        "agent_id": ask.agent_id,
        "tool": gated.tool,
        "tool_version": about.tool_version,
        "effect": about.effect,
        "risk": card.risk if card else HIGH_RISK,
        "description": card.description if card else "",
        "describe": card.describe if card else "",
        "preview": {} if card and card.previews and gated.kind is RequestKind.APPROVAL else None,
        "args": about.args,
        "schema": card.parameters if card else {},
        "digest": digest,
        "nonce": nonce,
        "rule": gated.rule,
        "kind": gated.kind.value,
        "checkpoint": gated.checkpoint,
        "reason": gated.message,
        "result": about.result,
    }


def _policy(gated: GatedCall, policy: ApprovalPolicy, agent: PublishedAgent) -> dict[str, object]:
    """Who decides on it; one person raises a limit, since two would have to give the very same one."""
    card = agent.card(gated.tool)
    risk = card.risk if card else HIGH_RISK
    return {
        "reviewer_role": policy.reviewer_role,
        "allow_self_approval": policy.allow_self_approval,
        "reviewers": list(policy.reviewers),
        "quorum": 1 if gated.kind is RequestKind.LIMIT else policy.quorum_for(risk),
        "policy_digest": policy.digest,
        "reject_reasons": list(policy.reject_reasons),
        "hold_seconds": policy.hold_for(risk),
        "expires_seconds": policy.expires_seconds,
        "on_timeout": policy.on_timeout.value,
        "escalation_role": policy.escalation_role,
        "fallback_reviewer": policy.fallback_reviewer,
    }


# fmt: off
_COLUMNS = (
    "id", "conversation_id", "turn_id", "call_id", "agent_id", "tool", "tool_version", "effect", "risk",
    "description", "describe", "preview", "args", "schema", "digest", "nonce", "rule", "kind", "checkpoint", "reason",
    "result",
    "reviewer_role", "allow_self_approval", "reviewers", "quorum", "policy_digest", "reject_reasons",
    "hold_seconds", "expires_seconds", "on_timeout", "escalation_role", "fallback_reviewer", "prompt_excerpt",
    "snapshot", "requested_by",
)
# fmt: on
_INSERT = (
    f"INSERT INTO approvals (tenant_id, expires_at, fallback_at, {', '.join(_COLUMNS)}) "
    "VALUES (current_setting('perdure.tenant'), now() + make_interval(secs => $1::int), "
    f"now() + make_interval(secs => $2::int), {', '.join(f'${n}' for n in range(3, len(_COLUMNS) + 3))}) "
    "RETURNING expires_at"
)


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
    by_reviewer = pause_kind(requests) is PauseKind.APPROVAL
    status = TurnStatus.AWAITING_APPROVAL if by_reviewer else TurnStatus.AWAITING_ANSWER
    since: datetime = await tx.fetchval("SELECT now()")
    await tx.execute(
        "UPDATE turns SET status = $2, waiting = $3 WHERE id = $1",
        turn_id,
        status.value,
        {
            "kind": requests[0].kind.value if requests else RequestKind.APPROVAL.value,
            "ids": [request.request_id for request in requests],
            "since": since.isoformat(),
            "expires_at": min(expiries).isoformat() if expiries else None,
        },
    )
