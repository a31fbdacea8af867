"""Decisions on approvals: each is counted once, with its audit row and its wake signal."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from perdure.contracts.activities import EditRef
from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError, InvariantBroken
from perdure.contracts.events import BUDGET, TOOL_APPROVED, TOOL_DENIED
from perdure.contracts.turns import Limits, TurnAddress
from perdure.contracts.values import Frozen
from perdure.core.approvals.decisions import PENDING, STATUS_AFTER, Decider, Decision, DecisionRequest, status_after
from perdure.core.approvals.validity import GRANTED_STATUSES, decisions_that_run
from perdure.core.budgets import spent_limit
from perdure.core.calls.arguments import freeze_arguments
from perdure.core.delivery import CHAT, chat_may_decide
from perdure.core.text import is_blank
from perdure.store import audit
from perdure.store.approvals.requests import args_invalid, call_digest, event_call_id, plan_edited_call, refusal_data
from perdure.store.approvals.review import Review, find_outdated, lock_for_review
from perdure.store.database import Connection, new_id
from perdure.store.delivery.outbox import HEAD_START, Note, Wake
from perdure.store.events.event_log import NewEvent, write


class SubmittedDecision(Frozen):
    """A reviewer's decision as the API receives it."""

    decision: Decision
    digest: str
    revision: int | None = None
    """The revision that the reviewer has seen; None if the decision names none."""
    args: dict[str, JsonValue] | None = None
    comment: str = ""
    reason_code: str = ""
    channel: str = "api"


class Decided(Frozen):
    """A recorded decision. The status is `pending` if other reviewers must decide too."""

    approval_id: str
    status: str
    version: int
    turn_id: str
    conversation_id: str


async def decide(
    tx: Connection,
    approval_id: str,
    decider: Decider,
    name: str,
    submitted: SubmittedDecision,
    per_minute: int | None = None,
    *,
    unfit: CallerError | None = None,
    checked_digest: str = "",
) -> tuple[Decided, Note | None]:
    """Records `submitted` as this user's only decision on this approval. `unfit` is a 422 of the route, which is raised
    only after all checks that precede a 422. A tools worker has accepted the edit with the digest `checked_digest`.

    The returned note wakes the turn; the caller must send it immediately. There is no note if other reviewers must
    decide too, or if a hold begins; the relay wakes the turn at its end. `per_minute` limits the user's decisions
    of the last minute.

    Raises: CallerError 404, 403, 409 decided (with the decision), 410, 409 voted or claimed, 409 revision, 409 digest,
    422, 409 `turn_stopped`, 409 `approval_outdated`, EditNotChecked, 429, in this order.
    """
    review = await lock_for_review(
        tx, approval_id, decider, one_at_a_time=per_minute is not None, checked_on_write=True
    )
    _check_allowed(review, submitted, unfit)
    ballot = _make_ballot(review, submitted, name)
    await _refuse_outdated(tx, review, submitted.decision)
    _require_check(review, ballot, checked_digest)
    counted = await count_vote(tx, review, ballot, per_minute)
    kind = "approval.voted" if ballot.status == PENDING else "approval.decided"
    address = review.address
    await audit.record(tx, kind, approval_id, ballot.record, actor=review.decider.user_id, turn_id=address.turn_id)
    if ballot.status != PENDING:
        again = [await plan_edited_call(tx, review.row, ballot.record)] if ballot.plans_again else []
        await write(tx, address, [_decision_event(review, submitted, name)], again)
    where = {"turn_id": address.turn_id, "conversation_id": address.conversation_id}
    decided = Decided(approval_id=approval_id, status=ballot.status, version=counted.version, **where)
    return decided, counted.note


class EditNotChecked(Exception):
    """The edit, or the arguments of a reissue, fit the schema. A tools worker must check them before they are recorded.
    A reissue names the version of the tool."""

    def __init__(self, address: TurnAddress, edit: EditRef, args: dict[str, JsonValue], version: str = "") -> None:
        super().__init__(edit.approval_id)
        self.address = address
        self.edit = edit
        self.edited_args = args
        self.version = version


def _require_check(review: Review, ballot: "Ballot", checked_digest: str) -> None:
    """Raises: EditNotChecked if the types of the tool must check the edit."""
    if ballot.edited_args is not None and review.row["proposed"] is not None and ballot.digest != checked_digest:
        edit = EditRef(approval_id=review.approval_id, digest=ballot.digest, proposal=new_id())
        raise EditNotChecked(review.address, edit, ballot.edited_args)


def _check_allowed(review: Review, submitted: SubmittedDecision, unfit: CallerError | None) -> None:
    """Checks that this user can make this decision and that the request is still open.

    Raises: CallerError.
    """
    if submitted.channel == CHAT and not chat_may_decide(review.row["risk"]):
        raise CallerError(
            "not_from_chat", "Only low-risk calls can be decided here; open the approval's page", status=403
        )
    review.refuse(
        submitted.decision,
        submitted.digest,
        revision=submitted.revision,
        reasoned=not (is_blank(submitted.comment) and is_blank(submitted.reason_code)),
        args_given=submitted.args is not None,
        text=not is_blank(submitted.comment),
        unfit=unfit,
    )
    if review.row["kind"] == RequestKind.LIMIT and submitted.decision is not Decision.REJECT:
        raise CallerError(
            "raise_the_limit", "Raise the limit with POST /v1/turns/{id}/limits, or reject the request", status=422
        )
    review.refuse_stopped()


def _make_ballot(review: Review, submitted: SubmittedDecision, name: str) -> "Ballot":
    """Returns the decision in the form that is recorded.

    Raises: CallerError 422 `args_invalid`.
    """
    row, edit = review.row, _edit_record(review, submitted)
    revision, edited_args = edit or _earlier_edit(row["revision"]), edit.get("args")
    status = status_after(submitted.decision, row["quorum"], review.record.votes, review.vote, revised=bool(revision))
    record = decision_record(review, submitted, name) | (
        edit if status == PENDING else _changed_arguments(submitted, revision)
    )
    plans_again = row["kind"] == RequestKind.CHECKPOINT and "args" in record and status != PENDING
    if plans_again:
        record["message_id"] = new_id()
    return Ballot(
        submitted.decision,
        status,
        str(edit.get("digest", review.record.digest)),
        record,
        {**edit, "by": name} if edit and status == PENDING else None,
        row["hold_seconds"]
        if status in GRANTED_STATUSES and (plans_again or row["kind"] == RequestKind.APPROVAL)
        else 0,
        plans_again,
        edited_args if isinstance(edited_args, dict) else None,
    )


async def _refuse_outdated(tx: Connection, review: Review, decision: Decision) -> None:
    """Checks that the call would run after this decision.

    Raises: CallerError 409 `approval_outdated` if the call would be denied when it starts.
    """
    row = review.row
    if decision not in decisions_that_run(row["kind"], row["tool"]):
        return
    why = (await find_outdated(tx, [row])).get(review.approval_id)
    if why is not None:
        message = f"{why}, so the call would not run; reissue the request, or reject it"
        raise CallerError("approval_outdated", message, {"outdated": why}, status=409)


def decision_record(review: Review, submitted: SubmittedDecision, name: str) -> dict[str, JsonValue]:
    """Returns the first part of every decision's record: the decision, its comment, its user, and the user on
    whose behalf it was made."""
    record: dict[str, JsonValue] = {
        "type": submitted.decision.value,
        "by": name,
        "comment": submitted.comment,
        "reason_code": submitted.reason_code,
        "channel": submitted.channel,
        "seen_digest": submitted.digest,
        "signed_in": review.signed_in,
        **review.kinship,
    }
    if submitted.revision is not None:
        record["seen_revision"] = submitted.revision
    return record if review.reviewer.user_id == review.decider.user_id else {**record, "for": review.reviewer.name}


def _edit_record(review: Review, submitted: SubmittedDecision) -> dict[str, JsonValue]:
    """Returns the edited arguments with their digest, and the arguments before, so that both versions are stored.

    Returns an empty dict if the decision is not an edit.

    Raises: CallerError 422 `args_invalid`.
    """
    if submitted.decision is not Decision.EDIT or submitted.args is None:
        return {}
    row = review.row
    checked = freeze_arguments(submitted.args, row["schema"])
    if checked.fault is not None:
        raise args_invalid(f"The edit is invalid: {checked.fault}", checked)
    digest = call_digest(row, checked.args, row["tool_version"], row["nonce"])
    return {"args": checked.args, "digest": digest, "args_before": row["args"]}


def _earlier_edit(revision: dict[str, JsonValue] | None) -> dict[str, JsonValue]:
    """Returns the call of an earlier edit in a request that is still voted on, with the user who edited it."""
    return {"edited_by" if name == "by" else name: value for name, value in (revision or {}).items()}


def _changed_arguments(submitted: SubmittedDecision, revision: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns what the deciding vote adds to its record: the arguments that will run, if they differ from the requested
    ones."""
    return revision if submitted.decision in (Decision.APPROVE, Decision.EDIT) else {}


def _decision_event(review: Review, submitted: SubmittedDecision, name: str) -> NewEvent:
    row = review.row
    event: dict[str, JsonValue] = {
        "tool": row["tool"],
        "approval_id": review.approval_id,
        "decision": submitted.decision.value,
        "by": name,
        "comment": submitted.comment or submitted.reason_code,
    }
    if row["checkpoint"]:
        event["checkpoint"] = row["checkpoint"]
    allowed = submitted.decision in (Decision.APPROVE, Decision.EDIT)
    if not allowed:
        event |= refusal_data(row["kind"], STATUS_AFTER[submitted.decision])
    return NewEvent(TOOL_APPROVED if allowed else TOOL_DENIED, event, event_call_id(row["kind"], row["call_id"]))


# A statement that waited for a lock sees only the locked row in its new state. The statement that records the decision
# starts after the lock is acquired, so it checks role, delegation and deadline again.
_COUNT_VOTE = f"""
WITH recent AS (
  SELECT count(*) AS taken, min(at) AS since FROM (
    SELECT at FROM approval_votes WHERE user_id = $5 AND at > clock_timestamp() - interval '1 minute'
    ORDER BY at DESC LIMIT coalesce($11::int, 0)) latest
), cast_now AS (
  UPDATE approvals a SET status = $2, version = version + 1, claimed_by = NULL, claimed_until = NULL,
    decision = CASE WHEN $2 = 'pending' THEN decision ELSE $3::jsonb || jsonb_build_object('at', clock_timestamp()) END,
    decided_by = CASE WHEN $2 = 'pending' THEN decided_by ELSE $5::uuid END,
    decided_at = CASE WHEN $2 = 'pending' THEN decided_at ELSE clock_timestamp() END,
    ready_at = CASE WHEN $9::int > 0 AND $2 <> 'pending' THEN clock_timestamp() + make_interval(secs => $9) END,
    revision = coalesce($4::jsonb, revision),
    proposed = CASE WHEN $2 <> 'pending' AND proposed IS NOT NULL THEN '{{}}'::jsonb ELSE proposed END
  WHERE id = $1 AND status = 'pending' AND expires_at > clock_timestamp()
    AND ($11::int IS NULL OR (SELECT taken FROM recent) < $11)
    AND (SELECT bool_and(u.disabled_at IS NULL AND a.reviewer_role = ANY(u.roles)) FROM users u WHERE u.id IN ($5, $6))
    AND ($5 = $6 OR EXISTS (SELECT FROM delegations d WHERE d.user_id = $6 AND d.to_user = $5 AND d.ended_at IS NULL
      AND d.until > clock_timestamp()))
  RETURNING id, tenant_id, turn_id, reviewer_role, version, ready_at
), voided AS (
  UPDATE approval_votes v SET voided_at = clock_timestamp() FROM cast_now c
  WHERE v.approval_id = c.id AND v.voided_at IS NULL AND $7 = 'edit'
), voted AS (
  INSERT INTO approval_votes (tenant_id, approval_id, user_id, seat_id, role, decision, digest, record, created_by)
  SELECT tenant_id, id, $5, $6, reviewer_role, $7, $8, $3, $12::uuid[] FROM cast_now
), noted AS (
  INSERT INTO outbox (tenant_id, kind, turn_id, request_id, due_at)
  SELECT tenant_id, $10, turn_id, id::text, coalesce(ready_at, now() + interval '{HEAD_START}')
  FROM cast_now WHERE $2 <> 'pending' RETURNING id
)
SELECT (SELECT version FROM cast_now), (SELECT ready_at FROM cast_now) IS NOT NULL AS held,
  (SELECT id FROM noted) AS note, taken >= $11 AS too_many,
  ceil(extract(epoch FROM since + interval '1 minute' - clock_timestamp()))::int AS wait_seconds,
  (SELECT expires_at <= clock_timestamp() FROM approvals WHERE id = $1) AS overdue
FROM recent
"""


@dataclass(frozen=True, slots=True)
class Ballot:
    """A valid decision in the form that is recorded."""

    decision: Decision
    status: str
    """The approval's status after the decision; `pending` if other reviewers must decide too."""
    digest: str
    """The digest of the call that was decided on. After an edit, it is the digest of the edited call."""
    record: dict[str, JsonValue]
    revision: dict[str, JsonValue] | None = None
    """The edited call, if it still needs other votes."""
    hold_seconds: int = 0
    plans_again: bool = False
    """True if a checkpoint's call was edited and is planned again."""
    edited_args: dict[str, JsonValue] | None = None
    """The arguments of this decision, if it is an edit."""


@dataclass(frozen=True, slots=True)
class CastResult:
    """The result of a recorded decision."""

    version: int
    note: Note | None
    """The note that wakes the turn now. None if the request is still pending, or if a hold begins."""


async def count_vote(tx: Connection, review: Review, ballot: Ballot, per_minute: int | None = None) -> CastResult:
    """Counts this decision: vote, approval and wake signal in one statement. `tx` must hold the locks of `review`.

    The approval changes in one conditional UPDATE, whatever the kind of the request.

    Raises: CallerError 429 `too_many_decisions`; 410 or 403 if the deadline has just passed or the role was just
    removed.
    """
    row = await tx.fetchrow(
        _COUNT_VOTE,
        review.approval_id,
        ballot.status,
        ballot.record,
        ballot.revision,
        review.decider.user_id,
        review.reviewer.user_id,
        ballot.decision.value,
        ballot.digest,
        ballot.hold_seconds if ballot.status != PENDING else 0,
        Wake.REQUEST.value,
        per_minute,
        review.decider.credential.created_by,
    )
    if row is None:
        raise InvariantBroken("no_answer", "the statement that counts votes returned no row")
    if row["version"] is None:
        raise _cast_refusal(review, overdue=row["overdue"], too_many=row["too_many"], wait_seconds=row["wait_seconds"])
    address, note = review.address, None
    if row["note"] is not None and not row["held"]:
        note = Note(row["note"], address.tenant_id, Wake.REQUEST, address.turn_id, review.approval_id)
    return CastResult(row["version"], note)


def _cast_refusal(review: Review, *, overdue: bool, too_many: bool | None, wait_seconds: int | None) -> CallerError:
    if overdue:
        return CallerError("approval_expired", "The request expired undecided and counts as denied", status=410)
    if too_many:
        return CallerError(
            "too_many_decisions",
            "You have made too many decisions within a minute; retry later",
            {"retry_after_seconds": max(1, wait_seconds or 1)},
            status=429,
        )
    role = review.record.reviewer_role
    return CallerError(
        "role_required", f"You no longer have the role {role}, which this decision requires", {"role": role}, status=403
    )


async def decision_requests(tx: Connection, approval_ids: Sequence[str], decider: Decider) -> list[DecisionRequest]:
    """Returns the subjects of those approvals that this user can see. The subject of an approval never changes. It is
    for bulk decisions."""
    rows = await tx.fetch(
        "SELECT requested_by, kind, agent_id, tool, tool_version, risk FROM approvals WHERE id = ANY($1)",
        list(approval_ids),
    )
    return [
        DecisionRequest(row["kind"], row["agent_id"], row["tool"], row["tool_version"], row["risk"])
        for row in rows
        if decider.sees(str(row["requested_by"]))
    ]


@dataclass(frozen=True, slots=True)
class LimitRaise:
    """The limits that a reviewer enters; None leaves a limit unchanged."""

    max_tokens: int | None = None
    max_cost_microusd: int | None = None


@dataclass(frozen=True, slots=True)
class RaisedTurn:
    """A turn that continues with raised limits."""

    address: TurnAddress
    approval_id: str
    limits: Limits


async def raise_limits(
    tx: Connection, turn_id: str, decider: Decider, name: str, raised: LimitRaise
) -> tuple[RaisedTurn, Note | None]:
    """Raises the limits of a turn that is paused for it, with an audit row. The returned note wakes the turn.

    Raises: CallerError 404 `turn_not_found`, 409 `not_waiting_for_a_limit`, then as for a decision: 403, 409 decided,
    410; 409 `turn_stopped`; 422 `limit_not_raised`, `still_spent`.
    """
    turn = await tx.fetchrow(
        "SELECT user_id, limits, input_tokens + output_tokens AS tokens, cost_microusd, (SELECT id FROM approvals a "
        "WHERE a.turn_id = t.id AND a.kind = $2 ORDER BY requested_at DESC LIMIT 1) AS approval_id "
        "FROM turns t WHERE id = $1 FOR UPDATE",
        turn_id,
        RequestKind.LIMIT.value,
    )
    if turn is None or not decider.sees(str(turn["user_id"])):
        raise CallerError("turn_not_found", "Turn not found", status=404)
    if turn["approval_id"] is None:
        raise CallerError(
            "not_waiting_for_a_limit", "The turn does not wait for a limit, so none can be raised", status=409
        )
    review = await lock_for_review(tx, str(turn["approval_id"]), decider, checked_on_write=True)
    digest = review.record.digest
    review.refuse(Decision.APPROVE, digest, reasoned=True, args_given=False, text=False)
    review.refuse_stopped()
    before = Limits.model_validate(turn["limits"])
    limits = _raise_limits(before, raised, tokens_used=turn["tokens"], cost_microusd=turn["cost_microusd"])
    record = decision_record(review, SubmittedDecision(decision=Decision.APPROVE, digest=digest), name) | {
        "limits": limits.model_dump(mode="json"),
        "limits_before": before.model_dump(mode="json"),
    }
    await tx.execute("UPDATE turns SET limits = $2 WHERE id = $1", turn_id, limits.model_dump(mode="json"))
    counted = await count_vote(tx, review, Ballot(Decision.APPROVE, STATUS_AFTER[Decision.APPROVE], digest, record))
    address, approval_id = review.address, review.approval_id
    await audit.record(tx, "turn.limits_raised", approval_id, record, actor=decider.user_id, turn_id=turn_id)
    now: dict[str, JsonValue] = {"max_tokens": limits.max_tokens, "max_cost_usd": limits.max_cost_microusd / 1e6}
    await write(
        tx, address, [NewEvent(BUDGET, {"code": "limit_raised", "approval_id": approval_id, "by": name, **now})]
    )
    return RaisedTurn(address, approval_id, limits), counted.note


def _raise_limits(before: Limits, raised: LimitRaise, *, tokens_used: int, cost_microusd: int) -> Limits:
    """Returns the requested limits.

    Raises: CallerError `limit_not_raised` if one is lower than before, `still_spent` if the turn has reached one
    already.
    """
    given = {
        "max_tokens": before.max_tokens if raised.max_tokens is None else raised.max_tokens,
        "max_cost_microusd": before.max_cost_microusd if raised.max_cost_microusd is None else raised.max_cost_microusd,
    }
    limits = before.model_copy(update=given)
    if limits.max_tokens < before.max_tokens or limits.max_cost_microusd < before.max_cost_microusd:
        now: dict[str, object] = {"max_tokens": before.max_tokens, "max_cost_usd": before.max_cost_microusd / 1e6}
        raise CallerError("limit_not_raised", "A limit can only be raised, not lowered", now)
    over = spent_limit(limits, tokens_used=tokens_used, cost_microusd=cost_microusd)
    if over is not None:
        raise CallerError("still_spent", f"The new limit is still too low: {over.message}")
    return limits
