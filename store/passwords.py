"""Passwords of people, as hashes. Who has none signs in by a token, or by a provider elsewhere."""

from dataclasses import dataclass

from store import audit
from store.database import Connection


@dataclass(frozen=True, slots=True)
class Kept:
    """Somebody who may sign in by a password."""

    user_id: str
    hash: str


async def of_name(tx: Connection, name: str) -> Kept | None:
    """The password of the person of this name, who still has access."""
    row = await tx.fetchrow(
        "SELECT u.id, p.hash FROM users u JOIN passwords p ON p.user_id = u.id "
        "WHERE u.name = $1 AND u.disabled_at IS NULL",
        name,
    )
    return None if row is None else Kept(str(row["id"]), row["hash"])


async def of_user(tx: Connection, user_id: str) -> str | None:
    """The hash of this person's password."""
    found: str | None = await tx.fetchval("SELECT hash FROM passwords WHERE user_id = $1", user_id)
    return found


async def put(tx: Connection, user_id: str, hashed: str, actor: str) -> None:
    """Give this person this password and no other."""
    await tx.execute(
        "INSERT INTO passwords (user_id, tenant_id, hash) VALUES ($1, current_setting('perdure.tenant'), $2) "
        "ON CONFLICT (user_id) DO UPDATE SET hash = excluded.hash, set_at = now()",
        user_id,
        hashed,
    )
    await audit.record(tx, "user.password_set", user_id, {}, actor=actor, turn_id=None)
