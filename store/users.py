"""Named users, their roles and tokens. Postgres knows a token's hash only."""

import secrets
from dataclasses import dataclass

import asyncpg

from contracts.digests import sha256_hex
from contracts.errors import CallerError
from policy.credentials import Credential
from store import audit
from store.database import Connection, signer_of
from store.erased_names import refuse_erased
from store.ids import new_id

LOCAL = "local"
"""The label of the tokens that prepare.py creates."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of the tenant."""

    id: str
    name: str
    display_name: str
    roles: tuple[str, ...]


async def listed(tx: Connection) -> list[User]:
    """Every user, by name."""
    rows = await tx.fetch("SELECT * FROM users WHERE disabled_at IS NULL ORDER BY name")
    return [_user(row) for row in rows]


async def get(tx: Connection, user_id: str) -> User:
    """The user of this id.

    Raises: CallerError 404 `user_not_found`.
    """
    return _found(await tx.fetchrow("SELECT * FROM users WHERE id = $1", user_id))


async def set_display_name(tx: Connection, user_id: str, display_name: str, actor: str) -> None:
    """What this user is called."""
    await tx.execute("UPDATE users SET display_name = $2 WHERE id = $1", user_id, display_name)
    await audit.record(tx, "user.display_name_set", user_id, {"display_name": display_name}, actor=actor, turn_id=None)


async def add(tx: Connection, name: str, display_name: str, roles: tuple[str, ...], actor: str | None) -> User:
    """A new user; without `actor`, by registering.

    Raises: CallerError 409 `user_exists`, `name_erased`.
    """
    user = User(new_id(), name, display_name or name, roles)
    try:
        await tx.execute(
            "INSERT INTO users (id, tenant_id, name, display_name, roles) "
            "VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4)",
            user.id,
            name,
            user.display_name,
            list(roles),
        )
    except asyncpg.UniqueViolationError:
        raise CallerError("user_exists", "there is a user of this name", {"name": name}, status=409) from None
    await refuse_erased(tx, *signer_of(tx), name)
    await audit.record(
        tx, "user.added", user.id, {"name": name, "roles": [*roles]}, actor=actor or user.id, turn_id=None
    )
    return user


async def set_roles(tx: Connection, name: str, roles: tuple[str, ...], actor: str) -> User:
    """Give a user exactly these roles.

    Raises: CallerError 404 `user_not_found`; 409 `own_account` for an administrator who would stop being one (S2-61).
    """
    row = await tx.fetchrow("UPDATE users SET roles = $2 WHERE name = $1 RETURNING *", name, list(roles))
    user = _found(row)
    if user.id == actor and "admin" not in roles:
        raise own_account()
    await audit.record(tx, "user.roles_set", user.id, {"name": name, "roles": [*roles]}, actor=actor, turn_id=None)
    return user


async def mint_token(tx: Connection, name: str, label: str, actor: str, credential: Credential) -> str:
    """A new token of a user; shown once, stored as its hash. `credential` is what the actor is signed in by.

    Raises: CallerError 404 `user_not_found`; 422 `label_reserved`.
    """
    if label == LOCAL:
        why = f"The label `{LOCAL}` is for the tokens that prepare.py creates; choose another one"
        raise CallerError("label_reserved", why, {"label": label}, status=422)
    user = _found(await tx.fetchrow("SELECT * FROM users WHERE name = $1 AND disabled_at IS NULL", name))
    token = f"perdure_{name}_{secrets.token_urlsafe(24)}"
    await tx.execute(
        "INSERT INTO api_tokens (token_sha256, tenant_id, user_id, label, created_by) "
        "VALUES ($1, current_setting('perdure.tenant'), $2, $3, array_remove($4::uuid[], $2))",
        sha256_hex(token),
        user.id,
        label,
        credential.handed_on(actor),
    )
    await audit.record(tx, "user.token_minted", user.id, {"name": name, "label": label}, actor=actor, turn_id=None)
    return token


def own_account() -> CallerError:
    """Nobody leaves a tenant without its last administrator by a slip."""
    return CallerError("own_account", "another administrator must do that to you", status=409)


def _found(row: asyncpg.Record | None) -> User:
    if row is None:
        raise CallerError("user_not_found", "there is no user of this name", status=404)
    return _user(row)


def _user(row: asyncpg.Record) -> User:
    return User(str(row["id"]), row["name"], row["display_name"], tuple(row["roles"]))
