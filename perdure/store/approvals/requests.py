"""Opens the requests of a pause. Each is stored with the exact call and the approval policy that applies to it."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import asyncpg
from pydantic import JsonValue

from perdure.contracts.activities import Opened, OpenRequest, VerdictsRequest
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.approvals import (
    HIGH_RISK,
    ApprovalPolicy,
    GatedCall,
    PauseKind,
    Question,
    RequestKind,
    RequestRef,
    Verdict,
    VerdictState,
)
from perdure.contracts.errors import CallerError, InvariantBroken
from perdure.contracts.events import (
    BUDGET,
    CLARIFICATION_REQUESTED,
    CLIENT_RUN_REQUESTED,
    HITL_RULE_FIRE,
    TOOL_AWAITING_APPROVAL,
)
from perdure.contracts.ids import approval_id, effect_key, reviewed_call
from perdure.contracts.messages import CallRef, MessageRef, Role
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.contracts.values import Frozen, canonical_json, digest_of, frozen_call_digest
from perdure.core.approvals.gates import pause_kind, platform_rule_event
from perdure.core.approvals.validity import QuestionRecord, answer_refusal
from perdure.core.calls.arguments import ParsedArguments
from perdure.core.calls.jsonb import InvalidArguments, jsonb_form
from perdure.core.identity import OWN_CREDENTIAL, UNKNOWN_CREATOR, Credential
from perdure.core.json_schema import MAX_FAULTS
from perdure.store import audit
from perdure.store.database import Connection
from perdure.store.delivery.outbox import Note, Wake, put
from perdure.store.events.event_log import NewEvent, NewMessage, write
from perdure.store.identity.origins import read_accounts, record_requesting


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an approval."""

    args: dict[str, JsonValue]
    effect: str
    tool_version: str
    result: JsonValue = None
    """The result of the call or the answer so far. Only checkpoints have one."""


_CALL = "SELECT args, effect, tool_version FROM tool_calls WHERE turn_id = $1 AND call_id = $2"
_FINISHED_CALL = """
SELECT coalesce(a.decision->'args', c.args) AS args, c.effect, c.tool_version, m.content FROM tool_calls c
LEFT JOIN approvals a ON a.turn_id = c.turn_id AND a.call_id = c.call_id
LEFT JOIN messages m ON m.conversation_id = c.conversation_id AND m.turn_id = c.turn_id AND m.call_id = c.call_id
  AND m.role = 'tool'
WHERE c.turn_id = $1 AND c.call_id = $2
"""
_LIMITS = """
SELECT jsonb_build_object('tokens_used', input_tokens + output_tokens, 'max_tokens', limits->'max_tokens',
  'cost_microusd', cost_microusd, 'max_cost_microusd', limits->'max_cost_microusd') FROM turns WHERE id = $1
"""
_ANSWER_TEXT = """
SELECT content FROM messages WHERE conversation_id = $1 AND turn_id = $2 AND role = 'assistant' AND content <> ''
ORDER BY seq DESC LIMIT 1
"""


async def subject_of(tx: Connection, request: OpenRequest, gated: GatedCall) -> Subject:
    """Returns what the reviewer sees: the pending call, the result of a finished call, or the answer so far.

    Raises: InvariantBroken `call_not_planned`.
    """
    turn_id, call_id = request.address.turn_id, gated.call_id
    if gated.kind is RequestKind.LIMIT:
        return Subject(await tx.fetchval(_LIMITS, turn_id), "read", "")
    if gated.kind is RequestKind.CHECKPOINT:
        seen = reviewed_call(call_id)
        if seen is None:
            answer = await tx.fetchval(_ANSWER_TEXT, request.address.conversation_id, turn_id)
            return Subject({}, "read", "", answer or "")
        row, call_id = await tx.fetchrow(_FINISHED_CALL, turn_id, seen), seen
    else:
        row = await tx.fetchrow(_CALL, turn_id, call_id)
    if row is None:
        raise InvariantBroken("call_not_planned", f"the call {call_id} is not in the ledger")
    result = _parse_content(row["content"] or "") if gated.kind is RequestKind.CHECKPOINT else None
    return Subject(row["args"], row["effect"], row["tool_version"], result)


def covered_values(kind: str, args: dict[str, Any], result: object) -> dict[str, Any]:
    """Returns the values that an approval's digest covers besides its ids: the arguments, and at a checkpoint also the
    result."""
    return {"args": args, "result": result} if kind == RequestKind.CHECKPOINT else args


def event_call_id(kind: str, call_id: str) -> str | None:
    """Returns the call id for events of this approval. At a checkpoint it is the call whose result is reviewed."""
    return call_id if kind == RequestKind.APPROVAL else reviewed_call(call_id)


def refusal_data(kind: str, status: str) -> dict[str, JsonValue]:
    """Returns what `tool.denied` states about a refused request: its status, and whether it is a checkpoint. The result
    of a checkpoint's call was sent before, and is not approved."""
    data: dict[str, JsonValue] = {"approval": status}
    return {**data, "kind": kind} if kind == RequestKind.CHECKPOINT else data


_PLAN_EDITED_CALL = """
INSERT INTO tool_calls (tenant_id, turn_id, call_id, conversation_id, agent_id, key, tool, tool_version, effect, args,
  digest)
SELECT tenant_id, turn_id, call_id, conversation_id, agent_id, $2, tool, tool_version, effect, $3, $4
FROM approvals WHERE id = $1 ON CONFLICT (turn_id, call_id) DO NOTHING
"""


async def plan_edited_call(tx: Connection, approval: asyncpg.Record, decision: Mapping[str, Any]) -> NewMessage:
    """Plans the call of a checkpoint again, with the reviewer's edits. Returns the message that makes the call; the
    caller must write it. The approval of a checkpoint has a separate call id. It covers no call until a reviewer edits
    one. The decision then plans the edited call under that id as approved, and the ledger runs it like any other
    call."""
    args = decision["args"]
    key = effect_key(str(approval["turn_id"]), approval["call_id"])
    await tx.execute(_PLAN_EDITED_CALL, approval["id"], key, args, digest_of(args))
    call: dict[str, JsonValue] = {
        "call_id": approval["call_id"],
        "key": key,
        "tool": approval["tool"],
        "arguments": canonical_json(args),
        "digest": digest_of(args),
        "provider_id": "",
        "settled": False,
    }
    return NewMessage(decision["message_id"], Role.ASSISTANT, "", calls=[call])


def edited_round(approval: asyncpg.Record) -> MessageRef | None:
    """Returns the message that repeats the call of an edited checkpoint, or None if it was not edited."""
    decision = approval["decision"] or {}
    if approval["kind"] != RequestKind.CHECKPOINT or "args" not in decision:
        return None
    call = CallRef(call_id=approval["call_id"], tool=approval["tool"], digest=digest_of(decision["args"]))
    return MessageRef(id=decision["message_id"], role=Role.ASSISTANT, calls=(call,))


def _parse_content(content: str) -> JsonValue:
    """Returns the value in the form that jsonb returns, so that the digest matches the stored record. Measured: `-0.0`
    and `1e16` came back as other numbers, which made the approved checkpoint permanently unreadable."""
    try:
        return jsonb_form(json.loads(content))
    # Text that was cut, or that jsonb cannot store, is shown as plain text.
    except (ValueError, RecursionError, InvalidArguments):
        return content


MAX_PROMPT_CHARACTERS = 2_000
"""The maximum number of characters of the user's message that a reviewer sees."""


async def open_requests(
    tx: Connection, request: OpenRequest, agent: PublishedAgent, policy: ApprovalPolicy | None = None
) -> Opened | None:
    """Opens all requests of one pause and pauses the turn. A repeated call returns the same requests.

    `policy` is the policy in force, if it differs from the one that the turn is pinned to. Returns None and opens
    nothing if the turn has ended or was stopped.
    """
    turn = await tx.fetchrow(
        "SELECT t.user_id, t.ended_at IS NOT NULL OR t.stop_requested_at IS NOT NULL AS over, t.metadata, t.asked_how, "
        "t.asked_by, t.waived_tools, m.content "
        "FROM turns t JOIN messages m ON m.id = t.message_id WHERE t.id = $1 FOR UPDATE OF t",
        request.address.turn_id,
    )
    if turn is None or turn["over"]:
        return None
    in_force = policy or agent.definition.approvals
    decided = await tx.fetchval(
        "SELECT true FROM approvals WHERE turn_id = $1 AND call_id = ANY($2) AND status <> 'pending' LIMIT 1",
        request.address.turn_id,
        [gated.call_id for gated in request.gated],
    )
    requests, events = await _open_gated(tx, request, agent, in_force, turn)
    if request.questions:
        questions, question_events, answered = await open_questions(tx, request, in_force.expires_seconds)
        requests, events, decided = [*requests, *questions], [*events, *question_events], decided or answered
    requests += await _unknown_effects(tx, request)
    await _pause_turn(tx, request.address.turn_id, requests)
    await write(tx, request.address, events, pending=request.events)
    return Opened(requests=tuple(requests), decided=bool(decided))


async def _open_gated(
    tx: Connection, request: OpenRequest, agent: PublishedAgent, policy: ApprovalPolicy, turn: asyncpg.Record
) -> tuple[list[RequestRef], list[NewEvent]]:
    """Returns the requests of the gated calls and checkpoints, and the events of those that it opens."""
    requests: list[RequestRef] = []
    events: list[NewEvent] = []
    asked: _Asked | None = None
    for gated in request.gated:
        existing = await _find_request(tx, request, gated)
        if existing is not None:
            requests.append(existing)
            continue
        asked = asked or await _read_asked(tx, request.address.turn_id, turn)
        requests.append(await _open(tx, request, gated, agent, policy, asked))
        fired = platform_rule_event(gated, agent.card(gated.tool), turn["waived_tools"])
        events += [NewEvent(HITL_RULE_FIRE, fired, gated.call_id)] if fired else []
        events.append(_awaiting_event(requests[-1], gated))
    return requests, events


async def _find_request(tx: Connection, request: OpenRequest, gated: GatedCall) -> RequestRef | None:
    row = await tx.fetchrow(
        "SELECT id, expires_at FROM approvals WHERE turn_id = $1 AND call_id = $2",
        request.address.turn_id,
        gated.call_id,
    )
    return _request_ref(str(row["id"]), gated, row["expires_at"]) if row is not None else None


_UNRECEIVED = "SELECT ARRAY(SELECT id FROM messages WHERE turn_id = $1 AND joins = '' ORDER BY seq)"


@dataclass(frozen=True, slots=True)
class _Asked:
    """The values that all requests of a pause share."""

    turn: asyncpg.Record
    joined_messages: list[str]
    """The requester's messages that no model call of the turn has received yet."""
    requester: dict[str, JsonValue]
    """The requester, for the records of the requests."""


async def _read_asked(tx: Connection, turn_id: str, turn: asyncpg.Record) -> _Asked:
    return _Asked(turn, await tx.fetchval(_UNRECEIVED, turn_id), await _requester_of(tx, turn))


async def _requester_of(tx: Connection, turn: asyncpg.Record) -> dict[str, JsonValue]:
    """Returns the credential with which the turn was requested, and the origin of the requester's account, for the
    record of the request. A deleted credential leaves this record. Nothing is returned for what is not known."""
    user_id, asked_by = str(turn["user_id"]), tuple(map(str, turn["asked_by"]))
    accounts = await read_accounts(tx, (user_id, *asked_by))
    names = {UNKNOWN_CREATOR: "unknown", **accounts.names}
    made = replace(accounts, names=names).named(asked_by, "created_by")
    found: dict[str, JsonValue] = {"asked_with": {"how": turn["asked_how"], **made}} if turn["asked_how"] else {}
    account = accounts.describe(user_id)
    return found | ({"account": account} if account else {})


async def _open(
    tx: Connection,
    request: OpenRequest,
    gated: GatedCall,
    agent: PublishedAgent,
    policy: ApprovalPolicy,
    asked: _Asked,
) -> RequestRef:
    turn = asked.turn
    subject = await subject_of(tx, request, gated)
    columns = _call_columns(request, gated, subject, agent)
    columns |= policy_columns(policy, str(columns["risk"]), gated.kind)
    columns |= {
        "prompt_excerpt": turn["content"][:MAX_PROMPT_CHARACTERS],
        "snapshot": {**request.snapshot, "metadata": turn["metadata"]},
        "requested_by": turn["user_id"],
        "joined_messages": asked.joined_messages,
    }
    fallback_seconds = policy.fallback_after_seconds if policy.fallback_reviewer else None
    expires_at = await tx.fetchval(
        _INSERT_APPROVAL, policy.expires_seconds, fallback_seconds, *(columns[name] for name in _COLUMNS)
    )
    request_id = str(columns["id"])
    data: dict[str, JsonValue] = {
        "tool": gated.tool,
        "rule": gated.rule,
        "digest": str(columns["digest"]),
        "call_id": gated.call_id,
        "args": subject.args,
        "args_digest": digest_of(subject.args),
        **asked.requester,
    }
    actor = str(turn["user_id"])
    await audit.record(tx, "approval.opened", request_id, data, actor=actor, turn_id=request.address.turn_id)
    return _request_ref(request_id, gated, expires_at)


def _call_columns(request: OpenRequest, gated: GatedCall, subject: Subject, agent: PublishedAgent) -> dict[str, object]:
    """Returns the call as it is stored, with its description for reviewers."""
    card, nonce = agent.card(gated.tool), secrets.token_hex(16)
    digest = frozen_call_digest(
        tenant_id=request.address.tenant_id,
        turn_id=request.address.turn_id,
        call_id=gated.call_id,
        tool=gated.tool,
        tool_version=subject.tool_version,
        args=covered_values(gated.kind, subject.args, subject.result),
        nonce=nonce,
    )
    return {
        "id": approval_id(request.address.turn_id, gated.call_id),
        "conversation_id": request.address.conversation_id,
        "turn_id": request.address.turn_id,
        "call_id": gated.call_id,
        "agent_id": request.agent_id,
        "tool": gated.tool,
        "tool_version": subject.tool_version,
        "effect": subject.effect,
        "risk": card.risk if card else HIGH_RISK,
        "description": card.description if card else "",
        "describe": card.describe if card else "",
        "preview": {} if card and card.previews and gated.kind is RequestKind.APPROVAL else None,
        "proposed": {} if card and card.checks else None,
        "args": subject.args,
        "schema": card.parameters if card else {},
        "digest": digest,
        "nonce": nonce,
        "rule": gated.rule,
        "kind": gated.kind.value,
        "checkpoint": gated.checkpoint,
        "reason": gated.message,
        "result": subject.result,
    }


def policy_columns(policy: ApprovalPolicy, risk: str, kind: RequestKind) -> dict[str, object]:
    """Returns the approval policy of a request, as it is stored. A limit has a quorum of 1, because two reviewers would
    have to enter the same limit."""
    return {
        "reviewer_role": policy.reviewer_role,
        "allow_self_approval": policy.allow_self_approval,
        "reviewers": list(policy.reviewers),
        "quorum": 1 if kind is RequestKind.LIMIT else policy.quorum_for(risk),
        "policy_digest": policy.digest_for(risk),
        "reject_reasons": list(policy.reject_reasons),
        "hold_seconds": policy.hold_for(risk),
        "expires_seconds": policy.expires_seconds,
        "on_timeout": policy.on_timeout.value,
        "escalation_role": policy.escalation_role,
        "fallback_reviewer": policy.fallback_reviewer,
    }


def call_digest(row: asyncpg.Record, args: dict[str, JsonValue], tool_version: str, nonce: str) -> str:
    """Returns the digest of an approval's call with these arguments, for this version of its tool."""
    return frozen_call_digest(
        tenant_id=row["tenant_id"],
        turn_id=str(row["turn_id"]),
        call_id=row["call_id"],
        tool=row["tool"],
        tool_version=tool_version,
        args=args,
        nonce=nonce,
    )


def args_invalid(message: str, checked: ParsedArguments) -> CallerError:
    """Returns the refusal of arguments that do not fit their schema: 422 with the fields."""
    fields = [{"field": each.field, "problem": each.problem[:200]} for each in checked.schema_errors[:MAX_FAULTS]]
    return CallerError("args_invalid", message, {"fields": fields}, status=422)


# fmt: off
_COLUMNS = (
    "id", "conversation_id", "turn_id", "call_id", "agent_id", "tool", "tool_version", "effect", "risk",
    "description", "describe", "preview", "proposed", "args", "schema", "digest", "nonce", "rule", "kind",
    "checkpoint", "reason", "result",
    "reviewer_role", "allow_self_approval", "reviewers", "quorum", "policy_digest", "reject_reasons",
    "hold_seconds", "expires_seconds", "on_timeout", "escalation_role", "fallback_reviewer", "prompt_excerpt",
    "snapshot", "requested_by", "joined_messages",
)
# fmt: on
_INSERT_APPROVAL = (
    f"INSERT INTO approvals (tenant_id, expires_at, fallback_at, {', '.join(_COLUMNS)}) "
    "VALUES (current_setting('perdure.tenant'), now() + make_interval(secs => $1::int), "
    f"now() + make_interval(secs => $2::int), {', '.join(f'${n}' for n in range(3, len(_COLUMNS) + 3))}) "
    "RETURNING expires_at"
)


def _request_ref(request_id: str, gated: GatedCall, expires_at: datetime) -> RequestRef:
    return RequestRef(
        request_id=request_id, kind=gated.kind, call_id=gated.call_id, tool=gated.tool, expires_at=expires_at
    )


def _awaiting_event(request: RequestRef, gated: GatedCall) -> NewEvent:
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
    return NewEvent(TOOL_AWAITING_APPROVAL, data, event_call_id(gated.kind, gated.call_id))


async def _unknown_effects(tx: Connection, request: OpenRequest) -> list[RequestRef]:
    rows = await tx.fetch(
        "SELECT call_id, key, tool FROM tool_calls WHERE turn_id = $1 AND call_id = ANY($2) ORDER BY call_id",
        request.address.turn_id,
        [call.call_id for call in request.unknown],
    )
    return [
        RequestRef(request_id=row["key"], kind=RequestKind.EFFECT, call_id=row["call_id"], tool=row["tool"])
        for row in rows
    ]


async def _pause_turn(tx: Connection, turn_id: str, requests: list[RequestRef]) -> None:
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


EVENTS = {RequestKind.CLARIFICATION: CLARIFICATION_REQUESTED, RequestKind.CLIENT_RUN: CLIENT_RUN_REQUESTED}
_INSERT_QUESTION = """
INSERT INTO questions (id, tenant_id, conversation_id, turn_id, call_id, kind, asked, answer_schema, expires_at)
VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6, $7, now() + make_interval(secs => $8::int))
ON CONFLICT (id) DO NOTHING RETURNING expires_at
"""
_LOCK = """
SELECT q.*, t.user_id, t.stop_requested_at IS NOT NULL OR t.ended_at IS NOT NULL AS over, clock_timestamp() AS now
FROM turns t JOIN questions q ON q.turn_id = t.id WHERE t.id = $1 AND q.id = $2 FOR UPDATE OF t, q
"""
_ANSWER_QUESTION = """
UPDATE questions SET status = 'answered', answer = $2, answered_by = $3, closed_at = clock_timestamp() WHERE id = $1
"""


class Answered(Frozen):
    """An accepted answer."""

    request_id: str
    turn_id: str
    conversation_id: str


async def open_questions(
    tx: Connection, request: OpenRequest, expires_seconds: int
) -> tuple[list[RequestRef], list[NewEvent], bool]:
    """Opens the questions of a pause. Returns their requests, the events of the new ones, and whether one is closed
    already.

    A repeated call leaves open questions unchanged. `tx` must hold the turn's lock.

    Questions are opened with the pause, answered once, and read again when the turn resumes. The turn's row is locked
    before the question's row, as everywhere. The first answer that matches the question's schema counts.
    """
    requests, events, decided = list[RequestRef](), list[NewEvent](), False
    for question in request.questions:
        request_id = approval_id(request.address.turn_id, question.call_id)
        expires_at = await tx.fetchval(
            _INSERT_QUESTION,
            request_id,
            request.address.conversation_id,
            request.address.turn_id,
            question.call_id,
            question.kind.value,
            question.asked,
            question.answer_schema,
            expires_seconds,
        )
        if expires_at is not None:
            events.append(_question_event(question, request_id, expires_at))
        else:
            for existing in await tx.fetch("SELECT expires_at, status FROM questions WHERE id = $1", request_id):
                expires_at, decided = existing["expires_at"], decided or existing["status"] != "pending"
        requests.append(
            RequestRef(
                request_id=request_id, kind=question.kind, call_id=question.call_id, tool="", expires_at=expires_at
            )
        )
    return requests, events, decided


def _question_event(question: Question, request_id: str, expires_at: datetime) -> NewEvent:
    body: dict[str, JsonValue] = {
        **question.asked,
        "request_id": request_id,
        "answer_schema": question.answer_schema,
        "expires_at": expires_at.isoformat(),
    }
    return NewEvent(EVENTS[question.kind], body)


async def read_answers(tx: Connection, request: VerdictsRequest) -> dict[str, Verdict]:
    """Returns the current verdicts of the turn's questions, by request id. Overdue questions expire here."""
    turn_id = request.address.turn_id
    expired = await tx.fetch(
        "UPDATE questions SET status = 'expired', closed_at = clock_timestamp() "
        "WHERE turn_id = $1 AND status = 'pending' AND expires_at <= clock_timestamp() RETURNING id",
        turn_id,
    )
    for row in expired:
        await audit.record(tx, "question.expired", str(row["id"]), {}, actor=None, turn_id=turn_id)
    rows = await tx.fetch("SELECT id, call_id, status, answer FROM questions WHERE turn_id = $1", turn_id)
    return {
        str(row["id"]): Verdict(
            request_id=str(row["id"]),
            call_id=row["call_id"],
            state=VerdictState(row["status"]),
            answer=row["answer"] or {},
        )
        for row in rows
    }


async def get_question(tx: Connection, turn_id: str, request_id: str, user_id: str | None) -> dict[str, object]:
    """Returns one question of a turn of this user. With `user_id` None, every user of the tenant can read it.

    Raises: CallerError 404 `question_not_found`.
    """
    row = await tx.fetchrow(
        "SELECT q.* FROM questions q JOIN turns t ON t.id = q.turn_id "
        "WHERE q.id = $1 AND q.turn_id = $2 AND ($3::uuid IS NULL OR t.user_id = $3)",
        request_id,
        turn_id,
        user_id,
    )
    if row is None:
        raise _not_found()
    return {
        "id": str(row["id"]),
        "turn_id": turn_id,
        "kind": row["kind"],
        "asked": row["asked"],
        "answer_schema": row["answer_schema"],
        "status": row["status"],
        "asked_at": row["asked_at"],
        "expires_at": row["expires_at"],
        "answered_at": row["closed_at"] if row["status"] == "answered" else None,
    }


async def answer_question(
    tx: Connection,
    turn_id: str,
    request_id: str,
    user_id: str,
    kind: str,
    payload: dict[str, JsonValue],
    asked_with: Credential = OWN_CREDENTIAL,
) -> tuple[Answered, Note]:
    """Stores the answer. The returned note wakes the turn. `asked_with` is the user's credential: an answer is a
    request, too.

    Raises: CallerError 404, 409 `already_answered`, 410, 409 `turn_stopped`, 422, in this order.
    """
    row = await tx.fetchrow(_LOCK, turn_id, request_id)
    if row is None or str(row["user_id"]) != user_id:
        raise _not_found()
    refused = answer_refusal(_question_record(row), kind, payload)
    if refused is not None:
        raise refused
    await tx.execute(_ANSWER_QUESTION, request_id, payload, user_id)
    await record_requesting(tx, turn_id, asked_with)
    address = TurnAddress(
        tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=str(row["turn_id"])
    )
    await audit.record(tx, "question.answered", request_id, {"kind": kind}, actor=user_id, turn_id=turn_id)
    note = await put(tx, address.tenant_id, Wake.REQUEST, turn_id, request_id)
    return Answered(request_id=request_id, turn_id=turn_id, conversation_id=address.conversation_id), note


def _question_record(row: asyncpg.Record) -> QuestionRecord:
    return QuestionRecord(row["kind"], row["status"], row["answer_schema"], row["expires_at"], row["now"], row["over"])


def _not_found() -> CallerError:
    return CallerError("question_not_found", "Question not found", status=404)
