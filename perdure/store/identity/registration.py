"""Registration. The first user of a tenant registers with a setup code and becomes its administrator. Later users need
an invitation, unless the operator lets everyone register as a requester."""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from perdure.contracts.errors import CallerError
from perdure.contracts.values import sha256_hex
from perdure.core.identity import (
    CODE_BYTES,
    MAX_TRIES,
    Credential,
    SetupCode,
    SignInMethod,
    code_refusal,
    code_sha256,
    format_code,
)
from perdure.store import audit
from perdure.store.database import Connection
from perdure.store.identity import sign_in, users

FIRST_ROLES = ("requester", "reviewer", "admin")
ROLES = ("requester",)
LOCAL_USERS = ("requester", "reviewer", "admin")
"""The users of the embedded stack, which are not people."""
CODE_LIFETIME = timedelta(hours=24)
_ONE_AT_A_TIME = (
    "SELECT pg_advisory_xact_lock(hashtextextended('perdure register ' || current_setting('perdure.tenant'), 0))"
)
"""A lock, so that two users cannot both register as the first."""
_TENANT = """
SELECT EXISTS (SELECT FROM tenants WHERE tenant_id = current_setting('perdure.tenant')) AS is_there,
  EXISTS (SELECT FROM users WHERE tenant_id = current_setting('perdure.tenant') AND name <> ALL($1)
    AND 'admin' = ANY(roles)) AS is_taken
"""
_PUT_CODE = """
INSERT INTO setup_codes (tenant_id, code_sha256, expires_at) VALUES ($1, $2, clock_timestamp() + $3::interval)
ON CONFLICT (tenant_id) DO UPDATE SET code_sha256 = excluded.code_sha256, expires_at = excluded.expires_at,
  wrong_tries = 0
"""
_CODE = "SELECT code_sha256, wrong_tries, expires_at <= clock_timestamp() AS is_expired FROM setup_codes"
_REGISTERED = Credential(SignInMethod.REGISTRATION)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A person who wants to register, with an invitation or a setup code."""

    name: str
    display_name: str = ""
    invitation: str = ""
    setup_code: str = ""
    is_vouched_for: bool = False
    """True if a local administrator's token admits the person."""


async def awaits_first(tx: Connection, *, local: bool) -> bool:
    """Returns whether the tenant exists and has no administrator yet. Other users may exist, for example from an
    identity provider. `local` is true on the embedded stack, whose own users are not people."""
    row = await tx.fetchrow(_TENANT, list(LOCAL_USERS) if local else [])
    return row is not None and row["is_there"] and not row["is_taken"]


async def invited_as(tx: Connection, newcomer: Newcomer) -> str:
    """Returns the display name of the registration, or else the one of the invitation.

    Raises: CallerError 403 `invitation_invalid`.
    """
    given = await check_invitation(tx, newcomer.invitation, newcomer.name) if newcomer.invitation else ""
    return newcomer.display_name or given


async def registration_refusal(tx: Connection, newcomer: Newcomer, *, is_open: bool, local: bool) -> CallerError | None:
    """Returns why this person cannot register without an invitation, or None. A wrong setup code is counted, so the
    caller must let the transaction commit."""
    # A missing tenant gets the same error as a closed one, so that callers cannot find out which tenants exist.
    if await awaits_first(tx, local=local):
        if newcomer.is_vouched_for or (is_open and not newcomer.setup_code):
            return None
        return await _try_code(tx, newcomer.setup_code)
    is_there = await tx.fetchval("SELECT true FROM tenants WHERE tenant_id = current_setting('perdure.tenant')")
    if not is_open or not is_there:
        return _closed()
    return code_refusal(newcomer.setup_code, None) if newcomer.setup_code else None


async def _try_code(tx: Connection, given: str) -> CallerError | None:
    stored = await _read_setup_code(tx, lock=True)
    refused = code_refusal(given, stored)
    if refused is not None and given.strip() and stored is not None and not stored.matches(given):
        await tx.execute("UPDATE setup_codes SET wrong_tries = wrong_tries + 1")
    return refused


async def _read_setup_code(tx: Connection, *, lock: bool = False) -> SetupCode | None:
    row = await tx.fetchrow(f"{_CODE} FOR UPDATE" if lock else _CODE)
    return None if row is None else SetupCode(row["code_sha256"], row["is_expired"], row["wrong_tries"])


async def register(
    tx: Connection, newcomer: Newcomer, password_hash: str, *, is_open: bool, local: bool
) -> tuple[str, Credential, bool]:
    """Registers a user with this password. Returns the user's id, their credential, and whether they are the first
    user. Roles are set here and never taken from the caller.

    Raises: CallerError 401 `setup_code_needed`; 403 `setup_code_invalid`, `invitation_needed`, `invitation_invalid`;
    409 `user_exists`, `name_erased`.
    """
    is_first = False
    if newcomer.invitation:
        user_id, credential = await take_invitation(tx, newcomer.invitation, newcomer.name)
        await sign_in.end_all_sessions(tx, user_id, user_id, "a password was set with an invitation")
        if newcomer.display_name:
            await tx.execute("UPDATE users SET display_name = $2 WHERE id = $1", user_id, newcomer.display_name)
    else:
        await tx.execute(_ONE_AT_A_TIME)
        has_key = newcomer.is_vouched_for or bool(newcomer.setup_code)
        is_first = has_key and await awaits_first(tx, local=local)
        if is_first:
            await _use_code(tx, newcomer)
        elif newcomer.setup_code or not is_open:
            raise _closed()
        roles = FIRST_ROLES if is_first else ROLES
        user_id, credential = (
            (await users.add_user(tx, newcomer.name, newcomer.display_name, roles, None)).id,
            _REGISTERED,
        )
    await sign_in.set_password(tx, user_id, password_hash, credential)
    return user_id, credential, is_first


async def _use_code(tx: Connection, newcomer: Newcomer) -> None:
    """Uses up the setup code.

    Raises: CallerError 403 `setup_code_invalid` if it has just become invalid.
    """
    used = await tx.fetchval(
        "DELETE FROM setup_codes WHERE code_sha256 = $1 AND expires_at > clock_timestamp() AND wrong_tries < $2 "
        "RETURNING true",
        code_sha256(newcomer.setup_code),
        MAX_TRIES,
    )
    if used or newcomer.is_vouched_for:
        await tx.execute("DELETE FROM setup_codes")
        return
    raise code_refusal(newcomer.setup_code, await _read_setup_code(tx)) or _closed()


def _closed() -> CallerError:
    return CallerError(
        "invitation_needed", "Registration requires an invitation; ask an administrator for one", status=403
    )


async def ensure_code(owner: Connection, tenant_id: str, before: str, *, local: bool) -> str:
    """Returns the setup code of a tenant without an administrator: `before` if it is still valid, else a new code,
    which replaces the old one. Returns an empty string if the tenant has an administrator. It must run in a transaction
    of the tenant, as the database owner."""
    await owner.execute(_ONE_AT_A_TIME)
    if not await awaits_first(owner, local=local):
        await owner.execute("DELETE FROM setup_codes WHERE tenant_id = $1", tenant_id)
        return ""
    stored = await _read_setup_code(owner, lock=True)
    if before and stored is not None and stored.is_good and stored.matches(before):
        return before
    code = format_code(secrets.token_bytes(CODE_BYTES))
    await owner.execute(_PUT_CODE, tenant_id, code_sha256(code), CODE_LIFETIME)
    return code


_INVITATION_LIFETIME = "interval '7 days'"
_IN_USE = """
(EXISTS (SELECT FROM passwords p WHERE p.user_id = t.id) OR EXISTS (SELECT FROM identities d WHERE d.user_id = t.id)
  OR EXISTS (SELECT FROM api_tokens k WHERE k.user_id = t.id AND NOT k.created_by && t.created_by))
"""
"""SQL: the account has a sign-in method that the inviter did not create."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """A new invitation; its token is shown once."""

    name: str
    token: str
    expires_at: datetime


async def invite(tx: Connection, name: str, actor: str, credential: Credential) -> Invitation:
    """Invites a user of the tenant. An earlier invitation becomes invalid. `credential` is what the actor signed in
    with.

    The user sets a password with the token, once, within 7 days.

    Raises: CallerError 404 `user_not_found`.
    """
    user_id = await tx.fetchval("SELECT id FROM users WHERE name = $1 AND disabled_at IS NULL", name)
    if user_id is None:
        raise CallerError("user_not_found", "User not found", status=404)
    token = f"perdure_invitation_{secrets.token_urlsafe(32)}"
    expires_at = await tx.fetchval(
        "INSERT INTO invitations (token_sha256, tenant_id, user_id, expires_at, created_by) VALUES "
        f"($1, current_setting('perdure.tenant'), $2, now() + {_INVITATION_LIFETIME}, array_remove($3::uuid[], $2)) "
        "ON CONFLICT (user_id) DO UPDATE SET token_sha256 = excluded.token_sha256, expires_at = excluded.expires_at, "
        "created_by = excluded.created_by RETURNING expires_at",
        sha256_hex(token),
        user_id,
        credential.handed_on(actor),
    )
    await audit.record(tx, "user.invited", str(user_id), {"name": name}, actor=actor, turn_id=None)
    return Invitation(name, token, expires_at)


async def check_invitation(tx: Connection, token: str, name: str) -> str:
    """Returns the display name of the user with this name, if the invitation is for them.

    Raises: CallerError 403 `invitation_invalid`.
    """
    found = await tx.fetchval(
        "SELECT u.display_name FROM invitations i JOIN users u ON u.id = i.user_id WHERE i.token_sha256 = $1 "
        "AND i.expires_at > now() AND u.name = $2 AND u.disabled_at IS NULL",
        sha256_hex(token),
        name,
    )
    if found is None:
        raise _invalid()
    return str(found)


async def take_invitation(tx: Connection, token: str, name: str) -> tuple[str, Credential]:
    """Uses up an invitation. Returns the id of the user with this name, and their credential.

    Raises: CallerError 403 `invitation_invalid`.
    """
    row = await tx.fetchrow(
        "WITH taken AS (DELETE FROM invitations i USING users u WHERE i.token_sha256 = $1 AND i.expires_at > now() "
        "AND u.id = i.user_id AND u.name = $2 AND u.disabled_at IS NULL RETURNING u.id, i.created_by) "
        f"SELECT t.*, {_IN_USE} AS in_use FROM taken t",
        sha256_hex(token),
        name,
    )
    if row is None:
        raise _invalid()
    inviters = tuple(map(str, row["created_by"]))
    # An inviter who resets the password of an account in use could act as its owner. A first invitation opens an unused
    # account.
    made = (
        Credential(SignInMethod.INVITATION, inviters)
        if row["in_use"]
        else Credential(SignInMethod.INVITATION, (), inviters)
    )
    return str(row["id"]), made


def _invalid() -> CallerError:
    return CallerError(
        "invitation_invalid",
        "This invitation is for another name, was already used, or has expired; ask an administrator for a new one",
        status=403,
    )
