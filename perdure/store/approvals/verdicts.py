"""Verdicts of a pause, read from their stored records. Overdue requests expire here."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import asyncpg
from pydantic import JsonValue

from perdure.contracts.activities import Verdicts, VerdictsRequest
from perdure.contracts.approvals import ANSWERED_BY_CLIENT, RequestKind, RequestRef, Verdict, VerdictState
from perdure.contracts.events import TOOL_DENIED
from perdure.contracts.ids import step_of
from perdure.contracts.turns import Limits
from perdure.contracts.values import frozen_call_digest
from perdure.core.approvals import gates
from perdure.core.approvals.refusals import ReviewRefusal
from perdure.core.approvals.validity import DENIED_STATUSES, STATUSES_WITH_REASON, denial_reason
from perdure.core.calls.rounds import range_bounds
from perdure.core.text import preview
from perdure.store import audit
from perdure.store.approvals.requests import covered_values, edited_round, event_call_id, read_answers, refusal_data
from perdure.store.approvals.review import escalate_overdue_of
from perdure.store.database import Connection
from perdure.store.events.event_log import NewEvent, write

_STATES = {state.value: state for state in VerdictState if state is not VerdictState.UNAVAILABLE} | {
    # The call has run or is running: it was approved, and the ledger holds its outcome.
    "reserved": VerdictState.APPROVED,
    "done": VerdictState.APPROVED,
    "failed": VerdictState.APPROVED,
    "outcome_unknown": VerdictState.APPROVED,
}


async def read_verdicts(tx: Connection, query: VerdictsRequest) -> Verdicts:
    """Returns the current verdict of each request. Overdue requests expire here, by the database's clock.

    The turn's status does not change until its next call is claimed. If this result is lost, the turn therefore stays
    paused.
    """
    # The turn is locked first: every writer of a turn's rows takes this lock before any other.
    turn = await tx.fetchrow("SELECT limits FROM turns WHERE id = $1 FOR UPDATE", query.address.turn_id)
    rows = await tx.fetch(_APPROVALS, query.address.turn_id)
    expired: list[asyncpg.Record] = []
    if any(row["status"] == "pending" and row["expires_at"] <= row["now"] for row in rows):
        expired = await _close_overdue(tx, query.address.turn_id)
        rows = await tx.fetch(_APPROVALS, query.address.turn_id)
    approvals = {str(row["id"]): row for row in rows}
    effects = await _read_effects(tx, query)
    has_questions = any(request.kind in ANSWERED_BY_CLIENT for request in query.requests)
    answers = await read_answers(tx, query) if has_questions else {}
    verdicts = tuple(
        _effect_verdict(request, effects.get(request.request_id))
        if request.kind is RequestKind.EFFECT
        else answers.get(request.request_id) or _approval_verdict(request, approvals.get(request.request_id), query)
        for request in query.requests
    )
    denied = [
        NewEvent(
            TOOL_DENIED,
            {"tool": row["tool"], "reason": "expired", **refusal_data(row["kind"], "expired")},
            event_call_id(row["kind"], row["call_id"]),
        )
        for row in expired
    ]
    if denied or query.events:
        await write(tx, query.address, denied, pending=query.events)
    if turn is None or all(request.kind is not RequestKind.LIMIT for request in query.requests):
        return Verdicts(verdicts=verdicts)
    return Verdicts(verdicts=verdicts, limits=Limits.model_validate(turn["limits"]))


_APPROVALS = """
SELECT a.*, u.name AS decider, clock_timestamp() AS now FROM approvals a LEFT JOIN users u ON u.id = a.decided_by
WHERE a.turn_id = $1
"""


async def _close_overdue(tx: Connection, turn_id: str) -> list[asyncpg.Record]:
    """Escalates or expires requests that are past their deadline, and returns the expired ones."""
    await escalate_overdue_of(tx, turn_id)
    expired: list[asyncpg.Record] = await tx.fetch(
        "UPDATE approvals SET status = 'expired', version = version + 1, decided_at = now() "
        "WHERE turn_id = $1 AND status = 'pending' AND expires_at <= clock_timestamp() "
        "RETURNING id, kind, call_id, tool",
        turn_id,
    )
    for row in expired:
        await audit.record(tx, "approval.expired", str(row["id"]), {}, actor=None, turn_id=turn_id)
    return expired


async def _read_effects(tx: Connection, query: VerdictsRequest) -> dict[str, asyncpg.Record]:
    keys = [request.request_id for request in query.requests if request.kind is RequestKind.EFFECT]
    if not keys:
        return {}
    rows = await tx.fetch(
        "SELECT key, state, comment FROM tool_calls WHERE turn_id = $1 AND key = ANY($2)", query.address.turn_id, keys
    )
    return {row["key"]: row for row in rows}


def _approval_verdict(request: RequestRef, row: asyncpg.Record | None, query: VerdictsRequest) -> Verdict:
    unreadable = Verdict(
        request_id=request.request_id, call_id=request.call_id, tool=request.tool, state=VerdictState.UNREADABLE
    )
    if row is None:
        return unreadable.model_copy(update={"no_record": True})
    if row["call_id"] != request.call_id or row["status"] not in _STATES:
        return unreadable
    recomputed_digest = frozen_call_digest(
        tenant_id=row["tenant_id"],
        turn_id=query.address.turn_id,
        call_id=row["call_id"],
        tool=row["tool"],
        tool_version=row["tool_version"],
        args=covered_values(row["kind"], row["args"], row["result"]),
        nonce=row["nonce"],
    )
    if recomputed_digest != row["digest"]:
        return unreadable
    check_at = _check_time(request, row)
    if check_at is not None or row["status"] == "pending":
        return unreadable.model_copy(update={"state": VerdictState.PENDING, "look_at": check_at})
    edited, comment = edited_round(row), _comment(_decision_or_withdrawal(row))
    return unreadable.model_copy(
        update={
            # The call of an edited checkpoint is made even if the approval was withdrawn; the ledger then denies it.
            "state": VerdictState.EDITED if edited else _STATES[row["status"]],
            "round": edited,
            "comment": preview(comment),
            "is_cut": preview(comment) != comment,
            "decided_by": _decider(row),
        }
    )


async def comments_of(tx: Connection, turn_id: str, request_ids: Collection[str]) -> dict[str, str]:
    """Returns the full comments of these requests of the turn, by request id. A verdict contains only the start."""
    rows = await tx.fetch(
        "SELECT id, status, decision, withdrawal FROM approvals WHERE turn_id = $1 AND id = ANY($2)",
        turn_id,
        list(request_ids),
    )
    return {str(row["id"]): _comment(_decision_or_withdrawal(row)) for row in rows}


RefusedCalls = dict[tuple[str, str, str], dict[str, JsonValue]]
"""Answers for the model, by tool, version of the tool and digest of the arguments."""
_REPEATED = "this turn made the same call before, so no reviewer was asked again and it has not run"
_REFUSED = """
SELECT a.call_id, a.tool, a.status, a.decision, a.withdrawal, u.name AS decider
FROM approvals a LEFT JOIN users u ON u.id = a.decided_by
WHERE a.turn_id = $1 AND a.kind = 'approval' AND EXISTS (
  SELECT FROM unnest($2::integer[], $3::integer[]) AS each (first, last)
  WHERE substring(a.call_id FROM '^t([0-9]+)[.]')::integer BETWEEN first AND last)
"""


async def refusal_texts(tx: Connection, turn_id: str, steps: Sequence[tuple[int, int]]) -> dict[int, str]:
    """Returns what the model reads about the refused rounds of these ranges of steps, by step, in the calls' order."""
    rows = await tx.fetch(_REFUSED, turn_id, *range_bounds(steps))
    rounds: dict[int, list[Verdict]] = {}
    for row in sorted(rows, key=lambda row: (step_of(row["call_id"]), int(row["call_id"].partition(".")[2]))):
        verdict = Verdict(
            request_id="",
            call_id=row["call_id"],
            tool=row["tool"],
            state=_STATES[row["status"]],
            comment=_comment(_decision_or_withdrawal(row)),
            decided_by=_decider(row),
        )
        rounds.setdefault(step_of(row["call_id"]), []).append(verdict)
    return gates.refusal_texts(rounds)


UNREVIEWED = ("pending", "cancelled")
"""Statuses of a checkpoint whose result no reviewer has decided on."""
_REFUSALS = """
SELECT turn_id::text, kind, call_id, tool, status, decision, withdrawal,
  CASE WHEN kind = 'checkpoint' AND tool = '' THEN result #>> '{}' END AS answer
FROM approvals WHERE turn_id = ANY($1::uuid[])
  AND (kind IN ('approval', 'checkpoint') AND status = ANY($2) OR kind = 'checkpoint' AND status = ANY($3))
ORDER BY requested_at, call_id
"""


async def refusals_of(tx: Connection, turn_ids: Collection[str]) -> dict[str, list[ReviewRefusal]]:
    """Returns the refused calls and results of these turns by turn id, and the results without a decision. Turns
    without any are left out."""
    found: dict[str, list[ReviewRefusal]] = {}
    for row in await tx.fetch(_REFUSALS, list(turn_ids), list(DENIED_STATUSES), list(UNREVIEWED)):
        refusal = ReviewRefusal(
            row["call_id"],
            row["tool"],
            row["status"],
            _comment(_decision_or_withdrawal(row)) if row["status"] in STATUSES_WITH_REASON else "",
            is_checkpoint=row["kind"] == RequestKind.CHECKPOINT,
            answer=row["answer"] or "",
        )
        found.setdefault(row["turn_id"], []).append(refusal)
    return found


_LAST_REQUESTS = """
SELECT DISTINCT ON (c.tool, c.tool_version, c.digest) c.tool, c.tool_version, c.digest, a.id, a.status, a.decision,
  a.withdrawal, EXISTS (SELECT FROM messages m WHERE m.turn_id = $1 AND m.joins <> ''
    AND m.created_at > a.requested_at AND m.id <> ALL(a.joined_messages)) AS asked_since
FROM approvals a JOIN tool_calls c ON c.turn_id = a.turn_id AND c.call_id = a.call_id
WHERE a.turn_id = $1 AND a.kind = 'approval'
ORDER BY c.tool, c.tool_version, c.digest, a.requested_at DESC, a.status = ANY($2)
"""
"""The newest request of each call. Of several in one round, one that was not refused counts. A message counts since the
refusal if the reviewer did not have it."""


async def refused_calls(tx: Connection, turn_id: str) -> RefusedCalls:
    """Returns the answer of each call of the turn whose last request was refused. A call is left out if its turn has
    received a message of the requester since the refusal, because the requester may want it now."""
    refused: RefusedCalls = {}
    for row in await tx.fetch(_LAST_REQUESTS, turn_id, list(DENIED_STATUSES)):
        if row["status"] in DENIED_STATUSES and not row["asked_since"]:
            message = f"{denial_reason(row['status'])}; {_REPEATED}"
            answer: dict[str, JsonValue] = {"status": "denied", "message": message}
            if comment := _comment(_decision_or_withdrawal(row)):
                answer["reason"] = comment
            refused[(row["tool"], row["tool_version"], row["digest"])] = answer | {"approval_id": str(row["id"])}
    return refused


def _decider(row: asyncpg.Record) -> str:
    """Returns the name of the reviewer whose decision or withdrawal this is; empty without one."""
    withdrawn = row["status"] == "withdrawn"
    return (_decision_or_withdrawal(row).get("by") if withdrawn else row["decider"]) or ""


def _decision_or_withdrawal(row: asyncpg.Record) -> Mapping[str, str]:
    """Returns the withdrawal of a withdrawn approval, or else its decision."""
    record: Mapping[str, str] | None = row["withdrawal"] if row["status"] == "withdrawn" else row["decision"]
    return record or {}


def _comment(record: Mapping[str, str]) -> str:
    return record.get("comment") or record.get("reason_code") or ""


def _check_time(request: RequestRef, row: asyncpg.Record) -> datetime | None:
    """Returns when to check a pending request or a held approval again without a signal: at its new expiry or at the
    end of its hold."""
    if row["status"] == "pending" and row["expires_at"] != request.expires_at:
        expires_at: datetime = row["expires_at"]
        return expires_at
    ready_at: datetime | None = row["ready_at"]
    given = row["status"] in ("approved", "edited")
    return ready_at if given and ready_at is not None and ready_at > row["now"] else None


def _effect_verdict(request: RequestRef, row: asyncpg.Record | None) -> Verdict:
    state = VerdictState.UNREADABLE
    if row is not None:
        state = VerdictState.PENDING if row["state"] == "outcome_unknown" else VerdictState.SETTLED
    comment = preview(row["comment"] or "") if row is not None else ""
    return Verdict(
        request_id=request.request_id, call_id=request.call_id, tool=request.tool, state=state, comment=comment
    )
