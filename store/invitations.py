"""Invitations: somebody whom an administrator has named sets a password, once, within a week."""

import secrets
from dataclasses import dataclass
from datetime import datetime

from contracts.digests import sha256_hex
from contracts.errors import CallerError
from policy.credentials import Credential, How
from store import audit
from store.database import Connection

_LASTS = "interval '7 days'"
_IN_USE = """
(EXISTS (SELECT FROM passwords p WHERE p.user_id = t.id) OR EXISTS (SELECT FROM identities d WHERE d.user_id = t.id)
  OR EXISTS (SELECT FROM api_tokens k WHERE k.user_id = t.id AND NOT k.created_by && t.created_by))
"""
"""Whether the account has a way in that the inviter did not create."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """One that was just made; its token is shown once."""

    name: str
    token: str
    expires_at: datetime


async def invite(tx: Connection, name: str, actor: str, credential: Credential) -> Invitation:
    """Invite a person of the tenant; an invitation made before is void. `credential` is what the actor is signed in by.

    Raises: CallerError 404 `user_not_found`.
    """
    user_id = await tx.fetchval("SELECT id FROM users WHERE name = $1 AND disabled_at IS NULL", name)
    if user_id is None:
        raise CallerError("user_not_found", "there is no user of this name", status=404)
    token = f"perdure_invitation_{secrets.token_urlsafe(32)}"
    expires_at = await tx.fetchval(
        "INSERT INTO invitations (token_sha256, tenant_id, user_id, expires_at, created_by) VALUES "
        f"($1, current_setting('perdure.tenant'), $2, now() + {_LASTS}, array_remove($3::uuid[], $2)) "
        "ON CONFLICT (user_id) DO UPDATE SET token_sha256 = excluded.token_sha256, expires_at = excluded.expires_at, "
        "created_by = excluded.created_by RETURNING expires_at",
        sha256_hex(token),
        user_id,
        credential.handed_on(actor),
    )
    await audit.record(tx, "user.invited", str(user_id), {"name": name}, actor=actor, turn_id=None)
    return Invitation(name, token, expires_at)


async def check(tx: Connection, token: str, name: str) -> str:
    """The display name of the person of this name, if this is an invitation for them.

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


async def take(tx: Connection, token: str, name: str) -> tuple[str, Credential]:
    """Use it up; the id of the person of this name, and what the person is signed in by from now on.

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
    # An inviter who resets the password of an account that others use could act as its owner; a first invitation
    # opens an account that nobody has used.
    made = Credential(How.INVITATION, inviters) if row["in_use"] else Credential(How.INVITATION, (), inviters)
    return str(row["id"]), made


def _invalid() -> CallerError:
    return CallerError(
        "invitation_invalid",
        "This invitation is not for this name, was used, or has expired; ask an administrator for another one",
        status=403,
    )
