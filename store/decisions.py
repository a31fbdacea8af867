"""Deciding on an approval: counted once, with its audit row and its wake-up."""

from pydantic import JsonValue

from contracts.digests import frozen_call_digest
from contracts.errors import CallerError
from contracts.events import TOOL_APPROVED, TOOL_DENIED
from contracts.frozen import Frozen
from contracts.people import RequestKind
from policy.arguments import check_arguments
from policy.covering import GIVEN
from policy.decision import Decider, Decision
from policy.fitting import MOST_TOLD
from policy.outdated import runs_by
from policy.quorum import PENDING, status_after
from policy.text import is_blank
from policy.webhooks import CHAT, chat_may_decide
from store import audit
from store.checkpoints import call_told_of, plan_again
from store.database import Connection
from store.ids import new_id
from store.in_force import outdated
from store.journal import NewEvent, write
from store.outbox import Note
from store.reviews import Review, take_up
from store.votes import Ballot, cast


class DecisionAsk(Frozen):
    """A reviewer's decision as it comes from the API."""

    decision: Decision
    digest: str
    args: dict[str, JsonValue] | None = None
    comment: str = ""
    reason_code: str = ""
    channel: str = "api"


class Decided(Frozen):
    """A decision that now stands; `pending` where others must decide, too."""

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
    ask: DecisionAsk,
    per_minute: int | None = None,
    *,
    unfit: CallerError | None = None,
) -> tuple[Decided, Note | None]:
    """Take `ask` as this person's one decision on this approval. `unfit` is the 422 of a route that does not take it,
    which is raised only after what comes before every 422.

    The note is the turn's doorbell, to be rung at once; None where others must decide, too, or where a hold begins, at
    whose end the relay rings. With `per_minute` a person's decisions of the last minute are counted.

    Raises: CallerError 404, 403, 409 decided (with the decision), 410, 409 voted or claimed, 409 digest, 422, 409
    `turn_stopped`, 409 `approval_outdated`, 429, in this order.
    """
    review = await take_up(tx, approval_id, decider, alone=per_minute is not None, asked_again=True)
    if ask.channel == CHAT and not chat_may_decide(review.row["risk"]):
        raise CallerError("not_from_chat", "decide on this on its page: its risk is not low", status=403)
    review.refuse(
        ask.decision,
        ask.digest,
        reasoned=not (is_blank(ask.comment) and is_blank(ask.reason_code)),
        args_given=ask.args is not None,
        text=not is_blank(ask.comment),
        unfit=unfit,
    )
    row = review.row
    if row["kind"] == RequestKind.LIMIT and ask.decision is not Decision.REJECT:
        raise CallerError("raise_the_limit", "raise it with POST /v1/turns/{id}/limits, or reject it", status=422)
    review.refuse_stopped()
    edit = _edited(review, ask)
    await _refuse_outdated(tx, review, ask.decision)
    revision = edit or _revised(row["revision"])
    status = status_after(ask.decision, row["quorum"], review.facts.votes, review.vote, revised=bool(revision))
    record = said(review, ask, name) | (edit if status == PENDING else _freed(ask, revision))
    again = row["kind"] == RequestKind.CHECKPOINT and "args" in record and status != PENDING
    if again:
        record["message_id"] = new_id()
    ballot = Ballot(
        ask.decision,
        status,
        str(edit.get("digest", review.facts.digest)),
        record,
        {**edit, "by": name} if edit and status == PENDING else None,
        row["hold_seconds"] if status in GIVEN and (again or row["kind"] == RequestKind.APPROVAL) else 0,
    )
    counted = await cast(tx, review, ballot, per_minute)
    kind = "approval.voted" if status == PENDING else "approval.decided"
    address = review.address
    await audit.record(tx, kind, approval_id, record, actor=review.decider.user_id, turn_id=address.turn_id)
    if status != PENDING:
        told = _told(review, ask, name)
        await write(tx, address, [told], [await plan_again(tx, row, record)] if again else [])
    decided = Decided(
        approval_id=approval_id,
        status=status,
        version=counted.version,
        turn_id=address.turn_id,
        conversation_id=address.conversation_id,
    )
    return decided, counted.note


async def _refuse_outdated(tx: Connection, review: Review, decision: Decision) -> None:
    """Raises: CallerError 409 `approval_outdated` where the call would be denied as void once it begins."""
    row = review.row
    if decision not in runs_by(row["kind"], row["tool"]):
        return
    why = (await outdated(tx, [row])).get(review.approval_id)
    if why is not None:
        message = f"{why}, so its call would not run; reject it with that reason, and the agent can ask anew"
        raise CallerError("approval_outdated", message, {"outdated": why}, status=409)


def said(review: Review, ask: DecisionAsk, name: str) -> dict[str, JsonValue]:
    """What was said, by whom, in whose place: what every decision's record begins with."""
    record: dict[str, JsonValue] = {
        "type": ask.decision.value,
        "by": name,
        "comment": ask.comment,
        "reason_code": ask.reason_code,
        "channel": ask.channel,
        "seen_digest": ask.digest,
        "signed_in": review.signed_in,
    }
    return record if review.seat.user_id == review.decider.user_id else {**record, "for": review.seat.name}


def _edited(review: Review, ask: DecisionAsk) -> dict[str, JsonValue]:
    """The call frozen anew: its own arguments and digest, and those before, so that both versions stay (S0-39).

    Empty where this is no edit.

    Raises: CallerError 422 `args_invalid`.
    """
    if ask.decision is not Decision.EDIT or ask.args is None:
        return {}
    row = review.row
    checked = check_arguments(ask.args, row["schema"])
    if checked.fault is not None:
        fields = [{"field": each.field, "problem": each.problem[:200]} for each in checked.misfits[:MOST_TOLD]]
        raise CallerError("args_invalid", f"the edit is refused: {checked.fault}", {"fields": fields}, status=422)
    digest = frozen_call_digest(
        tenant_id=row["tenant_id"],
        turn_id=str(row["turn_id"]),
        call_id=row["call_id"],
        tool=row["tool"],
        tool_version=row["tool_version"],
        args=checked.args,
        nonce=row["nonce"],
    )
    return {"args": checked.args, "digest": digest, "args_before": row["args"]}


def _revised(revision: dict[str, JsonValue] | None) -> dict[str, JsonValue]:
    """What an earlier edit of a call that is still voted on has frozen, and who made it."""
    return {"edited_by" if name == "by" else name: value for name, value in (revision or {}).items()}


def _freed(ask: DecisionAsk, revision: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """What a decision that counts adds to its record: the arguments that run, where they are not those asked for."""
    return revision if ask.decision in (Decision.APPROVE, Decision.EDIT) else {}


def _told(review: Review, ask: DecisionAsk, name: str) -> NewEvent:
    row = review.row
    event: dict[str, JsonValue] = {
        "tool": row["tool"],
        "approval_id": review.approval_id,
        "decision": ask.decision.value,
        "by": name,
        "comment": ask.comment or ask.reason_code,
    }
    if row["checkpoint"]:
        event["checkpoint"] = row["checkpoint"]
    allowed = ask.decision in (Decision.APPROVE, Decision.EDIT)
    return NewEvent(TOOL_APPROVED if allowed else TOOL_DENIED, event, call_told_of(row["kind"], row["call_id"]))
