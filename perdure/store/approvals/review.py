"""The review of an approval by a user: its row and its turn's row are locked, and the user's roles and delegations are
read.

The turn's row is locked before the approval's row, as everywhere, so that writers cannot deadlock.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

import asyncpg
from pydantic import JsonValue

from perdure.contracts.approvals import ApprovalPolicy, RequestKind
from perdure.contracts.errors import CallerError
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.decisions import (
    ApprovalRecord,
    Decider,
    Decision,
    ReviewClaim,
    Reviewer,
    Vote,
    decision_refusal,
    represented_reviewer,
)
from perdure.core.approvals.relations import (
    Party,
    Related,
    describe_relations,
    excluded_decisions,
    related_refusal,
    relations_of,
)
from perdure.core.approvals.validity import InForce, has_call_ahead, outdated_reason
from perdure.core.identity import UNKNOWN_CREATOR, Credential, sign_in_method
from perdure.store import audit
from perdure.store.agents import RELATED_DECIDE
from perdure.store.database import Connection
from perdure.store.identity.origins import Accounts, read_accounts

MAY_DECIDE = "({0}.gateway_id IS NULL AND NOT 'gateway' = ANY({0}.roles))"
"""The condition for a user who can have roles that decide: a gateway and its subjects decide nothing, whatever other
roles they have."""
_DELEGATIONS = """
(SELECT jsonb_agg(jsonb_build_object('id', u.id, 'name', u.name, 'roles',
   CASE WHEN {may_decide} THEN u.roles ELSE '{{}}' END, 'lent_by',
   -- Lent by several delegations it is lent by the one that most people could not have made.
   (SELECT d.created_by FROM delegations d WHERE d.user_id = u.id AND d.to_user = {user}::uuid AND d.ended_at IS NULL
     AND d.until > clock_timestamp() ORDER BY cardinality(d.created_by) LIMIT 1)) ORDER BY u.name)
 FROM users u WHERE u.disabled_at IS NULL AND u.id = ANY(ARRAY(SELECT {user}::uuid UNION ALL
   SELECT d.user_id FROM delegations d
   WHERE d.to_user = {user}::uuid AND d.ended_at IS NULL AND d.until > clock_timestamp())))
"""


def _delegations(user: str) -> str:
    """Returns a subselect of a user, given as a parameter, and of those on whose behalf they decide."""
    return _DELEGATIONS.format(user=user, may_decide=MAY_DECIDE.format("u"))


_LOCK = f"""
WITH held AS MATERIALIZED (
  SELECT a.*, t.stop_requested_at, t.asked_how, t.asked_by, {RELATED_DECIDE} AS related_decide
  FROM turns t JOIN approvals a ON a.turn_id = t.id
  WHERE a.id = $1 FOR UPDATE OF t, a
)
SELECT h.*, clock_timestamp() AS now, (SELECT name FROM users WHERE id = h.claimed_by) AS claimer,
  (SELECT 'admin' = ANY(roles) FROM users WHERE id = h.requested_by) AS requester_is_admin,
  -- One decision of a person at a time, so that those of the last minute can be counted: taken after the row locks.
  CASE WHEN $3 AND h.status = 'pending' THEN pg_advisory_xact_lock(hashtextextended($2::uuid::text, 0)) END AS alone,
  {_delegations("$2")} AS delegations
FROM held h
"""
_VOTES = """
SELECT v.user_id, v.seat_id, v.created_by, u.name, u.disabled_at IS NULL AND v.role = ANY(u.roles)
  AND b.disabled_at IS NULL AND v.role = ANY(b.roles) AS counts
FROM approval_votes v JOIN users u ON u.id = v.seat_id JOIN users b ON b.id = v.user_id
WHERE v.approval_id = $1 AND v.voided_at IS NULL
"""
PAST_LAST_DEADLINE = "a.expires_at <= now() AND (a.on_timeout = 'deny' OR a.escalated_at IS NOT NULL)"
OPEN = f"(a.status = 'pending' AND NOT ({PAST_LAST_DEADLINE}))"
"""An SQL condition: the request is not decided and can still be. It has a form that an index supports. The index finds
the few pending requests among all decided ones."""
MAX_ROWS_PER_TRANSACTION = 50
"""Rows per transaction of the reconciler. Each row writes an audit row, and the tenant's audit chain is locked from the
first one to the commit. 500 rows blocked all decisions of the tenant for half a second (measured)."""


@dataclass(frozen=True, slots=True)
class Review:
    """The current state of an approval and its reviewer."""

    row: asyncpg.Record
    """The approval, with its turn's `stop_requested_at`."""
    record: ApprovalRecord
    decider: Decider
    """The user with their current roles."""
    signed_in: dict[str, JsonValue]
    """The user's credential, for the record of their decision."""
    kinship: dict[str, JsonValue]
    """The origin of the user's account, and its relations to the requester, for the same record."""

    @property
    def approval_id(self) -> str:
        """The approval's id."""
        return str(self.row["id"])

    @property
    def address(self) -> TurnAddress:
        """The paused turn."""
        return TurnAddress(
            tenant_id=self.row["tenant_id"],
            conversation_id=str(self.row["conversation_id"]),
            turn_id=str(self.row["turn_id"]),
        )

    @property
    def reviewer(self) -> Reviewer:
        """The user on whose behalf this user decides, if the decision is allowed: themselves, or the user who delegated
        to them."""
        return represented_reviewer(self.record, self.decider)

    @property
    def vote(self) -> Vote:
        """The vote that this user's decision counts as."""
        reviewer = self.reviewer
        return Vote(self.decider.user_id, reviewer.user_id, True, self.record.panel.names(reviewer.name))

    def refuse(
        self,
        decision: Decision,
        digest: str,
        *,
        revision: int | None = None,
        reasoned: bool,
        args_given: bool,
        text: bool,
        unfit: CallerError | None = None,
    ) -> None:
        """Checks a decision.

        Raises: CallerError, the first reason in the contract's order.
        """
        given = {"reasoned": reasoned, "args_given": args_given, "text": text}
        current = decision_refusal(self.record, self.decider, decision, digest, revision, **given, unfit=unfit)
        if current is not None:
            raise current

    def refuse_stopped(self) -> None:
        """Checks that the turn was not stopped.

        Raises: CallerError 409 `turn_stopped`.
        """
        stopped_at: datetime | None = self.row["stop_requested_at"]
        if stopped_at is not None:
            stopped: dict[str, object] = {"turn_id": str(self.row["turn_id"]), "stopped_at": stopped_at}
            raise CallerError("turn_stopped", "The turn was stopped, so its calls will not run", stopped, status=409)


async def lock_for_review(
    tx: Connection, approval_id: str, decider: Decider, *, one_at_a_time: bool = False, checked_on_write: bool = False
) -> Review:
    """Locks the approval and its turn for this user. A request past its deadline is escalated first, if its policy
    requires it.

    `one_at_a_time` makes the user's other decisions wait until the commit. `checked_on_write` means that the statement
    that records the decision checks role and delegation itself. Otherwise both are read again after the locks are
    acquired.

    Raises: CallerError 404 `approval_not_found`, even if the approval exists but this user is not allowed to see it.
    """
    row = await tx.fetchrow(_LOCK, approval_id, decider.user_id, one_at_a_time)
    if row is None or not decider.sees(str(row["requested_by"])):
        raise CallerError("approval_not_found", "Approval not found", status=404)
    overdue = row["status"] == "pending" and row["expires_at"] <= row["now"]
    if overdue and await escalate_overdue(tx, approval_id):
        row = await tx.fetchrow(_LOCK, approval_id, decider.user_id, one_at_a_time) or row
    # With a quorum of 1 there are no votes to count.
    votes = await tx.fetch(_VOTES, approval_id) if row["quorum"] > 1 else []
    record = approval_record(row, [_vote(vote, row["reviewers"]) for vote in votes])
    current = (
        _with_delegations(decider, row["delegations"]) if checked_on_write else await with_delegations(tx, decider)
    )
    accounts = await read_accounts(tx, _people_of(row, current))
    record, related = with_relations(record, row, current, accounts)
    account = accounts.describe(decider.user_id)
    kinship: dict[str, JsonValue] = {"account": account} if account else {}
    if related:
        kinship["related"] = describe_relations(related, accounts.names)
    return Review(row, record, current, await signed_in(tx, decider.credential), kinship)


def _people_of(row: asyncpg.Record, decider: Decider) -> list[str]:
    lenders = [user for each in decider.in_place_of for user in (each.user_id, *each.created_with.created_by)]
    asked_by = map(str, (row["requested_by"], *row["asked_by"]))
    return [*asked_by, decider.user_id, *decider.credential.created_by, *lenders]


async def accounts_of(tx: Connection, rows: Iterable[asyncpg.Record], decider: Decider) -> Accounts:
    """Returns the origins of the users behind these requests and this decider."""
    return await read_accounts(tx, {user for row in rows for user in _people_of(row, decider)})


def with_relations(
    record: ApprovalRecord, row: asyncpg.Record, decider: Decider, accounts: Accounts
) -> tuple[ApprovalRecord, tuple[Related, ...]]:
    """Returns the record with the decisions that this decider's relations to the requester exclude, and the relations.

    A delegate has also the relations of the user on whose behalf they decide. A policy that allows self-approval
    excludes nothing.
    """
    try:
        seat = represented_reviewer(record, decider)
    except CallerError:  # They cannot decide at all.
        return record, ()
    if record.allow_self_approval:
        return record, ()
    asked_by, how = tuple(map(str, row["asked_by"])), sign_in_method(row["asked_how"])
    requester = Party(record.requested_by, asked_by, how, accounts.origins)
    credential = decider.credential
    sides = [Party(decider.user_id, credential.created_by, credential.how, accounts.origins)]
    if seat.user_id != decider.user_id:
        sides.append(Party(seat.user_id, seat.created_with.created_by, origins=accounts.origins))
    related = tuple(dict.fromkeys(each for side in sides for each in relations_of(requester, side)))
    excluded = excluded_decisions(related, row["kind"], row["tool"], row["risk"], is_allowed=row["related_decide"])
    exclusion = related_refusal(related, accounts.names) if excluded else None
    return replace(record, excluded=excluded, exclusion=exclusion), related


async def signed_in(tx: Connection, credential: Credential) -> dict[str, JsonValue]:
    """Returns how a user signed in, with the name of the user who created the credential or invited its owner. It
    includes the users through whose credentials that happened. The keys are those under which an erasure finds names
    (`NAME_KEYS` in perdure/store/identity/erasure.py)."""
    sign_in: dict[str, JsonValue] = {"how": credential.how.value}
    made = {"created_by": credential.created_by, "invited_by": credential.invited_by}
    if not any(made.values()):
        return sign_in
    ids = [each for group in made.values() for each in group]
    rows = await tx.fetch("SELECT id, name FROM users WHERE id = ANY($1::uuid[])", ids)
    names = {str(row["id"]): str(row["name"]) for row in rows} | {UNKNOWN_CREATOR: "unknown"}
    for what, group in made.items():
        first, *through = [names[each] for each in group if each in names] or [""]
        if first:
            sign_in[what] = first
        if through:
            sign_in[f"{what}_through"] = [{"by": name} for name in through]
    return sign_in


def _vote(vote: asyncpg.Record, reviewers: Sequence[str]) -> Vote:
    named = not reviewers or vote["name"] in reviewers
    return Vote(str(vote["user_id"]), str(vote["seat_id"]), vote["counts"], named, tuple(map(str, vote["created_by"])))


async def with_delegations(tx: Connection, decider: Decider) -> Decider:
    """Returns this user with their current roles and delegations."""
    return _with_delegations(decider, await tx.fetchval(f"SELECT {_delegations('$1')}", decider.user_id))


def _with_delegations(decider: Decider, delegations: list[dict[str, Any]] | None) -> Decider:
    current = [
        Reviewer(
            each["id"],
            each["name"],
            frozenset(each["roles"]),
            Credential(created_by=tuple(each["lent_by"] or ())),
        )
        for each in delegations or ()
    ]
    own = next((each for each in current if each.user_id == decider.user_id), None)
    return replace(
        decider,
        roles=own.roles if own else frozenset(),
        name=own.name if own else decider.name,
        in_place_of=tuple(each for each in current if each is not own),
    )


def approval_record(row: asyncpg.Record, votes: Sequence[Vote]) -> ApprovalRecord:
    """Returns an approval's record from its row. The row must also contain `now`, `requester_is_admin`, and `claimer`,
    the claimer's name."""
    claimed = None
    if row["claimed_by"] is not None:
        since = row["claimed_since"] or row["now"]
        claimed = ReviewClaim(str(row["claimed_by"]), row["claimer"] or "", row["claimed_until"], since)
    return ApprovalRecord(
        row["status"],
        (row["revision"] or row)["digest"],
        row["expires_at"],
        row["now"],
        str(row["requested_by"]),
        row["reviewer_role"],
        row["allow_self_approval"],
        row["decision"] or {},
        editable=row["kind"] == RequestKind.APPROVAL or bool(row["tool"]),
        reviewers=tuple(row["reviewers"]),
        assignee=str(row["assignee"] or ""),
        votes=tuple(votes),
        claim=claimed,
        requester_is_admin=bool(row["requester_is_admin"]),
        quorum=row["quorum"],
        revision=revision_of(row),
    )


def revision_of(row: asyncpg.Record) -> int:
    """Returns the revision of an approval: 1, and one more for each message that joined while it waited."""
    return len(row["joined_messages"]) + 1


ESCALATED = """
  reviewer_role = escalation_role, reviewers = '{}', assignee = NULL, claimed_by = NULL, claimed_until = NULL,
  escalated_at = clock_timestamp(), version = version + 1
"""
"""The columns that an escalation sets, by a user or at the deadline."""

# The ids are passed as an array, because a planner without statistics joins them by reading the whole table (measured).
# Statements that check many rows use `now()`, because no index supports `clock_timestamp()`.
_OVERDUE = f"""
, up AS (
  UPDATE approvals SET {ESCALATED}, expires_at = clock_timestamp() + make_interval(secs => expires_seconds)
  WHERE id = ANY(ARRAY(SELECT id FROM due)) RETURNING id, turn_id, reviewer_role, expires_at
)
SELECT up.*, due.role_before FROM up JOIN due USING (id)
"""
_ONE = f"""
WITH due AS (SELECT id, reviewer_role AS role_before FROM approvals WHERE id = $1 AND status = 'pending'
  AND on_timeout = 'escalate' AND escalated_at IS NULL AND expires_at <= clock_timestamp())
{_OVERDUE}
"""
_OF_TURN = f"""
WITH due AS (SELECT id, reviewer_role AS role_before FROM approvals WHERE turn_id = $1 AND status = 'pending'
  AND on_timeout = 'escalate' AND escalated_at IS NULL AND expires_at <= clock_timestamp())
{_OVERDUE}
"""
_ALL = f"""
WITH due AS (SELECT a.id, a.reviewer_role AS role_before FROM turns t JOIN approvals a ON a.turn_id = t.id
  WHERE a.status = 'pending' AND a.on_timeout = 'escalate' AND a.escalated_at IS NULL
    AND a.expires_at <= now() AND t.ended_at IS NULL
  ORDER BY a.expires_at LIMIT {MAX_ROWS_PER_TRANSACTION} FOR UPDATE OF t, a SKIP LOCKED)
{_OVERDUE}
"""
_FALL_BACK = f"""
WITH due AS (
  SELECT a.id FROM turns t JOIN approvals a ON a.turn_id = t.id
  WHERE a.status = 'pending' AND a.fallback_at <= now() AND a.fell_back_at IS NULL
    AND a.expires_at > clock_timestamp() AND (a.claimed_until IS NULL OR a.claimed_until <= clock_timestamp())
    AND t.ended_at IS NULL
  ORDER BY a.fallback_at LIMIT {MAX_ROWS_PER_TRANSACTION} FOR UPDATE OF t, a SKIP LOCKED
), given AS (
  UPDATE approvals a SET assignee = u.id, claimed_by = NULL, claimed_until = NULL, fell_back_at = clock_timestamp(),
    version = version + 1
  FROM users u WHERE a.id = ANY(ARRAY(SELECT id FROM due)) AND u.name = a.fallback_reviewer AND u.disabled_at IS NULL
    AND a.reviewer_role = ANY(u.roles) AND (u.id <> a.requested_by OR a.allow_self_approval)
  RETURNING a.id, a.turn_id, a.fallback_reviewer, a.reviewer_role, true AS given, false AS escalated
), others AS (
  UPDATE approvals a SET fell_back_at = now(),
    reviewer_role = CASE WHEN a.escalated_at IS NULL THEN a.escalation_role ELSE a.reviewer_role END,
    reviewers = CASE WHEN a.escalated_at IS NULL THEN '{{}}' ELSE a.reviewers END,
    assignee = CASE WHEN a.escalated_at IS NULL THEN NULL ELSE a.assignee END,
    claimed_by = NULL, claimed_until = NULL, escalated_at = coalesce(a.escalated_at, now()),
    version = version + 1
  WHERE a.id = ANY(ARRAY(SELECT id FROM due EXCEPT SELECT id FROM given))
  RETURNING a.id, a.turn_id, a.fallback_reviewer, a.reviewer_role, false, a.escalated_at = a.fell_back_at
)
SELECT * FROM given UNION ALL SELECT * FROM others
"""


async def escalate_overdue(tx: Connection, approval_id: str) -> bool:
    """Escalates a request past its first deadline if its policy requires it. Returns whether it did. The first reader
    does this: the turn, a user who reviews, or the reconciler. It wakes no turn. `tx` must hold its lock."""
    return bool(await _escalate(tx, _ONE, approval_id))


async def escalate_overdue_of(tx: Connection, turn_id: str) -> int:
    """Escalates all requests of a turn that are past their first deadline, and returns their number. `tx` must hold the
    turn's lock."""
    return await _escalate(tx, _OF_TURN, turn_id)


async def escalate_all_overdue(tx: Connection) -> int:
    """Escalates overdue requests of the tenant for the reconciler, and returns their number. Rows that are locked are
    left for the next pass."""
    return await _escalate(tx, _ALL)


async def fall_back(tx: Connection) -> int:
    """Assigns requests that are undecided and unclaimed for too long to their policy's fallback reviewer. Returns the
    number of changed requests.

    A request is escalated if that reviewer cannot decide on it. The reconciler runs this; locked rows are left for the
    next pass.
    """
    rows = await tx.fetch(_FALL_BACK)
    for row in rows:
        data: dict[str, JsonValue] = {"fallback": row["fallback_reviewer"], "role": row["reviewer_role"]}
        kind = "approval.escalated" if row["escalated"] else "approval.fell_back"
        why = {} if row["given"] else {"because": "the fallback reviewer is not allowed to decide on it"}
        turn_id = str(row["turn_id"])
        await audit.record(tx, kind, str(row["id"]), {**data, **why}, actor=None, turn_id=turn_id)
    return len(rows)


async def _escalate(tx: Connection, statement: str, *given: str) -> int:
    rows = await tx.fetch(statement, *given)
    for row in rows:
        data: dict[str, JsonValue] = {
            "from": row["role_before"],
            "to": row["reviewer_role"],
            "because": "no decision was made in time",
            "expires_at": row["expires_at"].isoformat(),
        }
        turn_id = str(row["turn_id"])
        await audit.record(tx, "approval.escalated", str(row["id"]), data, actor=None, turn_id=turn_id)
    return len(rows)


_PUBLISHED = """
SELECT g.agent_id, v.body->'definition'->'approvals' AS policy,
  (SELECT jsonb_object_agg(c->>'name', jsonb_build_array(c->>'version', coalesce(c->>'version_1', c->>'version')))
   FROM jsonb_array_elements(v.body->'cards') c) AS tools
FROM agents g JOIN agent_versions v USING (tenant_id, agent_id, version) WHERE g.agent_id = ANY($1)
"""


@dataclass(frozen=True, slots=True)
class Publication:
    """The policy and the tool versions of a published agent."""

    policy: ApprovalPolicy
    tools: Mapping[str, Collection[str]]
    """The versions of each tool, by its name."""


async def read_publications(tx: Connection, agent_ids: Collection[str]) -> dict[str, Publication]:
    """Returns the publications by agent id. Agents that are no longer published are left out."""
    rows = await tx.fetch(_PUBLISHED, list(agent_ids))
    return {row["agent_id"]: Publication(_policy(row["policy"]), row["tools"] or {}) for row in rows}


async def find_outdated(tx: Connection, rows: Collection[asyncpg.Record]) -> dict[str, str]:
    """Returns what changed since each request was opened, by approval id. It contains only changed requests whose call
    can still start."""
    ahead = [row for row in rows if has_call_ahead(row["status"], row["kind"], row["tool"])]
    if not ahead:
        return {}
    current = await read_publications(tx, {row["agent_id"] for row in ahead})
    digests_for = cache(lambda agent_id, risk: current[agent_id].policy.digests_for(risk))
    outdated: dict[str, str] = {}
    for row in ahead:
        agent, in_force = current.get(row["agent_id"]), None
        if agent is not None:
            in_force = InForce(digests_for(row["agent_id"], row["risk"]), agent.tools.get(row["tool"], ()))
        where = row["differs_at"]
        why = outdated_reason(row["policy_digest"], row["tool_version"], in_force, differs_at=where)
        if why is not None:
            outdated[str(row["id"])] = why
    return outdated


def _policy(stored: object) -> ApprovalPolicy:
    """Returns a stored policy. A later deployment may have written it, so unknown fields are ignored."""
    return ApprovalPolicy.model_validate(stored, extra="ignore")
