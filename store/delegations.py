"""Standing in for somebody until a date: given by the person, ended by the person."""

from datetime import datetime

from contracts.errors import CallerError
from store import audit
from store.database import Connection
from store.ids import new_id

MOST_DAYS = 90
_ADD = """
INSERT INTO delegations (id, tenant_id, user_id, to_user, until)
SELECT $1, current_setting('perdure.tenant'), $2, $3, $4
WHERE $4 > clock_timestamp() AND $4 <= clock_timestamp() + make_interval(days => $5) RETURNING created_at
"""
_OWN = """
SELECT d.id, g.name AS by, t.name AS to, d.until, d.created_at FROM delegations d JOIN users g ON g.id = d.user_id
JOIN users t ON t.id = d.to_user WHERE d.user_id = $1 AND d.ended_at IS NULL AND d.until > clock_timestamp()
ORDER BY d.created_at DESC, d.id DESC LIMIT $2
"""


async def add(tx: Connection, user_id: str, name: str, to: str, until: datetime) -> dict[str, object]:
    """Let the user named `to` sit in this person's seat until then.

    Raises: CallerError 404 `user_not_found`, 422 `to_yourself`, 422 `until_invalid`.
    """
    other = await tx.fetchval("SELECT id FROM users WHERE name = $1 AND disabled_at IS NULL", to)
    if other is None:
        raise CallerError("user_not_found", "there is no user of this name", status=404)
    if str(other) == user_id:
        raise CallerError("to_yourself", "you sit in your own seat already; name somebody else", status=422)
    delegation_id = new_id()
    created_at = await tx.fetchval(_ADD, delegation_id, user_id, other, until, MOST_DAYS)
    if created_at is None:
        most = f"give a time that is to come, at most {MOST_DAYS} days ahead"
        raise CallerError("until_invalid", most, {"most_days": MOST_DAYS}, status=422)
    told = {"to_user": str(other), "to": to, "until": until.isoformat()}
    await audit.record(tx, "delegation.added", delegation_id, {**told}, actor=user_id, turn_id=None)
    return {"id": delegation_id, "by": name, "to": to, "until": until, "created_at": created_at}


async def listed(tx: Connection, user_id: str, most: int) -> list[dict[str, object]]:
    """Those that this person gave and that hold now, newest first."""
    return [{**dict(row), "id": str(row["id"])} for row in await tx.fetch(_OWN, user_id, most)]


async def remove(tx: Connection, user_id: str, delegation_id: str) -> None:
    """End one of this person's own at once; what was decided by it stands.

    Raises: CallerError 404 `delegation_not_found`.
    """
    ended = await tx.fetchval(
        "UPDATE delegations SET ended_at = clock_timestamp() WHERE id = $1 AND user_id = $2 AND ended_at IS NULL "
        "RETURNING true",
        delegation_id,
        user_id,
    )
    if not ended:
        raise CallerError("delegation_not_found", "there is no such delegation of yours", status=404)
    await audit.record(tx, "delegation.removed", delegation_id, {}, actor=user_id, turn_id=None)
