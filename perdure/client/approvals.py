"""The calls of reviewers about approvals. Each function makes a value; nothing is sent here."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict

from pydantic import JsonValue

from perdure.client.requests import Call, get, one, path, post
from perdure.schemas.answers import Page
from perdure.schemas.approvals import Ageing, Approval, AuditEntry, Counts, Delegation, ItemAnswer, OwnDecision

Decision = Literal["approve", "edit", "reject", "respond"]
MOST_IN_A_BATCH = 100


class Item(TypedDict):
    """One decision of a batch."""

    id: str
    digest: str
    decision: Literal["approve", "reject"]
    comment: NotRequired[str]
    reason_code: NotRequired[str]


def list_approvals(
    *,
    status: str | None = None,
    agent: str | None = None,
    tool: str | None = None,
    turn: str | None = None,
    assignee: str | None = None,
    role: str | None = None,
    risk: str | None = None,
    mine: bool | None = None,
    expiring_seconds: int | None = None,
    brief: bool | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Approval]]:
    """Approvals, newest first; `mine` are those that the caller may decide, `assignee` a user's name; `brief` leaves
    out the arguments and all else that may be long."""
    narrowed = {"status": status, "agent": agent, "tool": tool, "turn": turn, "assignee": assignee, "role": role}
    more = {"risk": risk, "mine": mine, "expiring": expiring_seconds, "brief": brief}
    return get(path("approvals"), one(Page[Approval]), {**narrowed, **more, "limit": limit, "cursor": cursor})


def preview(approval_id: str) -> Call[Approval]:
    """Have the tool look, read-only, at what the call would change: the approval with what it found."""
    return Call("POST", path("approvals", approval_id, "preview"), one(Approval), wait_seconds=20.0)


def count_approvals(*, expiring_seconds: int | None = None) -> Call[Counts]:
    """How many wait, how many the caller may decide, how many expire soon, and of which kinds they are."""
    return get(path("approvals", "counts"), one(Counts), {"expiring": expiring_seconds})


def list_decided(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[OwnDecision]]:
    """The caller's own decisions, newest first, each with what became of it."""
    return get(path("approvals", "decided"), one(Page[OwnDecision]), {"limit": limit, "cursor": cursor})


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
    """Decide and get the approval as it then is; `digest` is that of the call which the reviewer saw.

    Where more than one must approve, the answer may still be `pending`, with the votes so far.
    """
    body: dict[str, JsonValue] = {
        "decision": decision,
        "digest": digest,
        "args": None if args is None else dict(args),
        "comment": comment or None,
        "reason_code": reason_code or None,
    }
    return post(path("approvals", approval_id, "decision"), one(Approval), body, key=idempotency_key)


def decide_many(items: Sequence[Item], *, idempotency_key: str = "") -> Call[Page[ItemAnswer]]:
    """Decide on up to 100, each for itself: what one of them answers changes nothing for the others.

    Only calls of low risk and of one tool can be approved together; anything can be rejected.
    """
    given: list[JsonValue] = [{name: str(value) for name, value in item.items() if value} for item in items]
    return post(path("approvals", "decisions"), one(Page[ItemAnswer]), {"items": given}, key=idempotency_key)


def withdraw(approval_id: str, *, comment: str | None = None, idempotency_key: str = "") -> Call[Approval]:
    """Take the request back, or an approval whose call has not begun."""
    return _post(approval_id, "withdraw", {"comment": comment or None}, idempotency_key)


def claim(approval_id: str, *, seconds: int | None = None, idempotency_key: str = "") -> Call[Approval]:
    """Keep others from deciding for a while (900 s unless said); again by the same person: anew."""
    return _post(approval_id, "claim", {"seconds": seconds}, idempotency_key)


def release(approval_id: str, *, idempotency_key: str = "") -> Call[Approval]:
    """Give a claim back before it lapses."""
    return _post(approval_id, "release", {}, idempotency_key)


def reassign(approval_id: str, to: str, *, comment: str | None = None, idempotency_key: str = "") -> Call[Approval]:
    """Put it on the list of the user `to`, who must be entitled to decide."""
    return _post(approval_id, "reassign", {"to": to, "comment": comment or None}, idempotency_key)


def escalate(approval_id: str, *, comment: str | None = None, idempotency_key: str = "") -> Call[Approval]:
    """Hand it to the role that the policy names for that; once."""
    return _post(approval_id, "escalate", {"comment": comment or None}, idempotency_key)


def ageing() -> Call[Page[Ageing]]:
    """What waits, by role, assignee and agent, and for how long it has."""
    return get(path("approvals", "ageing"), one(Page[Ageing]))


def audit_of(approval_id: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[AuditEntry]]:
    """The audit rows of one approval, oldest first."""
    return get(path("approvals", approval_id, "audit"), one(Page[AuditEntry]), {"limit": limit, "cursor": cursor})


def _post(approval_id: str, verb: str, body: Mapping[str, JsonValue], key: str) -> Call[Approval]:
    return post(path("approvals", approval_id, verb), one(Approval), body, key=key)


# --- The calls about standing in for somebody.
# Each function makes a value; nothing is sent here.


def list_delegations(*, everybodys: bool = False, cursor: str | None = None) -> Call[Page[Delegation]]:
    """The caller's: those that they gave; `everybodys` is for an admin."""
    return get(path("delegations"), one(Page[Delegation]), {"all": everybodys or None, "cursor": cursor})


def add_delegation(to: str, until: datetime, *, idempotency_key: str = "") -> Call[Delegation]:
    """Let the user `to` decide in the caller's place until then, 90 days at most; `until` is aware of its zone."""
    if until.tzinfo is None:
        raise ValueError("say in which time zone `until` is")
    body: dict[str, JsonValue] = {"to": to, "until": until.isoformat()}
    return post(path("delegations"), one(Delegation), body, key=idempotency_key)


def remove_delegation(delegation_id: str) -> Call[None]:
    """End one of the caller's own at once, as an admin anybody's."""
    return Call("DELETE", path("delegations", delegation_id), lambda _: None)
