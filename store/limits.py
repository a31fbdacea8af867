"""Raising the limit that a turn has spent and waits for (S0-40): one change, with its audit row and its wake-up."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.errors import CallerError
from contracts.events import BUDGET
from contracts.people import RequestKind
from contracts.turns import Limits, TurnAddress
from policy.budget import spent
from policy.decision import STATUS_OF, Decider, Decision
from store import audit
from store.database import Connection
from store.decisions import DecisionAsk, said
from store.journal import NewEvent, write
from store.outbox import Note
from store.reviews import take_up
from store.votes import Ballot, cast


@dataclass(frozen=True, slots=True)
class Raise:
    """The limits that a reviewer gives; None leaves one as it is."""

    max_tokens: int | None = None
    max_cost_microusd: int | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """A turn that goes on."""

    address: TurnAddress
    approval_id: str
    limits: Limits


async def raise_limits(
    tx: Connection, turn_id: str, decider: Decider, name: str, asked: Raise
) -> tuple[Raised, Note | None]:
    """Give a turn that waits for it higher limits; the note is its doorbell.

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
        raise CallerError("turn_not_found", "there is no such turn", status=404)
    if turn["approval_id"] is None:
        raise CallerError("not_waiting_for_a_limit", "the turn does not ask for a higher limit", status=409)
    review = await take_up(tx, str(turn["approval_id"]), decider, asked_again=True)
    digest = review.facts.digest
    review.refuse(Decision.APPROVE, digest, reasoned=True, args_given=False, text=False)
    review.refuse_stopped()
    before = Limits.model_validate(turn["limits"])
    limits = _raised(before, asked, tokens_used=turn["tokens"], cost_microusd=turn["cost_microusd"])
    record = said(review, DecisionAsk(decision=Decision.APPROVE, digest=digest), name) | {
        "limits": limits.model_dump(mode="json"),
        "limits_before": before.model_dump(mode="json"),
    }
    await tx.execute("UPDATE turns SET limits = $2 WHERE id = $1", turn_id, limits.model_dump(mode="json"))
    counted = await cast(tx, review, Ballot(Decision.APPROVE, STATUS_OF[Decision.APPROVE], digest, record))
    address, approval_id = review.address, review.approval_id
    await audit.record(tx, "turn.limits_raised", approval_id, record, actor=decider.user_id, turn_id=turn_id)
    now: dict[str, JsonValue] = {"max_tokens": limits.max_tokens, "max_cost_usd": limits.max_cost_microusd / 1e6}
    await write(
        tx, address, [NewEvent(BUDGET, {"code": "limit_raised", "approval_id": approval_id, "by": name, **now})]
    )
    return Raised(address, approval_id, limits), counted.note


def _raised(before: Limits, asked: Raise, *, tokens_used: int, cost_microusd: int) -> Limits:
    """The limits with what was asked for; no limit is lowered, and none is met any more."""
    given = {
        "max_tokens": before.max_tokens if asked.max_tokens is None else asked.max_tokens,
        "max_cost_microusd": before.max_cost_microusd if asked.max_cost_microusd is None else asked.max_cost_microusd,
    }
    limits = before.model_copy(update=given)
    if limits.max_tokens < before.max_tokens or limits.max_cost_microusd < before.max_cost_microusd:
        now: dict[str, object] = {"max_tokens": before.max_tokens, "max_cost_usd": before.max_cost_microusd / 1e6}
        raise CallerError("limit_not_raised", "a limit can only be raised", now)
    over = spent(limits, tokens_used=tokens_used, cost_microusd=cost_microusd)
    if over is not None:
        raise CallerError("still_spent", f"the turn could not go on: {over.message}")
    return limits
