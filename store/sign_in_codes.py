"""Codes in links: whoever follows one signs in as the person who asked for it. Each is good once, for a few minutes.

A link ends up in a terminal's scrollback and in a browser's history, where a used code opens nothing. Postgres knows
hashes only.
"""

import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from contracts.digests import sha256_hex
from store import audit
from store.database import Connection

LASTS = timedelta(minutes=15)
_FORM = re.compile(r"([a-z0-9][a-z0-9-]{0,62})\.[\w-]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Code:
    """One that was just made; it is shown once."""

    code: str
    expires_at: datetime


def tenant_of(code: str) -> str | None:
    """The tenant that a code names; None for what is no code. It is believed by the hash alone."""
    found = _FORM.fullmatch(code)
    return found[1] if found else None


async def make(tx: Connection, tenant_id: str, user_id: str) -> Code:
    """A new code of this person; those that nobody used in time go."""
    code = f"{tenant_id}.{secrets.token_urlsafe(24)}"
    await tx.execute("DELETE FROM sign_in_codes WHERE expires_at <= now()")
    expires_at = await tx.fetchval(
        "INSERT INTO sign_in_codes (code_sha256, tenant_id, user_id, expires_at) "
        "VALUES ($1, $2, $3, now() + $4::interval) RETURNING expires_at",
        sha256_hex(code),
        tenant_id,
        user_id,
        LASTS,
    )
    await audit.record(tx, "sign_in_code.made", user_id, {}, actor=user_id, turn_id=None)
    return Code(code, expires_at)


async def take(tx: Connection, code: str) -> str | None:
    """Use it up; whom it was made for, None where it is no code, or no longer. Of two at once one gets it."""
    found = await tx.fetchval(
        "DELETE FROM sign_in_codes c USING users u WHERE c.code_sha256 = $1 AND c.expires_at > now() "
        "AND u.id = c.user_id AND u.disabled_at IS NULL RETURNING u.id",
        sha256_hex(code),
    )
    return str(found) if found is not None else None
