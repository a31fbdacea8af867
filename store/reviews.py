"""An approval in a person's hands: its row under its turn's lock, who asks, and in whose seats they may sit.

The turn's row is locked before the approval's, as everywhere, so that no two writers wait for each other crosswise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import asyncpg
from pydantic import JsonValue

from contracts.errors import CallerError
from contracts.people import RequestKind
from contracts.turns import TurnAddress
from policy.claims import Claimed
from policy.credentials import UNKNOWN, Credential
from policy.decision import Decider, Decision, Facts, refusal, seat_of
from policy.seats import Seat
from policy.votes import Vote
from store.database import Connection
from store.overdue import escalate_overdue

_SEATS = """
(SELECT jsonb_agg(jsonb_build_object('id', u.id, 'name', u.name, 'roles', u.roles, 'lent_by',
   -- Lent by several delegations it is lent by the one that most people could not have made.
   (SELECT d.created_by FROM delegations d WHERE d.user_id = u.id AND d.to_user = {user}::uuid AND d.ended_at IS NULL
     AND d.until > clock_timestamp() ORDER BY cardinality(d.created_by) LIMIT 1)) ORDER BY u.name)
 FROM users u WHERE u.disabled_at IS NULL AND u.id = ANY(ARRAY(SELECT {user}::uuid UNION ALL
   SELECT d.user_id FROM delegations d
   WHERE d.to_user = {user}::uuid AND d.ended_at IS NULL AND d.until > clock_timestamp())))
"""
_LOCK = f"""
WITH held AS MATERIALIZED (
  SELECT a.*, t.stop_requested_at FROM turns t JOIN approvals a ON a.turn_id = t.id
  WHERE a.id = $1 FOR UPDATE OF t, a
)
SELECT h.*, clock_timestamp() AS now, (SELECT name FROM users WHERE id = h.claimed_by) AS claimer,
  (SELECT 'admin' = ANY(roles) FROM users WHERE id = h.requested_by) AS requester_is_admin,
  -- One decision of a person at a time, so that those of the last minute can be counted: taken after the row locks.
  CASE WHEN $3 AND h.status = 'pending' THEN pg_advisory_xact_lock(hashtextextended($2::uuid::text, 0)) END AS alone,
  {_SEATS.format(user="$2")} AS seats
FROM held h
"""
_VOTES = """
SELECT v.user_id, v.seat_id, v.created_by, u.name, u.disabled_at IS NULL AND v.role = ANY(u.roles)
  AND b.disabled_at IS NULL AND v.role = ANY(b.roles) AS counts
FROM approval_votes v JOIN users u ON u.id = v.seat_id JOIN users b ON b.id = v.user_id
WHERE v.approval_id = $1 AND v.voided_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class Review:
    """One approval and one person, as they are now."""

    row: asyncpg.Record
    """The approval, with its turn's `stop_requested_at`."""
    facts: Facts
    decider: Decider
    """With the roles that the person has now."""
    signed_in: dict[str, JsonValue]
    """How, for the record of what this person decides."""

    @property
    def approval_id(self) -> str:
        """The approval's id."""
        return str(self.row["id"])

    @property
    def address(self) -> TurnAddress:
        """The turn that waits."""
        return TurnAddress(
            tenant_id=self.row["tenant_id"],
            conversation_id=str(self.row["conversation_id"]),
            turn_id=str(self.row["turn_id"]),
        )

    @property
    def seat(self) -> Seat:
        """The seat that this person decides in, where nothing refuses it."""
        return seat_of(self.facts, self.decider)

    @property
    def vote(self) -> Vote:
        """What this person's decision counts for."""
        seat = self.seat
        return Vote(self.decider.user_id, seat.user_id, True, self.facts.panel.names(seat.name))

    def refuse(
        self,
        decision: Decision,
        digest: str,
        *,
        reasoned: bool,
        args_given: bool,
        text: bool,
        unfit: CallerError | None = None,
    ) -> None:
        """Raises: CallerError, the first reason in the contract's order."""
        given = {"reasoned": reasoned, "args_given": args_given, "text": text}
        found = refusal(self.facts, self.decider, decision, digest, **given, unfit=unfit)
        if found is not None:
            raise found

    def refuse_stopped(self) -> None:
        """Raises: CallerError 409 `turn_stopped`."""
        stopped_at: datetime | None = self.row["stop_requested_at"]
        if stopped_at is not None:
            stopped: dict[str, object] = {"turn_id": str(self.row["turn_id"]), "stopped_at": stopped_at}
            raise CallerError("turn_stopped", "the turn was stopped; nothing of it runs any more", stopped, status=409)


async def take_up(
    tx: Connection, approval_id: str, person: Decider, *, alone: bool = False, asked_again: bool = False
) -> Review:
    """Lock the approval and its turn for this person. `alone` keeps their other decisions waiting until the commit.
    `asked_again` says that the statement which does it asks for role and delegation itself; else they are read anew
    once the locks are got.

    One that is past its deadline and to be escalated then is, first.

    Raises: CallerError 404 `approval_not_found`, also for one that this person may not see.
    """
    row = await tx.fetchrow(_LOCK, approval_id, person.user_id, alone)
    if row is None or not person.sees(str(row["requested_by"])):
        raise CallerError("approval_not_found", "there is no such approval", status=404)
    overdue = row["status"] == "pending" and row["expires_at"] <= row["now"]
    if overdue and await escalate_overdue(tx, approval_id):
        row = await tx.fetchrow(_LOCK, approval_id, person.user_id, alone) or row
    # Where one decision is enough there is nothing to count.
    votes = await tx.fetch(_VOTES, approval_id) if row["quorum"] > 1 else []
    facts = facts_of(row, [_vote(vote, row["reviewers"]) for vote in votes])
    sitting = _seated(person, row["seats"]) if asked_again else await seated(tx, person)
    return Review(row, facts, sitting, await signed_in(tx, person.credential))


async def signed_in(tx: Connection, credential: Credential) -> dict[str, JsonValue]:
    """How a person is signed in, with the name of who created the credential, or invited its owner, and with the names
    of those through whose credentials that was done. Under keys by which an erased person is found (erasure_elsewhere).
    """
    told: dict[str, JsonValue] = {"how": credential.how.value}
    made = {"created_by": credential.created_by, "invited_by": credential.invited_by}
    if not any(made.values()):
        return told
    ids = [each for group in made.values() for each in group]
    rows = await tx.fetch("SELECT id, name FROM users WHERE id = ANY($1::uuid[])", ids)
    names = {str(row["id"]): str(row["name"]) for row in rows} | {UNKNOWN: "unknown"}
    for what, group in made.items():
        first, *through = [names[each] for each in group if each in names] or [""]
        if first:
            told[what] = first
        if through:
            told[f"{what}_through"] = [{"by": name} for name in through]
    return told


def _vote(vote: asyncpg.Record, reviewers: Sequence[str]) -> Vote:
    named = not reviewers or vote["name"] in reviewers
    return Vote(str(vote["user_id"]), str(vote["seat_id"]), vote["counts"], named, tuple(map(str, vote["created_by"])))


async def seated(tx: Connection, person: Decider) -> Decider:
    """This person with the roles and the seats that they have now."""
    return _seated(person, await tx.fetchval(f"SELECT {_SEATS.format(user='$1')}", person.user_id))


def _seated(person: Decider, seats: list[dict[str, Any]] | None) -> Decider:
    found = [
        Seat(
            each["id"],
            each["name"],
            frozenset(each["roles"]),
            Credential(created_by=tuple(each["lent_by"] or ())),
        )
        for each in seats or ()
    ]
    own = next((seat for seat in found if seat.user_id == person.user_id), None)
    return replace(
        person,
        roles=own.roles if own else frozenset(),
        name=own.name if own else person.name,
        in_place_of=tuple(seat for seat in found if seat is not own),
    )


def facts_of(row: asyncpg.Record, votes: Sequence[Vote]) -> Facts:
    """What an approval's row says; it also has `now`, `requester_is_admin`, and `claimer`, the name of the
    person who has claimed it."""
    claimed = None
    if row["claimed_by"] is not None:
        since = row["claimed_since"] or row["now"]
        claimed = Claimed(str(row["claimed_by"]), row["claimer"] or "", row["claimed_until"], since)
    return Facts(
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
    )
