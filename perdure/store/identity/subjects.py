"""Subjects: people on whose behalf a gateway user acts. Each is a separate user without credentials.

The key is the gateway user and the subject's text. Two subjects of one gateway are two users in every respect, and the
same text through another gateway is another user.
"""

from dataclasses import dataclass

import asyncpg
from pydantic import JsonValue

from perdure.contracts.errors import CallerError, InvariantBroken
from perdure.core.identity import SUBJECT_ROLE, subject_name
from perdure.store import audit
from perdure.store.database import Connection, new_id
from perdure.store.identity.users import User, set_display_name
from perdure.store.paging import cursor_after, read_cursor

_OWNERS = {
    "conversation_id": "SELECT user_id FROM conversations WHERE id = $2::uuid",
    "turn_id": "SELECT user_id FROM turns WHERE id = $2::uuid",
    "approval_id": "SELECT requested_by FROM approvals WHERE id = $2::uuid",
    "file_id": "SELECT user_id FROM files WHERE id = $2::uuid",
    "effect_key": "SELECT t.user_id FROM tool_calls k JOIN turns t ON t.id = k.turn_id WHERE k.key = $2",
}
"""The statement that finds the owner of the object that a path names."""
OWNED_IDS = frozenset(_OWNERS)
"""The parameters of paths whose object has an owner."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject of a gateway."""

    user_id: str
    name: str
    """The user name."""
    display_name: str
    is_open: bool
    """False if an administrator closed the account, or if it is being erased."""


async def find_subject(tx: Connection, gateway_id: str, subject: str) -> Subject | None:
    """Returns a subject of this gateway, or None if it was not used yet."""
    row = await tx.fetchrow("SELECT * FROM users WHERE gateway_id = $1 AND subject = $2", gateway_id, subject)
    return _read(row)


async def ensure_subject(tx: Connection, gateway_id: str, gateway: str, subject: str, name: str) -> Subject:
    """Returns a subject of this gateway; creates it when it is first used. `name` is the name that others see; an empty
    one changes nothing. Concurrent first uses result in one user."""
    found = await find_subject(tx, gateway_id, subject) or await _create(tx, gateway_id, gateway, subject, name)
    if name and found.is_open and found.display_name != name:
        await set_display_name(tx, found.user_id, name, gateway_id)
    return found


async def _create(tx: Connection, gateway_id: str, gateway: str, subject: str, name: str) -> Subject:
    user_id, user_name = new_id(), subject_name(gateway, subject)
    display_name = name or subject[:100]
    inserted = await tx.fetchval(
        "INSERT INTO users (id, tenant_id, name, display_name, roles, gateway_id, subject) "
        "VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING true",
        user_id,
        user_name,
        display_name,
        [SUBJECT_ROLE],
        gateway_id,
        subject,
    )
    if not inserted:
        other = await find_subject(tx, gateway_id, subject)  # created at the same moment
        if other is None:
            raise InvariantBroken("subject_name_taken", "another user has the name of a new subject")
        return other
    data: dict[str, JsonValue] = {
        "name": user_name,
        "roles": [SUBJECT_ROLE],
        "gateway_id": gateway_id,
        "given": subject,
    }
    await audit.record(tx, "user.added", user_id, data, actor=gateway_id, turn_id=None)
    return Subject(user_id, user_name, display_name, is_open=True)


async def find_owner(tx: Connection, gateway_id: str, kind: str, object_id: str) -> Subject | None:
    """Returns the subject of this gateway that owns an object; None if the owner is any other user. `kind` is one of
    OWNED_IDS."""
    row = await tx.fetchrow(
        f"SELECT * FROM users WHERE gateway_id = $1 AND subject IS NOT NULL AND id = ({_OWNERS[kind]})",
        gateway_id,
        object_id,
    )
    return _read(row)


async def is_open(tx: Connection, user_id: str) -> bool:
    """Returns whether this user's account is open."""
    return bool(await tx.fetchval("SELECT disabled_at IS NULL FROM users WHERE id = $1", user_id))


async def list_subjects(tx: Connection, gateway: str, limit: int, cursor: str | None) -> tuple[list[User], str | None]:
    """Returns the active subjects of the gateway with this name, newest first, and the cursor of the next page.

    Raises: CallerError 422 `cursor_invalid`.
    """
    at, user_id = read_cursor(cursor)
    rows = await tx.fetch(
        "SELECT u.* FROM users u JOIN users g ON g.id = u.gateway_id WHERE g.name = $1 AND u.subject IS NOT NULL "
        "AND u.disabled_at IS NULL AND ($2::timestamptz IS NULL OR (u.created_at, u.id) < ($2, $3)) "
        "ORDER BY u.created_at DESC, u.id DESC LIMIT $4",
        gateway,
        at,
        user_id,
        limit + 1,
    )
    found = [
        User(str(row["id"]), row["name"], row["display_name"], tuple(row["roles"]), row["subject"])
        for row in rows[:limit]
    ]
    last = rows[limit - 1] if len(rows) > limit else None
    return found, cursor_after(last["created_at"], str(last["id"])) if last else None


async def name_of_subject(tx: Connection, gateway: str, subject: str) -> str:
    """Returns the user name of a subject of the gateway with this name.

    Raises: CallerError 404 `user_not_found`.
    """
    name = await tx.fetchval(
        "SELECT u.name FROM users u JOIN users g ON g.id = u.gateway_id WHERE g.name = $1 AND u.subject = $2",
        gateway,
        subject,
    )
    if name is None:
        raise CallerError("user_not_found", "User not found", status=404)
    return str(name)


def _read(row: asyncpg.Record | None) -> Subject | None:
    if row is None:
        return None
    return Subject(str(row["id"]), row["name"], row["display_name"], row["disabled_at"] is None)
