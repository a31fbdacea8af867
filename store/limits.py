"""Raising the limit that a turn has spent and waits for (S0-40): one change, with its audit row and its wake-up."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.errors import CallerError
from contracts.events import BUDGET
from contracts.people import RequestKind
from contracts.turns import Limits, TurnAddress
from policy.budget import spent
from policy.decision import Decider, Decision, Facts, refusal
from store import audit
from store.database import Connection
from store.journal import NewEvent, write
from store.outbox import Note, Wake, put


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


async def raise_limits(tx: Connection, turn_id: str, decider: Decider, name: str, asked: Raise) -> tuple[Raised, Note]:
    """Give a turn that waits for it higher limits; the note is its doorbell.

    Raises: CallerError 404 `turn_not_found`, 409 `not_waiting_for_a_limit`, then as for a decision: 403, 409 decided,
    410; 409 `turn_stopped`; 422 `limit_not_raised`, `still_spent`.
    """
    turn = await tx.fetchrow(
        "SELECT tenant_id, conversation_id, limits, input_tokens + output_tokens AS tokens, cost_microusd, "
        "stop_requested_at FROM turns WHERE id = $1 FOR UPDATE",
        turn_id,
    )
    if turn is None:
        raise CallerError("turn_not_found", "there is no such turn", status=404)
    row = await tx.fetchrow(
        "SELECT *, clock_timestamp() AS now FROM approvals WHERE turn_id = $1 AND kind = $2 "
        "ORDER BY requested_at DESC LIMIT 1 FOR UPDATE",
        turn_id,
        RequestKind.LIMIT.value,
    )
    if row is None:
        raise CallerError("not_waiting_for_a_limit", "the turn does not ask for a higher limit", status=409)
    facts = Facts(
        row["status"],
        row["digest"],
        row["expires_at"],
        row["now"],
        str(row["requested_by"]),
        row["reviewer_role"],
        row["allow_self_approval"],
        row["decision"] or {},
    )
    refused = refusal(facts, decider, Decision.APPROVE, row["digest"], reasoned=True, args_given=False, text=False)
    if refused is not None:
        raise refused
    if turn["stop_requested_at"] is not None:
        raise CallerError("turn_stopped", "the turn was stopped; nothing of it runs any more", status=409)
    before = Limits.model_validate(turn["limits"])
    limits = _raised(before, asked, tokens_used=turn["tokens"], cost_microusd=turn["cost_microusd"])
    record: dict[str, JsonValue] = {
        "type": Decision.APPROVE.value,
        "by": name,
        "limits": limits.model_dump(mode="json"),
        "limits_before": before.model_dump(mode="json"),
    }
    await tx.execute(
        "WITH given AS (UPDATE turns SET limits = $2 WHERE id = $1) "
        "UPDATE approvals SET status = 'approved', decision = $4 || jsonb_build_object('at', clock_timestamp()), "
        "decided_by = $5, decided_at = clock_timestamp(), version = version + 1 WHERE id = $3",
        turn_id,
        limits.model_dump(mode="json"),
        row["id"],
        record,
        decider.user_id,
    )
    address = TurnAddress(tenant_id=turn["tenant_id"], conversation_id=str(turn["conversation_id"]), turn_id=turn_id)
    approval_id = str(row["id"])
    await audit.record(tx, "turn.limits_raised", approval_id, record, actor=decider.user_id, turn_id=turn_id)
    note = await put(tx, address.tenant_id, Wake.RING, turn_id, approval_id)
    now: dict[str, JsonValue] = {"max_tokens": limits.max_tokens, "max_cost_usd": limits.max_cost_microusd / 1e6}
    await write(
        tx, address, [NewEvent(BUDGET, {"code": "limit_raised", "approval_id": approval_id, "by": name, **now})]
    )
    return Raised(address, approval_id, limits), note


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
