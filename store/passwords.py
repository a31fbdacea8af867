"""Passwords of people, as hashes. Who has none signs in by a token, or by a provider elsewhere."""

from dataclasses import dataclass

from policy.credentials import Credential, How
from store import audit
from store.database import Connection


@dataclass(frozen=True, slots=True)
class Kept:
    """Somebody who may sign in by a password."""

    user_id: str
    hash: str
    credential: Credential


async def of_name(tx: Connection, name: str) -> Kept | None:
    """The password of the person of this name, who still has access."""
    row = await tx.fetchrow(
        "SELECT u.id, p.hash, p.created_by, p.invited_by FROM users u JOIN passwords p ON p.user_id = u.id "
        "WHERE u.name = $1 AND u.disabled_at IS NULL",
        name,
    )
    if row is None:
        return None
    made = Credential(How.PASSWORD, tuple(map(str, row["created_by"])), tuple(map(str, row["invited_by"])))
    return Kept(str(row["id"]), row["hash"], made)


async def of_user(tx: Connection, user_id: str, *, lock: bool = False) -> str | None:
    """The hash of this person's password. With `lock` it does not change before the transaction ends."""
    statement = "SELECT hash FROM passwords WHERE user_id = $1" + (" FOR SHARE" if lock else "")
    found: str | None = await tx.fetchval(statement, user_id)
    return found


async def put(tx: Connection, user_id: str, hashed: str, credential: Credential) -> None:
    """Give this person this password and no other. `credential` is what the caller who sets it is signed in by: its
    creators may know the password."""
    await tx.execute(
        "INSERT INTO passwords (user_id, tenant_id, hash, created_by, invited_by) "
        "VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4) ON CONFLICT (user_id) DO UPDATE SET "
        "hash = excluded.hash, set_at = now(), created_by = excluded.created_by, invited_by = excluded.invited_by",
        user_id,
        hashed,
        credential.created_by,
        credential.invited_by,
    )
    await audit.record(tx, "user.password_set", user_id, {}, actor=user_id, turn_id=None)
