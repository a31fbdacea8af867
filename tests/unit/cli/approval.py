"""An approval as the API tells it, with text in it that would command a terminal."""

from typing import Any

APPROVAL: dict[str, Any] = {
    "id": "a-1",
    "status": "pending",
    "tool": "refund",
    "effect": "keyed",
    "risk": "high",
    "agent": "refunds",
    "args": {"order": "1042", "reason": "\u202eevil\x1b[8m"},
    "schema": {
        "type": "object",
        "properties": {
            "order": {"type": "string", "minLength": 1, "description": "Its\nnumber."},
            "reason": {"type": "string"},
        },
        "required": ["order"],
        "additionalProperties": False,
    },
    "digest": "d" * 64,
    "requested_by": "requester",
    "expires_at": "2999-01-01T00:00:00Z",
    "allowed_decisions": ["approve", "edit", "reject", "respond"],
    "history": [{"what": "approval.opened", "at": "2026-11-21T10:00:00Z", "by": "requester", "data": {}}],
    "links": {"temporal": "http://127.0.0.1:1/namespaces/default/workflows/turn:t"},
}
OPEN: dict[str, Any] = {
    **APPROVAL,
    "reviewer_role": "reviewer",
    "reviewers": ["rita", "tom", "una"],
    "quorum": 2,
    "votes": [
        {"by": "una", "for": "tom", "decision": "approve", "at": "2026-11-21T10:05:00Z", "comment": "looks\nright\x1b"}
    ],
    "assignee": "rita",
    "claimed_by": "rita",
    "claimed_until": "2999-01-01T00:00:00Z",
    "fallback": {"reviewer": "una", "at": "2999-01-01T00:00:00Z"},
    "on_timeout": "escalate",
    "history": [{"what": "approval.voted", "at": "2026-11-21T10:05:00Z", "by": "una", "data": {"seat": "tom", "n": 1}}],
}
"""One that waits for a second vote."""
