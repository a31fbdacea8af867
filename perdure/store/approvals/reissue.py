"""Approvals whose tool or policy has changed: they are opened again, and reissued for the version that is published."""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import asyncpg
from pydantic import JsonValue

from perdure.contracts.activities import EditRef
from perdure.contracts.agents import ToolCard
from perdure.contracts.approvals import ApprovalPolicy, RequestKind
from perdure.contracts.calls import ToolCallRequest
from perdure.contracts.errors import CallerError
from perdure.contracts.events import TOOL_AWAITING_APPROVAL
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import digest_of
from perdure.core.agents.tool_versions import version_difference
from perdure.core.approvals.assignments import reissue_refusal
from perdure.core.approvals.decisions import Decider
from perdure.core.approvals.validity import DiffersAt
from perdure.core.calls.arguments import freeze_arguments
from perdure.store import audit
from perdure.store.agents import card_of_version, published_agent
from perdure.store.approvals.decisions import EditNotChecked
from perdure.store.approvals.requests import args_invalid, call_digest, policy_columns
from perdure.store.approvals.review import OPEN, Review, find_outdated, lock_for_review
from perdure.store.database import Connection, new_id
from perdure.store.delivery.outbox import Note, Wake, put
from perdure.store.events.event_log import NewEvent, write

_UNDECIDED = """
  status = 'pending', decision = NULL, decided_by = NULL, decided_at = NULL, ready_at = NULL, claimed_by = NULL,
  claimed_until = NULL, version = version + 1
"""
_REOPEN = f"""
UPDATE approvals SET {_UNDECIDED}, revision = $2, differs_at = $3,
  expires_at = clock_timestamp() + make_interval(secs => expires_seconds),
  fallback_at = clock_timestamp() + CASE WHEN escalated_at IS NULL  -- an escalation moves expires_at
    THEN fallback_at - (expires_at - make_interval(secs => expires_seconds)) ELSE fallback_at - requested_at END
WHERE id = $1 AND status IN ('approved', 'edited', 'reserved') RETURNING expires_at
"""
_FREE = """
UPDATE tool_calls SET state = 'planned', run_id = '', attempt = 0, first_sent_at = NULL, awaits_worker_since = NULL,
  epoch = epoch + (state = 'reserved')::int, voided = voided + (state = 'reserved')::int
WHERE turn_id = $1 AND call_id = $2
  AND (state = 'planned' OR state = 'reserved' AND effect IN ('read', 'local'))
"""
"""The next activity of the call starts with attempt 1, maybe in the same run, so no attempt is recorded. The next epoch
ensures that an attempt that had reserved the call settles nothing. It does not count as an attempt."""
_REISSUE = f"""
UPDATE approvals SET {_UNDECIDED}, assignee = NULL, escalated_at = NULL, fell_back_at = NULL, differs_at = '',
  expires_at = clock_timestamp() + make_interval(secs => $2::int), fallback_at = now() + make_interval(secs => $3::int),
"""
_REQUESTED = "SELECT args FROM tool_calls WHERE turn_id = $1 AND call_id = $2"
_PLAN_AGAIN = """
UPDATE tool_calls SET tool_version = $3, effect = $4, run_id = '', attempt = 0, awaits_worker_since = NULL
WHERE turn_id = $1 AND call_id = $2 AND state = 'planned'
"""
_VOID_VOTES = "UPDATE approval_votes SET voided_at = clock_timestamp() WHERE approval_id = $1 AND voided_at IS NULL"
_POLICY = ("reviewer_role", "reviewers", "quorum", "allow_self_approval", "hold_seconds", "escalation_role")
"""The columns of a request that its policy's digest covers."""
_OPEN = f"""
SELECT id, status, kind, tool, agent_id, tool_version, risk, policy_digest, differs_at FROM approvals a
WHERE ({OPEN} OR status = 'edited' OR status = 'approved' AND kind = 'approval')
"""
"""The conditions of two indexes: all approved checkpoints and answers, which stay approved, are not read."""
_BEFORE = " AND (requested_at, id) < ($1::timestamptz, $2::uuid)"


async def outdated_tools(tx: Connection) -> dict[str, str]:
    """Returns the tool of each outdated approval of the tenant whose call has not started, by approval id. Requests
    past their last deadline are not open, and left out."""
    rows = await tx.fetch(_OPEN)
    outdated = await find_outdated(tx, rows)
    return {str(row["id"]): row["tool"] for row in rows if str(row["id"]) in outdated}


async def outdated_reasons(tx: Connection, before: tuple[datetime | None, str | None]) -> dict[str, str]:
    """Returns what changed since each outdated request was opened, by approval id. `before` is the time and id of a
    request: only older ones are returned; (None, None) returns all."""
    rows = await (tx.fetch(_OPEN) if before[0] is None else tx.fetch(_OPEN + _BEFORE, *before))
    return await find_outdated(tx, rows)


def policy_difference(row: asyncpg.Record, policy: ApprovalPolicy, risk: str) -> dict[str, JsonValue]:
    """Returns what a newer policy, or the tool's newer `risk`, changes of a request, for reviewers: each field with its
    values before and after. The role and the reviewers of an escalated request are not its policy's, and are left
    out."""
    if row["policy_digest"] in ("", *policy.digests_for(row["risk"])) and row["risk"] == risk:
        return {}
    current = policy_columns(policy, risk, RequestKind(row["kind"]))
    names = _POLICY if row["escalated_at"] is None else _POLICY[2:]
    values: dict[str, tuple[Any, Any]] = {name: (row[name], current[name]) for name in names}
    return {name: {"before": before, "after": after} for name, (before, after) in values.items() if before != after}


async def cancel_outdated(tx: Connection, approval_id: str, reason: str, turn_id: str) -> None:
    """Cancels an approval that no longer covers its call. Approvals in other statuses do not change. `tx` must hold the
    turn's lock."""
    closed = await tx.fetchval(
        "UPDATE approvals SET status = 'cancelled', closed_at = clock_timestamp(), version = version + 1 "
        "WHERE id = $1 AND status IN ('approved', 'edited') RETURNING true",
        approval_id,
    )
    if closed:
        await audit.record(tx, "approval.voided", approval_id, {"because": reason}, actor=None, turn_id=turn_id)


async def reopen_outdated(
    tx: Connection,
    address: TurnAddress,
    ask: ToolCallRequest,
    approval_id: str,
    reason: str,
    *,
    differs_at: DiffersAt = DiffersAt.NOWHERE,
) -> None:
    """Voids a given approval that no longer covers its call, and opens its request again with a new deadline. An
    attempt that had reserved the call, and left nothing behind, loses it. `tx` must hold the turn's lock.

    The arguments stay, with a reviewer's edits. The request is outdated until it is reissued. `differs_at` is where
    the call met another version than the published one, so that only this request shows it.
    """
    row = await tx.fetchrow("SELECT decision FROM approvals WHERE id = $1 FOR UPDATE", approval_id)
    edited = _edited(row["decision"] if row else None)
    expires_at = await tx.fetchval(_REOPEN, approval_id, edited, differs_at)
    if expires_at is None:
        return
    await tx.execute(_FREE, address.turn_id, ask.call_id)
    await tx.execute(_VOID_VOTES, approval_id)
    await audit.record(tx, "approval.voided", approval_id, {"because": reason}, actor=None, turn_id=address.turn_id)
    data: dict[str, JsonValue] = {
        "tool": ask.tool,
        "approval_id": approval_id,
        "outdated": reason,
        "expires_at": expires_at.isoformat(),
    }
    await write(tx, address, [NewEvent(TOOL_AWAITING_APPROVAL, data, ask.call_id)])


def _edited(decision: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns a decision's edited call in the form of an edit that is still voted on, or None without an edit."""
    if not decision or "args" not in decision:
        return None
    edited: dict[str, Any] = {name: decision[name] for name in ("args", "digest", "args_before") if name in decision}
    return edited | {"by": decision.get("edited_by") or decision.get("by", "")}


async def reissue_outdated(
    tx: Connection, approval_id: str, decider: Decider, checked_digest: str = ""
) -> tuple[Review, Note]:
    """Makes an outdated request again, with the same arguments, for the published version and policy. Its votes are
    void, and its deadline starts again. It keeps its id and gets a new digest. The returned note makes the turn read it
    again. A tools worker has accepted the arguments and version with the digest `checked_digest`.

    Its call may have met another version while the published one is still the old one. Then a tools worker checks that
    it, or the tool's MCP server, has the old one again.

    Raises: CallerError 404, 403, 409 decided, 410, 409 `not_outdated`, 409 `cannot_reissue`, 409 `turn_stopped`, 422
    `args_invalid`, EditNotChecked.
    """
    review = await lock_for_review(tx, approval_id, decider)
    row, record = review.row, review.record
    why = (await find_outdated(tx, [row])).get(approval_id)
    agent = await published_agent(tx, row["agent_id"])
    card = agent.card(row["tool"]) if agent is not None else None
    refused = reissue_refusal(record, review.decider, row["kind"], why)
    if refused is not None:
        raise refused
    if agent is None or card is None:
        message = f"{why}; reject the request, or publish the tool with its agent again"
        raise CallerError("cannot_reissue", message, {"outdated": why}, status=409)
    review.refuse_stopped()
    stored = await _store_reissued(tx, row, card, agent.definition.approvals)
    _require_check(review, card, (stored["revision"] or stored)["args"], checked_digest)
    changes = version_difference(await card_of_version(tx, row), card)
    changes |= policy_difference(row, agent.definition.approvals, card.risk)
    await _record_reissue(tx, review, card, why or "", stored, changes)
    return review, await put(tx, review.address.tenant_id, Wake.REQUEST, review.address.turn_id, approval_id)


def _require_check(review: Review, card: ToolCard, args: dict[str, JsonValue], checked_digest: str) -> None:
    """Raises: EditNotChecked if the types of the new version must check the arguments, or a worker or MCP server that
    had another version must have this one."""
    digest = digest_of({"version": card.version, "args": args})
    is_refused_version = bool(review.row["differs_at"]) and card.is_version(review.row["tool_version"])
    if (card.checks or is_refused_version) and digest != checked_digest:
        proposal = EditRef(approval_id=review.approval_id, digest=digest, proposal=new_id())
        raise EditNotChecked(review.address, proposal, args, card.version)


async def _store_reissued(
    tx: Connection, row: asyncpg.Record, card: ToolCard, policy: ApprovalPolicy
) -> dict[str, Any]:
    """Changes the request and its planned call to the version of `card`, voids the votes, and returns the new columns.

    Raises: CallerError 422 `args_invalid`.
    """
    requested = await tx.fetchval(_REQUESTED, row["turn_id"], row["call_id"])
    stored = _reissued_columns(row, requested, card, policy)
    named = ", ".join(f"{name} = ${number}" for number, name in enumerate(stored, 4))
    fallback_seconds = policy.fallback_after_seconds if policy.fallback_reviewer else None
    deadlines = (policy.expires_seconds, fallback_seconds)
    await tx.execute(f"{_REISSUE} {named} WHERE id = $1", row["id"], *deadlines, *stored.values())
    await tx.execute(_VOID_VOTES, row["id"])
    await tx.execute(_PLAN_AGAIN, row["turn_id"], row["call_id"], card.version, card.effect.value)
    return stored


def _reissued_columns(
    row: asyncpg.Record, requested: dict[str, JsonValue], card: ToolCard, policy: ApprovalPolicy
) -> dict[str, Any]:
    """Returns the columns of the request that the card and the policy determine. Defaults are filled in again, so that
    those of a version in between are gone.

    Raises: CallerError 422 `args_invalid`.
    """
    nonce, edit = secrets.token_hex(16), row["revision"] or _edited(row["decision"])
    args = row["args"] if edit is not None else _checked_args(requested, card)
    revision = None
    if edit is not None:
        edited = _checked_args(edit["args"], card)
        revision = {**edit, "args": edited, "digest": call_digest(row, edited, card.version, nonce)}
    return {
        "args": args,
        "revision": revision,
        "digest": call_digest(row, args, card.version, nonce),
        "nonce": nonce,
        "tool_version": card.version,
        "effect": card.effect.value,
        "risk": card.risk,
        "description": card.description,
        "describe": card.describe,
        "schema": card.parameters,
        "preview": {} if card.previews else None,
        "proposed": {} if card.checks else None,
        **policy_columns(policy, card.risk, RequestKind.APPROVAL),
    }


def _checked_args(args: dict[str, JsonValue], card: ToolCard) -> dict[str, JsonValue]:
    """Returns the arguments in the form of the card's schema.

    Raises: CallerError 422 `args_invalid`.
    """
    checked = freeze_arguments(args, card.parameters)
    if checked.fault is None:
        return checked.args
    message = f"The new version of the tool does not accept the arguments: {checked.fault}; reject the request"
    raise args_invalid(message, checked)


async def _record_reissue(
    tx: Connection,
    review: Review,
    card: ToolCard,
    why: str,
    stored: Mapping[str, Any],
    changes: dict[str, JsonValue],
) -> None:
    row, address, approval_id = review.row, review.address, review.approval_id
    edit = row["revision"] or _edited(row["decision"]) or row
    args = (stored["revision"] or stored)["args"]
    if args != edit["args"]:  # defaults of new parameters
        changes["arguments"] = {"before": edit["args"], "after": args}
    body: dict[str, JsonValue] = {
        "because": why,
        "from_version": row["tool_version"],
        "to_version": card.version,
        "changes": changes,
        "digest": str(stored["digest"]),
        "signed_in": review.signed_in,
    }
    actor = review.decider.user_id
    await audit.record(tx, "approval.reissued", approval_id, body, actor=actor, turn_id=address.turn_id)
    event: dict[str, JsonValue] = {"tool": row["tool"], "approval_id": approval_id, "reissued": True}
    await write(tx, address, [NewEvent(TOOL_AWAITING_APPROVAL, event, row["call_id"])])
