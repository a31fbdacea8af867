"""The calls of reviewers: approvals and effects. Each function makes a value; nothing is sent here."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import JsonValue

from perdure.client.answers import Approval, Effect, Page, Settled
from perdure.client.calls import Call, get, one, path, post

Decision = Literal["approve", "edit", "reject", "respond"]
Outcome = Literal["happened", "did_not_happen"]


def list_approvals(
    *,
    status: str | None = None,
    agent: str | None = None,
    tool: str | None = None,
    turn: str | None = None,
    mine: bool | None = None,
    expiring_seconds: int | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Approval]]:
    """Approvals, newest first; `mine` are those that the caller may decide."""
    query = {"status": status, "agent": agent, "tool": tool, "turn": turn, "mine": mine, "expiring": expiring_seconds}
    return get(path("approvals"), one(Page[Approval]), {**query, "limit": limit, "cursor": cursor})


def get_approval(approval_id: str) -> Call[Approval]:
    """One approval with all that a reviewer must see."""
    return get(path("approvals", approval_id), one(Approval))


def decide(
    approval_id: str,
    decision: Decision,
    digest: str,
    *,
    args: Mapping[str, Any] | None = None,
    comment: str | None = None,
    reason_code: str | None = None,
    idempotency_key: str = "",
) -> Call[Approval]:
    """Take the one decision and get the approval as it then is; `digest` is that of the call which the reviewer saw."""
    body: dict[str, JsonValue] = {
        "decision": decision,
        "digest": digest,
        "args": None if args is None else dict(args),
        "comment": comment or None,
        "reason_code": reason_code or None,
    }
    return post(path("approvals", approval_id, "decision"), one(Approval), body, key=idempotency_key)


def list_effects(
    *, state: str | None = "outcome_unknown", limit: int | None = None, cursor: str | None = None
) -> Call[Page[Effect]]:
    """Effects in this state; by default those that a person must settle."""
    return get(path("effects"), one(Page[Effect]), {"state": state, "limit": limit, "cursor": cursor})


def settle_effect(key: str, outcome: Outcome, comment: str, *, idempotency_key: str = "") -> Call[Settled]:
    """State what became of an effect; `comment` says how it is known."""
    body: dict[str, JsonValue] = {"outcome": outcome, "comment": comment}
    return post(path("effects", key, "settle"), one(Settled), body, key=idempotency_key)
