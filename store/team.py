"""The people of a tenant as its administrators see them; nobody is ever deleted here, only let out and in again."""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from contracts.errors import CallerError
from store import audit, sessions, users
from store.database import Connection

_MEMBERS = """
SELECT u.id, u.name, u.display_name, u.roles, u.disabled_at, p.user_id IS NOT NULL AS has_password,
  i.expires_at AS invited_until, EXISTS (SELECT FROM identities d WHERE d.user_id = u.id) AS has_identity
FROM users u LEFT JOIN passwords p ON p.user_id = u.id
LEFT JOIN invitations i ON i.user_id = u.id AND i.expires_at > now()
WHERE u.name <> 'erased-' || u.id
"""


@dataclass(frozen=True, slots=True)
class Member:
    """One person."""

    id: str
    name: str
    display_name: str
    roles: tuple[str, ...]
    active: bool
    has_password: bool
    has_identity: bool
    """Signs in by a provider elsewhere."""
    invited_until: datetime | None


async def listed(tx: Connection) -> list[Member]:
    """Everybody, by name."""
    return [_member(row) for row in await tx.fetch(f"{_MEMBERS} ORDER BY u.name")]


async def get(tx: Connection, name: str) -> Member:
    """One person.

    Raises: CallerError 404 `user_not_found`.
    """
    row = await tx.fetchrow(f"{_MEMBERS} AND u.name = $1 FOR UPDATE OF u", name)
    if row is None:
        raise CallerError("user_not_found", "there is no user of this name", status=404)
    return _member(row)


async def change(
    tx: Connection,
    name: str,
    actor: str,
    *,
    roles: tuple[str, ...] | None = None,
    display_name: str | None = None,
    active: bool | None = None,
) -> Member:
    """Change what is given.

    Raises: CallerError 404 `user_not_found`; 409 `own_account` for an administrator who would stop being one.
    """
    member = await get(tx, name)
    if member.id == actor and active is False:
        raise users.own_account()
    if display_name is not None:
        await users.set_display_name(tx, member.id, display_name, actor)
    if roles is not None:
        await users.set_roles(tx, name, roles, actor)
    if active is not None and active is not member.active:
        await _let(tx, member, actor, active=active)
    return await get(tx, name)


async def _let(tx: Connection, member: Member, actor: str, *, active: bool) -> None:
    await tx.execute(
        "UPDATE users SET disabled_at = CASE WHEN $2 THEN NULL ELSE now() END WHERE id = $1", member.id, active
    )
    if not active:
        await sessions.end_all(tx, member.id, actor, "the account was closed")
        await tx.execute("DELETE FROM invitations WHERE user_id = $1", member.id)
    kind = "user.reopened" if active else "user.closed"
    await audit.record(tx, kind, member.id, {"name": member.name}, actor=actor, turn_id=None)


def _member(row: asyncpg.Record) -> Member:
    return Member(
        id=str(row["id"]),
        name=row["name"],
        display_name=row["display_name"],
        roles=tuple(row["roles"]),
        active=row["disabled_at"] is None,
        has_password=row["has_password"],
        has_identity=row["has_identity"],
        invited_until=row["invited_until"],
    )
