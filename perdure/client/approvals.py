"""API calls for approvals and delegations. Each function builds a `Call`; a client sends it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict

from pydantic import JsonValue

from perdure.client.requests import Call, get, parsed_as, path, post
from perdure.schemas.approvals import Ageing, Approval, AuditEntry, Counts, Delegation, ItemAnswer, OwnDecision
from perdure.schemas.base import Page

Decision = Literal["approve", "edit", "reject", "respond"]
MAX_BATCH_ITEMS = 100


class BatchItem(TypedDict):
    """One decision of a batch."""

    id: str
    digest: str
    revision: NotRequired[int]
    decision: Literal["approve", "reject"]
    comment: NotRequired[str]
    reason_code: NotRequired[str]


def list_approvals(
    *,
    status: str | None = None,
    kind: str | None = None,
    agent: str | None = None,
    tool: str | None = None,
    turn: str | None = None,
    assignee: str | None = None,
    role: str | None = None,
    risk: str | None = None,
    mine: bool | None = None,
    expiring_seconds: int | None = None,
    brief: bool | None = None,
    on_behalf_of: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Approval]]:
    """Returns approvals, newest first. A gateway can name one of its subjects.

    `mine` selects those on which the caller can decide, `assignee` those of a user, by name. With `brief`, the
    arguments and other long fields are omitted.
    """
    filters = {"status": status, "agent": agent, "tool": tool, "turn": turn, "assignee": assignee, "role": role}
    further_filters = {"kind": kind, "risk": risk, "mine": mine, "expiring": expiring_seconds, "brief": brief}
    page = {"on_behalf_of": on_behalf_of, "limit": limit, "cursor": cursor}
    return get(path("approvals"), parsed_as(Page[Approval]), {**filters, **further_filters, **page})


def preview(approval_id: str) -> Call[Approval]:
    """Runs the preview, a read-only check of what the call would change. Returns the approval with its result."""
    return Call("POST", path("approvals", approval_id, "preview"), parsed_as(Approval), wait_seconds=20.0)


def count_approvals(*, expiring_seconds: int | None = None) -> Call[Counts]:
    """Returns the numbers of pending approvals: all, those on which the caller can decide, those that expire soon, by
    kind."""
    return get(path("approvals", "counts"), parsed_as(Counts), {"expiring": expiring_seconds})


def list_decided(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[OwnDecision]]:
    """Returns the caller's own decisions, newest first, each with its outcome."""
    return get(path("approvals", "decided"), parsed_as(Page[OwnDecision]), {"limit": limit, "cursor": cursor})


def get_approval(approval_id: str) -> Call[Approval]:
    """Returns one approval with everything that a reviewer must see."""
    return get(path("approvals", approval_id), parsed_as(Approval))


def decide(
    approval_id: str,
    decision: Decision,
    digest: str,
    *,
    revision: int | None = None,
    args: Mapping[str, Any] | None = None,
    comment: str | None = None,
    reason_code: str | None = None,
    idempotency_key: str = "",
) -> Call[Approval]:
    """Decides and returns the approval after that; `digest` and `revision` are those that the reviewer saw.

    If more than one reviewer must approve, the approval may still be `pending`, with the votes so far.
    """
    body: dict[str, JsonValue] = {
        "decision": decision,
        "digest": digest,
        "revision": revision,
        "args": None if args is None else dict(args),
        "comment": comment or None,
        "reason_code": reason_code or None,
    }
    return post(path("approvals", approval_id, "decision"), parsed_as(Approval), body, key=idempotency_key)


def decide_many(items: Sequence[BatchItem], *, idempotency_key: str = "") -> Call[Page[ItemAnswer]]:
    """Decides on up to 100 approvals. Each decision is separate: its result does not affect the others.

    Only calls of low risk and of one tool can be approved together. Any calls can be rejected together.
    """
    decisions: list[JsonValue] = [
        {name: value if isinstance(value, int) else str(value) for name, value in item.items() if value}
        for item in items
    ]
    return post(path("approvals", "decisions"), parsed_as(Page[ItemAnswer]), {"items": decisions}, key=idempotency_key)


def withdraw(approval_id: str, *, comment: str | None = None, idempotency_key: str = "") -> Call[Approval]:
    """Withdraws the request, or an approval whose call has not begun."""
    return _post(approval_id, "withdraw", {"comment": comment or None}, idempotency_key)


def claim(approval_id: str, *, seconds: int | None = None, idempotency_key: str = "") -> Call[Approval]:
    """Claims the approval for a time (900 s by default), so that no other reviewer decides. A repeated claim
    restarts the time."""
    return _post(approval_id, "claim", {"seconds": seconds}, idempotency_key)


def release(approval_id: str, *, idempotency_key: str = "") -> Call[Approval]:
    """Releases a claim before it expires."""
    return _post(approval_id, "release", {}, idempotency_key)


def reissue(approval_id: str, *, idempotency_key: str = "") -> Call[Approval]:
    """Makes an outdated request again for the new version of its tool, with the same arguments. It keeps its id, has a
    new digest and no votes."""
    return _post(approval_id, "reissue", {}, idempotency_key)


def reassign(approval_id: str, to: str, *, comment: str | None = None, idempotency_key: str = "") -> Call[Approval]:
    """Assigns the approval to the user `to`, an allowed reviewer of it."""
    return _post(approval_id, "reassign", {"to": to, "comment": comment or None}, idempotency_key)


def escalate(approval_id: str, *, comment: str | None = None, idempotency_key: str = "") -> Call[Approval]:
    """Escalates the approval, once, to the role that its policy names."""
    return _post(approval_id, "escalate", {"comment": comment or None}, idempotency_key)


def ageing() -> Call[Page[Ageing]]:
    """Returns the pending approvals by role, assignee and agent, with their waiting times."""
    return get(path("approvals", "ageing"), parsed_as(Page[Ageing]))


def list_audit(approval_id: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[AuditEntry]]:
    """Returns the audit rows of one approval, oldest first."""
    return get(path("approvals", approval_id, "audit"), parsed_as(Page[AuditEntry]), {"limit": limit, "cursor": cursor})


def _post(approval_id: str, verb: str, body: Mapping[str, JsonValue], key: str) -> Call[Approval]:
    return post(path("approvals", approval_id, verb), parsed_as(Approval), body, key=key)


def list_delegations(*, all_users: bool = False, cursor: str | None = None) -> Call[Page[Delegation]]:
    """Returns the delegations that the caller gave. With `all_users`, admins get all."""
    return get(path("delegations"), parsed_as(Page[Delegation]), {"all": all_users or None, "cursor": cursor})


def add_delegation(to: str, until: datetime, *, idempotency_key: str = "") -> Call[Delegation]:
    """Lets the user `to` decide on the caller's behalf until `until`, at most 90 days. `until` must have a time zone.

    Raises: ValueError if `until` has no time zone.
    """
    if until.tzinfo is None:
        raise ValueError("`until` needs a time zone")
    body: dict[str, JsonValue] = {"to": to, "until": until.isoformat()}
    return post(path("delegations"), parsed_as(Delegation), body, key=idempotency_key)


def remove_delegation(delegation_id: str) -> Call[None]:
    """Ends one of the caller's delegations immediately; admins can end any."""
    return Call("DELETE", path("delegations", delegation_id), lambda _: None)
