"""One approval's row as the API answers it."""

from collections.abc import Mapping
from typing import Any

import asyncpg

from policy.describing import at_a_glance, described
from policy.quorum import counted
from policy.votes import Vote
from store.checkpoints import call_told_of

ALLOWED = ("approve", "edit", "reject", "respond")


_BODIES = ("args", "schema", "revision", "result", "decision")
"""What makes a card long."""


def brief_of(card: dict[str, object]) -> dict[str, object]:
    """A card for a list of many: without the arguments and all else that may be long."""
    return {name: value for name, value in card.items() if name not in _BODIES}


def card_of(row: asyncpg.Record, allowed: list[str], outdated: str | None) -> dict[str, object]:
    """The approval, with what may be decided. `args` and `digest` are those of the call that is decided on now;
    `outdated` says what has changed since it was opened, so that its call would not run."""
    return _call(row) | _people(row) | {"outdated": outdated, "allowed_decisions": allowed}


def frozen_of(row: asyncpg.Record) -> Mapping[str, Any] | asyncpg.Record:
    """What holds the arguments and the digest of the call that is decided on now, or that was let run."""
    decision: Mapping[str, Any] = row["decision"] or {}
    if "args" in decision:
        return decision
    revision: Mapping[str, Any] | None = row["revision"] if row["status_now"] == "pending" else None
    return revision or row


def _call(row: asyncpg.Record) -> dict[str, object]:
    # Once it is decided, what was asked for stays in `args`, and what was made of it is in `decision`.
    revision = row["revision"] if row["status_now"] == "pending" else None
    return {
        "id": str(row["id"]),
        "status": row["status_now"],
        "agent": row["agent_id"],
        "kind": row["kind"],
        "tool": row["tool"],
        "effect": row["effect"],
        "risk": row["risk"],
        "description": row["description"],
        "says": described(row["describe"], frozen_of(row)["args"]),
        "args_brief": at_a_glance(frozen_of(row)["args"]),
        "args": (revision or row)["args"],
        "schema": row["schema"],
        "digest": (revision or row)["digest"],
        "revision": revision,
        "rule": row["rule"],
        "checkpoint": row["checkpoint"],
        "reason": row["reason"],
        "result": row["result"],
        "prompt_excerpt": row["prompt_excerpt"],
        "turn_id": str(row["turn_id"]),
        "conversation_id": str(row["conversation_id"]),
        "call_id": call_told_of(row["kind"], row["call_id"]),
        "version": row["version"],
    }


def _people(row: asyncpg.Record) -> dict[str, object]:
    claimed = row["claimed_until"] is not None and row["claimed_until"] > row["now"]
    return {
        "requested_by": row["requester"],
        "requested_at": row["requested_at"],
        "expires_at": row["expires_at"],
        "on_timeout": row["on_timeout"],
        "reviewer_role": row["reviewer_role"],
        "reviewers": row["reviewers"],
        "quorum": row["quorum"],
        "votes": _votes(row),
        "assignee": row["assigned"],
        "fallback": _fallback(row),
        "claimed_by": row["claimer"] if claimed else None,
        "claimed_until": row["claimed_until"] if claimed else None,
        "escalated_at": row["escalated_at"],
        "reject_reasons": row["reject_reasons"],
        "decision": row["decision"],
        "decided_by": row["decider"],
        "decided_at": row["decided_at"],
        "ready_at": row["ready_at"],
        "withdrawal": row["withdrawal"],
    }


def votes_of(row: asyncpg.Record) -> list[Vote]:
    """The decisions that were taken on it so far, in their order."""
    return [
        Vote(vote["user"], vote["seat"], vote["counts"], vote["named"], tuple(vote["created_by"]))
        for vote in row["votes"] or ()
    ]


def _votes(row: asyncpg.Record) -> list[dict[str, object]]:
    votes = votes_of(row)
    standing = counted(votes)
    return [_vote(shown, counts=vote in standing) for shown, vote in zip(row["votes"] or (), votes, strict=True)]


def _vote(vote: dict[str, object], *, counts: bool) -> dict[str, object]:
    shown = {name: vote[name] for name in ("by", "decision", "at", "comment", "signed_in")}
    return shown | {"counts": counts, "for": vote["owner"] if vote["seat"] != vote["user"] else None}


def _fallback(row: asyncpg.Record) -> dict[str, object] | None:
    if not row["fallback_reviewer"]:
        return None
    return {"reviewer": row["fallback_reviewer"], "at": row["fallback_at"], "fell_back_at": row["fell_back_at"]}
