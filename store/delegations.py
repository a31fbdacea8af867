"""Standing in for somebody until a date: given by the person, ended by the person or an admin."""

from datetime import datetime

from contracts.errors import CallerError
from policy.credentials import Credential
from policy.seats import Seat, lent
from store import audit
from store.database import Connection
from store.ids import new_id
from store.paging import cursor_after, read_cursor

MOST_DAYS = 90
_ADD = """
INSERT INTO delegations (id, tenant_id, user_id, to_user, until, created_by)
SELECT $1, current_setting('perdure.tenant'), $2, $3, $4, $6::uuid[]
WHERE $4 > clock_timestamp() AND $4 <= clock_timestamp() + make_interval(days => $5) RETURNING created_at
"""
_PEOPLE = """
SELECT id, name, roles FROM users WHERE (id = $1 OR name = $2) AND disabled_at IS NULL
"""
_HELD = """
SELECT d.id, g.name AS by, t.name AS to, d.until, d.created_at FROM delegations d JOIN users g ON g.id = d.user_id
JOIN users t ON t.id = d.to_user WHERE ($1::uuid IS NULL OR d.user_id = $1) AND d.ended_at IS NULL
  AND d.until > clock_timestamp() AND ($2::timestamptz IS NULL OR (d.created_at, d.id) < ($2, $3::uuid))
ORDER BY d.created_at DESC, d.id DESC LIMIT $4
"""


async def add(
    tx: Connection, user_id: str, name: str, to: str, until: datetime, credential: Credential
) -> dict[str, object]:
    """Let the user named `to` sit in this person's seat until then. `credential` is what the person is signed in by.

    Raises: CallerError 404 `user_not_found`, 422 `to_yourself`, `nothing_to_delegate`, `cannot_decide`,
    `until_invalid`.
    """
    rows = await tx.fetch(_PEOPLE, user_id, to)
    people = [Seat(str(row["id"]), row["name"], frozenset(row["roles"])) for row in rows]
    other = next((seat for seat in people if seat.name == to), None)
    if other is None:
        raise CallerError("user_not_found", "there is no user of this name", status=404)
    if other.user_id == user_id:
        raise CallerError("to_yourself", "you sit in your own seat already; name somebody else", status=422)
    # Looked at again when it is decided by: roles come and go.
    lent(next((seat for seat in people if seat is not other), Seat(user_id, name, frozenset())), other)
    delegation_id = new_id()
    created_at = await tx.fetchval(_ADD, delegation_id, user_id, other.user_id, until, MOST_DAYS, credential.created_by)
    if created_at is None:
        most = f"give a time that is to come, at most {MOST_DAYS} days ahead"
        raise CallerError("until_invalid", most, {"most_days": MOST_DAYS}, status=422)
    told = {"to_user": other.user_id, "to": to, "until": until.isoformat()}
    await audit.record(tx, "delegation.added", delegation_id, {**told}, actor=user_id, turn_id=None)
    return {"id": delegation_id, "by": name, "to": to, "until": until, "created_at": created_at}


async def listed(
    tx: Connection, user_id: str | None, limit: int, cursor: str | None = None
) -> tuple[list[dict[str, object]], str | None]:
    """Those that this person gave (None: anybody of the tenant) and that hold now, newest first."""
    rows = await tx.fetch(_HELD, user_id, *read_cursor(cursor), limit + 1)
    last = rows[limit - 1] if len(rows) > limit else None
    shown = [{**dict(row), "id": str(row["id"])} for row in rows[:limit]]
    return shown, cursor_after(last["created_at"], str(last["id"])) if last else None


async def remove(tx: Connection, user_id: str, delegation_id: str, *, anybodys: bool = False) -> None:
    """End one of this person's own at once, or `anybodys`; what was decided by it stands.

    Raises: CallerError 404 `delegation_not_found`.
    """
    ended = await tx.fetchval(
        "UPDATE delegations SET ended_at = clock_timestamp() WHERE id = $1 AND ($2::uuid IS NULL OR user_id = $2) "
        "AND ended_at IS NULL RETURNING true",
        delegation_id,
        None if anybodys else user_id,
    )
    if not ended:
        raise CallerError("delegation_not_found", "there is no such delegation of yours", status=404)
    await audit.record(tx, "delegation.removed", delegation_id, {}, actor=user_id, turn_id=None)
