"""Users, their roles and their tokens. Postgres stores only the hash of a token."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import asyncpg

from perdure.contracts.errors import CallerError
from perdure.contracts.values import sha256_hex
from perdure.core.approvals.relations import Opening
from perdure.core.audit import Keyring, name_text
from perdure.core.identity import (
    OWN_CREDENTIAL,
    Credential,
    SignInMethod,
    display_name_from,
    name_from,
    require_separate_gateway,
)
from perdure.store import audit
from perdure.store.database import Connection, new_id, signer_of
from perdure.store.identity import origins, sign_in

LOCAL = "local"
"""The label of the tokens that perdure/apps/bootstrap.py creates."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of the tenant."""

    id: str
    name: str
    display_name: str
    roles: tuple[str, ...]
    subject: str | None = None
    """The subject as its gateway sends it; None for other users."""


async def list_users(tx: Connection) -> list[User]:
    """Returns all active users, sorted by name, without the subjects of gateways."""
    rows = await tx.fetch("SELECT * FROM users WHERE disabled_at IS NULL AND gateway_id IS NULL ORDER BY name")
    return [_read_user(row) for row in rows]


async def get_user(tx: Connection, user_id: str) -> User:
    """Returns the user with this id.

    Raises: CallerError 404 `user_not_found`.
    """
    return _require_user(await tx.fetchrow("SELECT * FROM users WHERE id = $1", user_id))


async def set_display_name(tx: Connection, user_id: str, display_name: str, actor: str) -> None:
    """Sets the name that others see, and records the change in the audit trail."""
    await tx.execute("UPDATE users SET display_name = $2 WHERE id = $1", user_id, display_name)
    await audit.record(tx, "user.display_name_set", user_id, {"display_name": display_name}, actor=actor, turn_id=None)


async def add_user(
    tx: Connection,
    name: str,
    display_name: str,
    roles: tuple[str, ...],
    actor: str | None,
    credential: Credential = OWN_CREDENTIAL,
) -> User:
    """Adds a user. At a registration, `actor` must be None. `credential` is what the actor signed in with.

    Raises: CallerError 409 `user_exists`, `name_erased`; 422 `roles_conflict`.
    """
    require_separate_gateway(roles)
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
        raise CallerError("user_exists", "A user with this name already exists", {"name": name}, status=409) from None
    await refuse_erased(tx, *signer_of(tx), name)
    await audit.record(
        tx, "user.added", user.id, {"name": name, "roles": [*roles]}, actor=actor or user.id, turn_id=None
    )
    if actor is not None:
        await origins.record_opening(tx, user.id, Opening.ADDED)
        await origins.record_role_giver(tx, user.id, actor, credential)
    return user


async def set_roles(
    tx: Connection, name: str, roles: tuple[str, ...], actor: str, credential: Credential = OWN_CREDENTIAL
) -> User:
    """Sets exactly these roles for a user. `credential` is what the actor signed in with.

    Raises: CallerError 404 `user_not_found`; 409 `own_account` if administrators would remove their own admin role,
    `user_of_gateway`; 422 `roles_conflict`.
    """
    require_separate_gateway(roles)
    await refuse_subject(tx, name)
    row = await tx.fetchrow("UPDATE users SET roles = $2 WHERE name = $1 RETURNING *", name, list(roles))
    user = _require_user(row)
    if user.id == actor and "admin" not in roles:
        raise own_account()
    await origins.record_role_giver(tx, user.id, actor, credential)
    await audit.record(tx, "user.roles_set", user.id, {"name": name, "roles": [*roles]}, actor=actor, turn_id=None)
    return user


async def mint_token(tx: Connection, name: str, label: str, actor: str, credential: Credential) -> str:
    """Creates a token for a user and returns it. Only its hash is stored. `credential` is what the actor signed in
    with.

    Raises: CallerError 404 `user_not_found`; 409 `user_of_gateway`; 422 `label_reserved`.
    """
    await refuse_subject(tx, name)
    if label == LOCAL:
        why = f"The label `{LOCAL}` is for the tokens that perdure/apps/bootstrap.py creates; choose another one"
        raise CallerError("label_reserved", why, {"label": label}, status=422)
    user = _require_user(await tx.fetchrow("SELECT * FROM users WHERE name = $1 AND disabled_at IS NULL", name))
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


async def refuse_subject(tx: Connection, name: str) -> None:
    """Checks that a user can have credentials and roles. A subject acts only through its gateway.

    Raises: CallerError 409 `user_of_gateway`.
    """
    if await tx.fetchval("SELECT gateway_id IS NOT NULL FROM users WHERE name = $1", name):
        raise CallerError(
            "user_of_gateway",
            "This user acts only through its gateway; it has no tokens, passwords or invitations, and one fixed role",
            {"name": name},
            status=409,
        )


def own_account() -> CallerError:
    """Returns the error that keeps administrators from leaving a tenant without an administrator by mistake."""
    return CallerError(
        "own_account", "You cannot change your own account this way; ask another administrator", status=409
    )


def _require_user(row: asyncpg.Record | None) -> User:
    if row is None:
        raise CallerError("user_not_found", "User not found", status=404)
    return _read_user(row)


def _read_user(row: asyncpg.Record) -> User:
    return User(str(row["id"]), row["name"], row["display_name"], tuple(row["roles"]), row["subject"])


KIND = "user.name_retired"


async def retire(tx: Connection, name: str, actor: str) -> None:
    """Retires a name, in the transaction that removes it from its user. It cannot be used again, because a new user
    would inherit its mentions in policies and lists. A retired name is stored as an audit row whose subject is the
    name's HMAC. It can neither be changed nor read back."""
    tenant_id, keyring = signer_of(tx)
    await audit.record(tx, KIND, keyring.sign(name_text(tenant_id, name)), {}, actor=actor, turn_id=None)


async def refuse_erased(tx: Connection, tenant_id: str, keyring: Keyring, name: str) -> None:
    """Checks that a name is not retired. It must run after the name was inserted, so that it sees an erasure that has
    just ended.

    Raises: CallerError 409 `name_erased`.
    """
    of_name = keyring.signatures(name_text(tenant_id, name))
    if await tx.fetchval(
        "SELECT true FROM audit WHERE tenant_id = $1 AND kind = $2 AND subject = ANY($3) LIMIT 1",
        tenant_id,
        KIND,
        of_name,
    ):
        raise CallerError(
            "name_erased",
            "This name belonged to an erased user and is still in use; choose another name",
            {"name": name},
            status=409,
        )


_MEMBERS = """
SELECT u.id, u.name, u.display_name, u.roles, u.disabled_at, p.user_id IS NOT NULL AS has_password,
  i.expires_at AS invited_until, EXISTS (SELECT FROM identities d WHERE d.user_id = u.id) AS has_identity
FROM users u LEFT JOIN passwords p ON p.user_id = u.id
LEFT JOIN invitations i ON i.user_id = u.id AND i.expires_at > now()
WHERE u.name <> 'erased-' || u.id
"""


@dataclass(frozen=True, slots=True)
class Member:
    """A user of the tenant, as administrators see it."""

    id: str
    name: str
    display_name: str
    roles: tuple[str, ...]
    active: bool
    has_password: bool
    has_identity: bool
    """True if the user can sign in through an identity provider."""
    invited_until: datetime | None


async def list_members(tx: Connection) -> list[Member]:
    """Returns all users of the tenant that are not erased, sorted by name, without the subjects of gateways."""
    return [_read_member(row) for row in await tx.fetch(f"{_MEMBERS} AND u.gateway_id IS NULL ORDER BY u.name")]


async def get_member(tx: Connection, name: str) -> Member:
    """Returns one user and locks the row.

    Raises: CallerError 404 `user_not_found`.
    """
    row = await tx.fetchrow(f"{_MEMBERS} AND u.name = $1 FOR UPDATE OF u", name)
    if row is None:
        raise CallerError("user_not_found", "User not found", status=404)
    return _read_member(row)


async def change_member(
    tx: Connection,
    name: str,
    actor: str,
    credential: Credential = OWN_CREDENTIAL,
    *,
    roles: tuple[str, ...] | None = None,
    display_name: str | None = None,
    active: bool | None = None,
) -> Member:
    """Changes the given properties of a user.

    Accounts are closed and reopened, never deleted.

    Raises: CallerError 404 `user_not_found`; 409 `own_account` if administrators would close their account or remove
    their admin role, `user_of_gateway`; 422 `roles_conflict`.
    """
    member = await get_member(tx, name)
    if member.id == actor and active is False:
        raise own_account()
    if display_name is not None:
        await set_display_name(tx, member.id, display_name, actor)
    if roles is not None:
        await set_roles(tx, name, roles, actor, credential)
    if active is not None and active is not member.active:
        await _set_active(tx, member, actor, active=active)
    return await get_member(tx, name)


async def _set_active(tx: Connection, member: Member, actor: str, *, active: bool) -> None:
    await tx.execute(
        "UPDATE users SET disabled_at = CASE WHEN $2 THEN NULL ELSE now() END WHERE id = $1", member.id, active
    )
    if not active:
        await sign_in.end_all_sessions(tx, member.id, actor, "the account was closed")
        await tx.execute("DELETE FROM invitations WHERE user_id = $1", member.id)
    kind = "user.reopened" if active else "user.closed"
    await audit.record(tx, kind, member.id, {"name": member.name}, actor=actor, turn_id=None)


def _read_member(row: asyncpg.Record) -> Member:
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


async def ensure_tenant(owner: Connection, tenant_id: str) -> None:
    """Creates the tenant if it does not exist. The database owner writes the first tenant and users of a deployment."""
    await owner.execute("INSERT INTO tenants (tenant_id) VALUES ($1) ON CONFLICT DO NOTHING", tenant_id)


async def ensure_user(
    owner: Connection, tenant_id: str, name: str, roles: list[str], token_sha256: str, keyring: Keyring
) -> None:
    """Creates the user and its token if they do not exist, in a transaction of the tenant.

    Raises: CallerError 409 `name_erased`.
    """
    await owner.execute(
        "INSERT INTO users (id, tenant_id, name, display_name, roles) VALUES ($1, $2, $3, $4, $5) "
        "ON CONFLICT (tenant_id, name) DO NOTHING",
        new_id(),
        tenant_id,
        name,
        name.capitalize(),
        roles,
    )
    await refuse_erased(owner, tenant_id, keyring, name)
    await owner.execute(
        "INSERT INTO api_tokens (token_sha256, tenant_id, user_id, label, created_by) "
        "SELECT $3, $1, id, 'local', '{}' FROM users WHERE tenant_id = $1 AND name = $2 ON CONFLICT DO NOTHING",
        tenant_id,
        name,
        token_sha256,
    )


async def grant(owner: Connection, tenant_id: str, name: str, roles: list[str]) -> None:
    """Adds these roles to a user's roles."""
    await owner.execute(
        "UPDATE users SET roles = ARRAY(SELECT DISTINCT unnest(roles || $3::text[]) ORDER BY 1) "
        "WHERE tenant_id = $1 AND name = $2",
        tenant_id,
        name,
        roles,
    )


def _read_identity(row: asyncpg.Record, link_to: str | None) -> tuple[str, Credential]:
    """Returns the id of the user with a known identity, and their credential.

    Raises: CallerError 403 `account_closed`; 409 `identity_taken`.
    """
    user_id = str(row["id"])
    if row["disabled_at"] is not None:
        raise CallerError("account_closed", "This account is closed; ask an administrator to reopen it", status=403)
    if link_to not in (None, user_id):
        raise CallerError("identity_taken", "This identity is linked to another user", status=409)
    made_by, invited_by = (tuple(map(str, row[name])) for name in ("created_by", "invited_by"))
    return user_id, Credential(SignInMethod.OIDC, made_by, invited_by)


def _newcomers_refused() -> CallerError:
    why = "No account is linked to this identity; ask an administrator for an invitation"
    return CallerError("newcomers_refused", why, status=403)


async def enter_by_identity(
    tx: Connection,
    issuer: str,
    claims: Mapping[str, object],
    newcomers: tuple[str, ...],
    link_to: str | None,
    linked_by: Credential = OWN_CREDENTIAL,
) -> tuple[str, Credential]:
    """Returns the id of the user with this identity, and their credential. A new user gets an account with the roles
    `newcomers`. `link_to` adds the identity as a sign-in method for the user who is signed in by `linked_by`.

    Raises: CallerError 403 `account_closed`, `newcomers_refused`; 409 `user_exists`, `identity_taken`.
    """
    subject = str(claims["sub"])
    row = await tx.fetchrow(
        "SELECT u.id, u.disabled_at, i.created_by, i.invited_by FROM identities i JOIN users u ON u.id = i.user_id "
        "WHERE i.issuer = $1 AND i.subject = $2",
        issuer,
        subject,
    )
    if row is not None:
        return _read_identity(row, link_to)
    if link_to is None:
        name = name_from(claims)
        if not newcomers or name is None:
            raise _newcomers_refused()
        # An existing account with this name is never taken over. Its owner must sign in and link the identity.
        link_to = (await add_user(tx, name, display_name_from(claims), newcomers, None)).id
        await origins.record_opening(tx, link_to, Opening.PROVIDER)
    await tx.execute(
        "INSERT INTO identities (tenant_id, issuer, subject, user_id, created_by, invited_by) "
        "VALUES (current_setting('perdure.tenant'), $1, $2, $3, $4, $5)",
        issuer,
        subject,
        link_to,
        linked_by.created_by,
        linked_by.invited_by,
    )
    await audit.record(tx, "user.identity_linked", link_to, {"issuer": issuer}, actor=link_to, turn_id=None)
    return link_to, replace(linked_by, how=SignInMethod.OIDC)
