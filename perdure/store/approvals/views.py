"""Approvals as reviewers see them: the exact call, its requester, its deadline, its reviewers and its history."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
from pydantic import JsonValue

from perdure.contracts.activities import ApprovalStatus
from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError
from perdure.core.agents.tool_versions import version_difference
from perdure.core.approvals.decisions import (
    DECIDING_ROLES,
    Decider,
    Decision,
    Vote,
    counted_votes,
    participation_refusal,
)
from perdure.core.approvals.relations import describe_relations
from perdure.core.approvals.validity import decisions_that_run
from perdure.core.calls.description import arguments_on_one_line, describe_call
from perdure.core.delivery import says_args
from perdure.core.identity import OWN_CREDENTIAL, Credential
from perdure.core.text import preview
from perdure.store.agents import RELATED_DECIDE, card_of_version, published_agent
from perdure.store.approvals.reissue import outdated_reasons, policy_difference
from perdure.store.approvals.requests import MAX_PROMPT_CHARACTERS, event_call_id
from perdure.store.approvals.review import (
    MAY_DECIDE,
    OPEN,
    PAST_LAST_DEADLINE,
    accounts_of,
    approval_record,
    find_outdated,
    revision_of,
    with_delegations,
    with_relations,
)
from perdure.store.database import Connection
from perdure.store.identity.origins import Accounts
from perdure.store.paging import WhereBuilder, cursor_after, read_cursor, read_number_cursor

STATUS_NOW = f"CASE WHEN a.status = 'pending' AND {PAST_LAST_DEADLINE} THEN 'expired' ELSE a.status END"
"""The current status as an SQL expression. A pending request past its last deadline is `expired`, even if the expiry
has not been stored yet."""
_EXPIRED = f"(a.status IN ('pending', 'expired') AND {STATUS_NOW} = 'expired')"
_OVER = frozenset(ApprovalStatus) - {ApprovalStatus.PENDING, ApprovalStatus.EXPIRED, ApprovalStatus.OUTDATED}
"""Statuses that are stored in the row and depend neither on the time nor on the published agent."""
_MAX_MESSAGES = 20
"""The maximum number of messages that an approval shows: the newest ones. `revision` counts all."""
MESSAGES_SINCE = f"""
(SELECT jsonb_agg(jsonb_build_object('at', m.created_at, 'text',
     CASE WHEN length(m.content) > {MAX_PROMPT_CHARACTERS} THEN left(m.content, {MAX_PROMPT_CHARACTERS - 1}) || '…'
       ELSE m.content END) ORDER BY j.place)
 FROM unnest(a.joined_messages[greatest(1, cardinality(a.joined_messages) - {_MAX_MESSAGES - 1}):])
   WITH ORDINALITY AS j(id, place) JOIN messages m ON m.id = j.id)
"""
"""The requester's messages since the request was opened, oldest first. The texts are read from the messages, so that an
erasure covers them."""
_APPROVAL_COLUMNS = f"""
a.*, {STATUS_NOW} AS status_now, clock_timestamp() AS now, r.name AS requester, d.name AS decider,
  'admin' = ANY(r.roles) AS requester_is_admin, t.asked_how, t.asked_by, {RELATED_DECIDE} AS related_decide,
  s.name AS assigned, c.name AS claimer,
  (SELECT jsonb_agg(jsonb_build_object('user', v.user_id, 'created_by', v.created_by,
     'signed_in', coalesce(v.record->'signed_in', '{{}}'), 'reviewer_id', v.seat_id, 'by', b.name, 'owner', o.name,
     'decision', v.decision, 'at', v.at, 'comment', coalesce(v.record->>'comment', ''),
     'named', a.reviewers = '{{}}' OR o.name = ANY(a.reviewers),
     'counts', o.disabled_at IS NULL AND v.role = ANY(o.roles) AND b.disabled_at IS NULL AND v.role = ANY(b.roles))
     ORDER BY v.id)
   FROM approval_votes v JOIN users b ON b.id = v.user_id JOIN users o ON o.id = v.seat_id
   WHERE v.approval_id = a.id AND v.voided_at IS NULL) AS votes,
  {MESSAGES_SINCE} AS messages_since
"""
_APPROVAL_FROM = """
FROM approvals a JOIN turns t ON t.id = a.turn_id JOIN users r ON r.id = a.requested_by
  LEFT JOIN users d ON d.id = a.decided_by LEFT JOIN users s ON s.id = a.assignee
  LEFT JOIN users c ON c.id = a.claimed_by
"""
MAX_HISTORY_ENTRIES = 200
"""The maximum number of history entries: the latest ones. The audit trail returns all of them, in pages."""
_SELECT_ONE = f"""
SELECT {_APPROVAL_COLUMNS}, (SELECT jsonb_agg(jsonb_build_object('what', h.kind, 'at', h.at, 'by', u.name,
  'data', coalesce(h.data, '{{}}')) ORDER BY h.id)
  FROM (SELECT * FROM audit_trail t WHERE t.subject = a.id::text ORDER BY t.id DESC LIMIT {MAX_HISTORY_ENTRIES}) h
    LEFT JOIN users u ON u.id = h.actor) AS history
{_APPROVAL_FROM} WHERE a.id = $1 AND ($2::uuid IS NULL OR a.requested_by = $2)
"""
CAN_DECIDE = (
    """((a.requested_by <> ALL({0}::uuid || {1}::uuid[]) OR a.allow_self_approval)
  AND a.reviewer_role = ANY(ARRAY(SELECT unnest(m.roles) FROM users m WHERE m.id = {0} AND m.disabled_at IS NULL
    AND """
    + MAY_DECIDE.format("m")
    + """))
  AND EXISTS (SELECT FROM users u WHERE u.disabled_at IS NULL AND a.reviewer_role = ANY(u.roles)
    AND (u.id <> a.requested_by OR a.allow_self_approval)
    AND (a.reviewers = '{{}}' OR u.name = ANY(a.reviewers) OR u.id = a.assignee)
    AND u.id = ANY(ARRAY(SELECT {0}::uuid UNION ALL SELECT g.user_id FROM delegations g
      WHERE g.to_user = {0} AND g.ended_at IS NULL AND g.until > now()))))
"""
)
"""An SQL condition: the user `{0}` can decide, as themselves or as a delegate. `{1}` is the list of the users who
created the credential. A request of one of these users is excluded unless its policy allows self-approval."""
# With a quorum of 1, a pending request has no votes. Only requests with a larger quorum need the subquery.
HAS_VOTED = """(a.quorum > 1 AND EXISTS (
  SELECT FROM approval_votes v WHERE v.approval_id = a.id AND v.user_id = {0} AND v.voided_at IS NULL))
"""
DECISIONS = ("approve", "edit", "reject", "respond")
_LONG_FIELDS = ("args", "schema", "pending_edit", "result", "decision")
"""The fields of a card that can be long."""
KINDS = ("agent", "tool", "risk", "role")
"""The properties that pending requests are grouped by."""
_MAX_NAMES = 100
"""The maximum number of values per property, most frequent first."""
_BUCKETS = (
    ("1h", "0", "1 hour"),
    ("1d", "1 hour", "1 day"),
    ("3d", "1 day", "3 days"),
    ("older", "3 days", "1000 years"),
)
_COUNTS = ", ".join(
    f"'{name}', count(*) FILTER (WHERE age >= interval '{least}' AND age < interval '{most}')"
    for name, least, most in _BUCKETS
)


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a list. None means no filter."""

    status: str | None = None
    kind: str | None = None
    agent: str | None = None
    tool: str | None = None
    risk: str | None = None
    turn_id: str | None = None
    role: str | None = None
    assignee: str | None = None
    """A user's name."""
    requested_by: str | None = None
    decidable_by: str | None = None
    """A user id: only requests that this user can decide on now."""
    signed_in_by: Credential = OWN_CREDENTIAL
    """The credential of that user."""
    expiring_within_seconds: int | None = None


async def list_approvals(
    tx: Connection,
    filters: Filters,
    limit: int,
    cursor: str | None,
    viewer: Decider | None = None,
    *,
    brief: bool = False,
) -> tuple[list[dict[str, object]], str | None]:
    """Returns a page of approvals, newest first, and the cursor of the next page. Each contains the decisions that
    `viewer` is allowed to make. `brief` omits all fields that can be long."""
    outdated = None
    if filters.status == ApprovalStatus.OUTDATED:
        outdated = await outdated_reasons(tx, read_cursor(cursor))
    rows = await tx.fetch(*_page(filters, limit, cursor, outdated))
    last = rows[limit - 1] if len(rows) > limit else None
    current_viewer = await with_delegations(tx, viewer) if viewer is not None and rows else None
    changed = outdated if outdated is not None else await _find_changed(tx, rows[:limit])
    accounts = await accounts_of(tx, rows, current_viewer) if current_viewer is not None else Accounts()
    shown = [_approval_view(row, current_viewer, changed, accounts) for row in rows[:limit]]
    if brief:
        shown = [brief_of(card) for card in shown]
    return shown, cursor_after(last["requested_at"], str(last["id"])) if last else None


def _page(
    filters: Filters, limit: int, cursor: str | None, outdated: Collection[str] | None
) -> tuple[str, *tuple[object, ...]]:
    """Returns the SQL of one page plus one row, and its parameters. `outdated` has the ids of the outdated requests if
    only these are listed."""
    where = WhereBuilder()
    is_for_decision = filters.decidable_by is not None or filters.expiring_within_seconds is not None
    if filters.status == "pending" or (is_for_decision and outdated is None):
        where.add_condition(OPEN)
    if filters.status == "expired":
        where.add_condition(_EXPIRED)
    elif outdated is not None:
        where.add_condition("a.id = ANY({0}::uuid[])", [*outdated])
    elif filters.status != "pending":
        where.add_state("a.status", filters.status, _OVER)
    where.add_state("a.kind", filters.kind, frozenset(RequestKind))
    where.add_condition("a.agent_id = {0}", filters.agent)
    where.add_condition("a.tool = {0}", filters.tool)
    where.add_condition("a.risk = {0}", filters.risk)
    where.add_condition("a.turn_id = {0}", filters.turn_id)
    where.add_condition("a.reviewer_role = {0}", filters.role)
    where.add_condition("s.name = {0}", filters.assignee)
    where.add_condition("a.requested_by = {0}", filters.requested_by)
    where.add_condition(f"{CAN_DECIDE} AND NOT {HAS_VOTED}", filters.decidable_by, filters.signed_in_by.created_by)
    where.add_condition("a.expires_at < now() + make_interval(secs => {0})", filters.expiring_within_seconds)
    where.add_condition("(a.requested_at, a.id) < ({0}, {1}::uuid)", *read_cursor(cursor))
    limit_parameter = where.parameter(limit + 1)
    return (
        f"SELECT {_APPROVAL_COLUMNS} {_APPROVAL_FROM} {where} ORDER BY a.requested_at DESC, a.id DESC "
        f"LIMIT {limit_parameter}",
        *where.given,
    )


async def get_approval(
    tx: Connection, approval_id: str, requester_id: str | None, viewer: Decider | None = None
) -> dict[str, object]:
    """Returns one approval with its history and the decisions that `viewer` is allowed to make. Without `viewer`, these
    are the decisions that any reviewer can make. With `requester_id`, only an approval that this user requested is
    found.

    Raises: CallerError 404 `approval_not_found`.
    """
    row = await tx.fetchrow(_SELECT_ONE, approval_id, requester_id)
    if row is None:
        raise CallerError("approval_not_found", "Approval not found", status=404)
    is_open = row["status_now"] == "pending"
    current_viewer = await with_delegations(tx, viewer) if viewer is not None and is_open else None
    outdated = await _find_changed(tx, [row])
    accounts = await accounts_of(tx, [row], current_viewer) if current_viewer is not None else Accounts()
    return _approval_view(row, current_viewer, outdated, accounts) | {
        "changes": await _version_changes(tx, row, is_outdated=bool(outdated)),
        "snapshot": row["snapshot"],
        "preview": _preview(row) if viewer is None or viewer.roles & DECIDING_ROLES else None,
        "history": row["history"] or [],
    }


async def _version_changes(tx: Connection, row: asyncpg.Record, *, is_outdated: bool) -> Mapping[str, JsonValue] | None:
    """Returns what the published version of the tool changes for an outdated request, or what the last reissue changed;
    None without either."""
    if is_outdated and row["tool"]:
        before = await card_of_version(tx, row)
        agent = await published_agent(tx, row["agent_id"])
        after = agent.card(row["tool"]) if agent is not None else None
        if agent is None or after is None:
            return {}
        return version_difference(before, after) | policy_difference(row, agent.definition.approvals, after.risk)
    entries = (entry for entry in reversed(row["history"] or []) if entry["what"] == "approval.reissued")
    reissued = next(entries, None)
    return reissued["data"].get("changes") if reissued is not None else None


async def _find_changed(tx: Connection, rows: Sequence[asyncpg.Record]) -> dict[str, str]:
    return await find_outdated(tx, [row for row in rows if row["status_now"] != "expired"])


def _approval_view(
    row: asyncpg.Record, viewer: Decider | None, changed: Mapping[str, str], accounts: Accounts
) -> dict[str, object]:
    why = changed.get(str(row["id"]))
    barred = decisions_that_run(row["kind"], row["tool"]) if why is not None else ()
    allowed, related = _allowed_decisions(row, viewer, accounts)
    shown = card_of(row, [each for each in allowed if each not in barred], why) | {"related": related}
    return shown if why is None else shown | {"status": ApprovalStatus.OUTDATED.value}


def _preview(row: asyncpg.Record) -> dict[str, object] | None:
    """Returns the preview of the target. `is_current` is False if it was made for other arguments than those that are
    decided on, or that ran."""
    stored = row["preview"]
    if not stored:
        return None if stored is None else {}
    digest = decided_call(row)["digest"]
    shown = {name: stored.get(name) for name in ("at", "before", "after", "fault")}
    return shown | {"is_current": stored.get("digest", digest) == digest}


def _allowed_decisions(
    row: asyncpg.Record, viewer: Decider | None, accounts: Accounts
) -> tuple[list[str], list[JsonValue]]:
    """Returns the allowed decisions, and the viewer's relations to the requester. An answer has no arguments to edit,
    and a limit is raised by a separate route."""
    if row["status_now"] != "pending":
        return [], []
    excluded: frozenset[Decision] = frozenset()
    shown: list[JsonValue] = []
    if viewer is not None:
        record, related = with_relations(approval_record(row, votes_of(row)), row, viewer, accounts)
        excluded, shown = record.excluded, describe_relations(related, accounts.names)
        if participation_refusal(record, viewer) is not None:
            return [], shown
    if row["kind"] == RequestKind.LIMIT:
        return ["reject"], shown
    return [each for each in DECISIONS if each not in excluded and (each != "edit" or row["tool"])], shown


def brief_of(card: dict[str, object]) -> dict[str, object]:
    """Returns a card without the arguments and the other fields that can be long, for long lists. Of the messages since
    it keeps the beginning of the newest."""
    since = card["messages_since"]
    newest = [{**each, "text": preview(each["text"])} for each in since[-1:]] if isinstance(since, list) else []
    return {name: value for name, value in card.items() if name not in _LONG_FIELDS} | {"messages_since": newest}


def card_of(row: asyncpg.Record, allowed: list[str], outdated: str | None) -> dict[str, object]:
    """Returns the approval with its allowed decisions. `args` and `digest` belong to the call that is currently decided
    on. `outdated` states what changed since the request was opened, so that its call would not run."""
    return _call(row) | _show_people(row) | {"outdated": outdated, "allowed_decisions": allowed}


def decided_call(row: asyncpg.Record) -> Mapping[str, Any] | asyncpg.Record:
    """Returns the record with the arguments and the digest of the call that is currently decided on, or that was
    approved."""
    decision: Mapping[str, Any] = row["decision"] or {}
    if "args" in decision:
        return decision
    revision: Mapping[str, Any] | None = row["revision"] if row["status_now"] == "pending" else None
    return revision or row


def _call(row: asyncpg.Record) -> dict[str, object]:
    # After the decision, `args` contains the requested arguments and `decision` contains the edited ones.
    revision = row["revision"] if row["status_now"] == "pending" else None
    return {
        "id": str(row["id"]),
        "status": row["status_now"],
        "agent": row["agent_id"],
        "kind": row["kind"],
        "tool": row["tool"],
        "tool_version": row["tool_version"],
        "policy_digest": row["policy_digest"] or "",
        "effect": row["effect"],
        "risk": row["risk"],
        "description": row["description"],
        "says": describe_call(row["describe"], decided_call(row)["args"]),
        "args_brief": arguments_on_one_line(decided_call(row)["args"]),
        "args": (revision or row)["args"],
        "schema": row["schema"],
        "digest": (revision or row)["digest"],
        "pending_edit": revision,
        "revision": revision_of(row),
        "messages_since": row["messages_since"] or [],
        "rule": row["rule"],
        "checkpoint": row["checkpoint"],
        "reason": row["reason"],
        "result": row["result"],
        "prompt_excerpt": row["prompt_excerpt"],
        "turn_id": str(row["turn_id"]),
        "conversation_id": str(row["conversation_id"]),
        "call_id": event_call_id(row["kind"], row["call_id"]),
        "version": row["version"],
    }


def _show_people(row: asyncpg.Record) -> dict[str, object]:
    claimed = row["claimed_until"] is not None and row["claimed_until"] > row["now"]
    return {
        "requested_by": row["requester"],
        "requested_at": row["requested_at"],
        "expires_at": row["expires_at"],
        "on_timeout": row["on_timeout"],
        "reviewer_role": row["reviewer_role"],
        "reviewers": row["reviewers"],
        "quorum": row["quorum"],
        "votes": _show_votes(row),
        "assignee": row["assigned"],
        "fallback": _show_fallback(row),
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
    """Returns the votes of the request, oldest first."""
    return [
        Vote(vote["user"], vote["reviewer_id"], vote["counts"], vote["named"], tuple(vote["created_by"]))
        for vote in row["votes"] or ()
    ]


def _show_votes(row: asyncpg.Record) -> list[dict[str, object]]:
    votes = votes_of(row)
    counted = counted_votes(votes)
    return [_vote(shown, counts=vote in counted) for shown, vote in zip(row["votes"] or (), votes, strict=True)]


def _vote(vote: dict[str, object], *, counts: bool) -> dict[str, object]:
    shown = {name: vote[name] for name in ("by", "decision", "at", "comment", "signed_in")}
    return shown | {"counts": counts, "for": vote["owner"] if vote["reviewer_id"] != vote["user"] else None}


def _show_fallback(row: asyncpg.Record) -> dict[str, object] | None:
    if not row["fallback_reviewer"]:
        return None
    return {"reviewer": row["fallback_reviewer"], "at": row["fallback_at"], "fell_back_at": row["fell_back_at"]}


# Whether a user can decide depends on a few columns that many requests share. It is evaluated once per group.
_GROUPED = """
WITH waiting AS (
  SELECT a.agent_id, a.tool, a.risk, a.reviewer_role, a.requested_by, a.allow_self_approval, a.reviewers, a.assignee,
    {voted} AS voted, count(*) AS waiting,
    count(*) FILTER (WHERE a.expires_at < now() + make_interval(secs => {soon})) AS expiring
  FROM approvals a {only} GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
)
SELECT a.agent_id AS agent, a.tool, a.risk, a.reviewer_role AS role, sum(a.waiting)::int AS waiting,
  sum(a.expiring)::int AS expiring, coalesce(sum(a.waiting) FILTER (WHERE NOT a.voted AND {open_to}), 0)::int AS mine
FROM waiting a GROUP BY 1, 2, 3, 4
"""


async def count_requests(
    tx: Connection, requester_id: str | None, decider: Decider, expiring_seconds: int
) -> dict[str, object]:
    """Counts the pending requests, those that `decider` can decide on, and those that expire within `expiring_seconds`.
    With `requester_id`, only that user's requests are counted."""
    where = WhereBuilder(OPEN)
    where.add_condition("a.requested_by = {0}", requester_id)
    user, creators = where.parameter(decider.user_id), where.parameter(decider.credential.created_by)
    open_to = CAN_DECIDE.format(user, creators)
    soon = where.parameter(float(expiring_seconds))
    grouped = _GROUPED.format(voted=HAS_VOTED.format(user), soon=soon, only=where, open_to=open_to)
    rows = await tx.fetch(grouped, *where.given)
    sums: Counter[str] = Counter()
    by: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for row in rows:
        for name in ("waiting", "mine", "expiring"):
            sums[name] += row[name]
        for kind in KINDS:
            by[kind][row[kind]] += row["waiting"]
    shown = {kind: dict(found.most_common(_MAX_NAMES)) for kind, found in by.items()}
    return {**{name: sums[name] for name in ("waiting", "mine", "expiring")}, "by": shown}


_LAST_APPROVED = """
SELECT p.id, coalesce(p.decision->'args', p.args) AS args, p.decided_at, u.name AS by, p.agent_id, r.name AS requester
FROM approvals a JOIN approvals p ON p.tool = a.tool
  LEFT JOIN users u ON u.id = p.decided_by JOIN users r ON r.id = p.requested_by
WHERE a.id = $1 AND a.tool <> '' AND p.id <> a.id AND p.kind = 'approval'
  AND p.decided_at < coalesce(a.decided_at, now())
  AND p.status IN ('approved', 'edited', 'reserved', 'done', 'failed', 'outcome_unknown')
ORDER BY p.decided_at DESC LIMIT 1
"""


async def last_approved(tx: Connection, approval_id: str) -> dict[str, object] | None:
    """Returns the arguments of the tool's last approved call, its reviewer and its time, for comparison. Returns None
    if there is none."""
    row = await tx.fetchrow(_LAST_APPROVED, approval_id)
    if row is None:
        return None
    return {
        "id": str(row["id"]),
        "args": row["args"],
        "approved_at": row["decided_at"],
        "approved_by": row["by"],
        "agent": row["agent_id"],
        "requested_by": row["requester"],
    }


_AGEING = f"""
WITH waiting AS (
  SELECT a.reviewer_role, s.name AS assignee, a.agent_id, a.fallback_reviewer, a.fallback_at, a.fell_back_at,
    a.requested_at, a.expires_at, greatest(now() - a.requested_at, interval '0') AS age
  FROM approvals a LEFT JOIN users s ON s.id = a.assignee
  WHERE {OPEN} AND ($1::uuid IS NULL OR a.requested_by = $1)
)
SELECT reviewer_role AS role, assignee, agent_id AS agent, count(*) AS waiting, min(requested_at) AS oldest_at,
  min(expires_at) AS next_expiry_at, fallback_reviewer, jsonb_build_object({_COUNTS}) AS buckets,
  min(fallback_at) FILTER (WHERE fell_back_at IS NULL) AS fallback_at
FROM waiting GROUP BY reviewer_role, assignee, agent_id, fallback_reviewer
ORDER BY min(requested_at), agent_id LIMIT 500
"""


async def list_oldest(tx: Connection, requester_id: str | None) -> list[dict[str, object]]:
    """Returns groups of pending requests, oldest first, at most 500. With `requester_id`, only that user's requests are
    counted."""
    return [
        {
            **{name: row[name] for name in ("role", "assignee", "agent", "waiting", "oldest_at", "next_expiry_at")},
            "fallback": {"reviewer": row["fallback_reviewer"], "at": row["fallback_at"]}
            if row["fallback_reviewer"]
            else None,
            "buckets": row["buckets"],
        }
        for row in await tx.fetch(_AGEING, requester_id)
    ]


_DECISION_COLUMNS = f"""
v.id AS vote_id, v.decision, v.at, v.voided_at, v.record, v.seat_id <> v.user_id AS stood_in, o.name AS reviewer,
  a.id, a.kind, a.checkpoint, a.tool, a.agent_id, a.risk, a.describe, coalesce(a.decision->'args', a.args) AS args,
  {STATUS_NOW} AS status_now, a.ready_at, a.quorum, a.turn_id, a.conversation_id, a.withdrawal, t.status AS turn_status,
  k.state AS call_state, k.outcome, r.name AS requester
"""
_DECISION_FROM = """
FROM approval_votes v JOIN approvals a ON a.id = v.approval_id JOIN turns t ON t.id = a.turn_id
  JOIN users r ON r.id = a.requested_by JOIN users o ON o.id = v.seat_id
  LEFT JOIN tool_calls k ON k.turn_id = a.turn_id AND k.call_id = a.call_id
"""


async def own_decisions(
    tx: Connection, user_id: str, limit: int, cursor: str | None
) -> tuple[list[dict[str, object]], str | None]:
    """Returns a page of the user's decisions with their outcomes, newest first, and the cursor of the next page."""
    where = WhereBuilder()
    where.add_condition("v.user_id = {0}", user_id)
    where.add_condition("(v.at, v.id) < ({0}, {1})", *read_number_cursor(cursor))
    limit_parameter = where.parameter(limit + 1)
    rows = await tx.fetch(
        f"SELECT {_DECISION_COLUMNS} {_DECISION_FROM} {where} ORDER BY v.at DESC, v.id DESC LIMIT {limit_parameter}",
        *where.given,
    )
    last = rows[limit - 1] if len(rows) > limit else None
    return [_decision_view(row) for row in rows[:limit]], cursor_after(
        last["at"], str(last["vote_id"])
    ) if last else None


def _decision_view(row: asyncpg.Record) -> dict[str, object]:
    outcome = row["outcome"] or {}
    message = outcome.get("message") or {}
    return {
        "id": str(row["id"]),
        "decision": row["decision"],
        "at": row["at"],
        "comment": row["record"].get("comment") or row["record"].get("reason_code") or "",
        "for": row["reviewer"] if row["stood_in"] else None,
        "voided_at": row["voided_at"],
        "kind": row["kind"],
        "checkpoint": row["checkpoint"],
        "tool": row["tool"],
        "says": describe_call(row["describe"], row["args"]),
        "args_brief": arguments_on_one_line(row["args"]),
        "agent": row["agent_id"],
        "risk": row["risk"],
        "requested_by": row["requester"],
        "status": row["status_now"],
        "ready_at": row["ready_at"],
        "withdrawal": row["withdrawal"],
        "call_state": row["call_state"],
        "call_result": message.get("text") or "",
        "turn_id": str(row["turn_id"]),
        "conversation_id": str(row["conversation_id"]),
        "turn_status": row["turn_status"],
    }


_NOTICE = f"""
SELECT a.id, a.kind, a.tool, a.agent_id, a.risk, a.digest, a.args, a.revision, a.reviewer_role, a.requested_at,
  a.expires_at, a.decided_at, a.version, a.joined_messages, {MESSAGES_SINCE} AS messages_since,
  {STATUS_NOW} AS status_now, a.decision->>'type' AS decision,
  r.name AS requester, d.name AS decider, s.name AS assigned
FROM approvals a JOIN users r ON r.id = a.requested_by LEFT JOIN users d ON d.id = a.decided_by
  LEFT JOIN users s ON s.id = a.assignee
WHERE a.id = $1
"""


async def approval_delivery(tx: Connection, approval_id: str, *, with_args: bool) -> dict[str, JsonValue] | None:
    """Returns the approval in its current state, or None if there is none. It contains the arguments if the webhook
    wants them and the risk allows it."""
    row = await tx.fetchrow(_NOTICE, approval_id)
    if row is None:
        return None
    delivery: dict[str, JsonValue] = {
        "id": str(row["id"]),
        "status": row["status_now"],
        "version": row["version"],
        "revision": revision_of(row),
        "kind": row["kind"],
        "tool": row["tool"],
        "agent": row["agent_id"],
        "risk": row["risk"],
        "requested_by": row["requester"],
        "requested_at": row["requested_at"].isoformat(),
        "expires_at": row["expires_at"].isoformat(),
        "reviewer_role": row["reviewer_role"],
        "assignee": row["assigned"],
        "decision": row["decision"],
        "decided_by": row["decider"],
        "decided_at": row["decided_at"].isoformat() if row["decided_at"] else None,
    }
    if says_args(row["risk"], with_args=with_args):
        decided = row["revision"] if row["revision"] and row["status_now"] == "pending" else row
        delivery |= {"args": decided["args"], "digest": decided["digest"]}
        delivery["messages_since"] = row["messages_since"] or []
    return delivery
