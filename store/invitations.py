"""Invitations: somebody whom an administrator has named sets a password, once, within a week."""

import secrets
from dataclasses import dataclass
from datetime import datetime

from contracts.digests import sha256_hex
from contracts.errors import CallerError
from store import audit
from store.database import Connection

_LASTS = "interval '7 days'"


@dataclass(frozen=True, slots=True)
class Invitation:
    """One that was just made; its token is shown once."""

    name: str
    token: str
    expires_at: datetime


async def invite(tx: Connection, name: str, actor: str) -> Invitation:
    """Invite a person of the tenant; an invitation made before is void.

    Raises: CallerError 404 `user_not_found`.
    """
    user_id = await tx.fetchval("SELECT id FROM users WHERE name = $1 AND disabled_at IS NULL", name)
    if user_id is None:
        raise CallerError("user_not_found", "there is no user of this name", status=404)
    token = f"perdure_invitation_{secrets.token_urlsafe(32)}"
    expires_at = await tx.fetchval(
        "INSERT INTO invitations (token_sha256, tenant_id, user_id, expires_at) "
        f"VALUES ($1, current_setting('perdure.tenant'), $2, now() + {_LASTS}) "
        "ON CONFLICT (user_id) DO UPDATE SET token_sha256 = excluded.token_sha256, expires_at = excluded.expires_at "
        "RETURNING expires_at",
        sha256_hex(token),
        user_id,
    )
    await audit.record(tx, "user.invited", str(user_id), {"name": name}, actor=actor, turn_id=None)
    return Invitation(name, token, expires_at)


async def take(tx: Connection, token: str, name: str) -> str:
    """Use it up; the id of the person of this name, whom it was made for.

    Raises: CallerError 403 `invitation_invalid`.
    """
    user_id = await tx.fetchval(
        "DELETE FROM invitations i USING users u WHERE i.token_sha256 = $1 AND i.expires_at > now() "
        "AND u.id = i.user_id AND u.name = $2 AND u.disabled_at IS NULL RETURNING u.id",
        sha256_hex(token),
        name,
    )
    if user_id is None:
        raise CallerError(
            "invitation_invalid", "this is no invitation for this name, or it was used or is too old", status=403
        )
    return str(user_id)
