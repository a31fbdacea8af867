"""Refresh tokens: each is used once, and has one successor. Postgres knows hashes only.

A successor is made of the token that it follows, so that it can be given again within the grace without being kept.
"""

import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from contracts.digests import sha256_hex
from policy.access_keys import AccessKey, AccessKeys
from policy.refresh import Refresh, RefreshFacts, outcome
from store import sessions
from store.database import Connection

_FORM = re.compile(r"prt\.([a-z0-9][a-z0-9-]{0,62})\.[\w-]{43}", re.ASCII)
_FOUND = """
SELECT r.*, s.user_id, s.ended_at, s.expires_at AS session_expires_at, u.disabled_at, now() AS now
FROM refresh_tokens r JOIN sessions s ON s.id = r.session_id JOIN users u ON u.id = s.user_id
WHERE r.token_sha256 = $1 FOR UPDATE OF r, s
"""


@dataclass(frozen=True, slots=True)
class Rotation:
    """What became of a token that was handed in."""

    outcome: Refresh
    session_id: str = ""
    user_id: str = ""
    successor: str = ""
    """Of ROTATE and REPEAT."""
    expires_at: datetime | None = None


def tenant_of(token: str) -> str | None:
    """The tenant that a token names; None for what is no refresh token. It is believed by the hash alone."""
    found = _FORM.fullmatch(token)
    return found[1] if found else None


async def first(tx: Connection, tenant_id: str, session_id: str, lasts: timedelta) -> str:
    """The first token of a session."""
    token = _token(tenant_id, secrets.token_urlsafe(32))
    await _insert(tx, token, session_id, lasts)
    return token


async def rotate(tx: Connection, tenant_id: str, token: str, keys: AccessKeys, lasts: timedelta) -> Rotation:
    """Hand in a token. Of two at once the second waits for the first, and gets what the first got.

    A betrayed token ends its session in this transaction, so whoever calls must let it commit.
    """
    row = await tx.fetchrow(_FOUND, sha256_hex(token))
    if row is None:
        return Rotation(Refresh.OVER)
    ended = row["ended_at"] or row["disabled_at"] or row["session_expires_at"] <= row["now"]
    found = outcome(RefreshFacts(row["now"], row["expires_at"], row["used_at"], bool(ended)))
    session_id, user_id = str(row["session_id"]), str(row["user_id"])
    if found is Refresh.BETRAYED:
        await sessions.end(tx, session_id, user_id, "a refresh token was used twice")
    if found in (Refresh.BETRAYED, Refresh.OVER):
        return Rotation(found)
    if found is Refresh.REPEAT:
        successor = _again(row, tenant_id, token, keys)
        if successor is None:
            return Rotation(Refresh.OVER)
        return Rotation(found, session_id, user_id, successor, row["session_expires_at"])
    nonce = secrets.token_hex(16)
    successor = _successor(keys.newest, tenant_id, token, nonce)
    await tx.execute(
        "UPDATE refresh_tokens SET used_at = now(), nonce = $2, successor_sha256 = $3 WHERE token_sha256 = $1",
        row["token_sha256"],
        nonce,
        sha256_hex(successor),
    )
    await tx.execute("DELETE FROM refresh_tokens WHERE session_id = $1 AND expires_at < now()", row["session_id"])
    await _insert(tx, successor, session_id, lasts)
    until: datetime = await tx.fetchval(
        "UPDATE sessions SET expires_at = least(now() + $2::interval, began_at + $3::interval) WHERE id = $1 "
        "RETURNING expires_at",
        session_id,
        lasts,
        sessions.MOST,
    )
    return Rotation(found, session_id, user_id, successor, until)


async def _insert(tx: Connection, token: str, session_id: str, lasts: timedelta) -> None:
    await tx.execute(
        "INSERT INTO refresh_tokens (token_sha256, tenant_id, session_id, expires_at) "
        "VALUES ($1, current_setting('perdure.tenant'), $2, now() + $3::interval)",
        sha256_hex(token),
        session_id,
        lasts,
    )


def _token(tenant_id: str, secret: str) -> str:
    return f"prt.{tenant_id}.{secret}"


def _successor(key: AccessKey, tenant_id: str, token: str, nonce: str) -> str:
    return _token(tenant_id, key.derived("refresh token", token, nonce))


def _again(row: asyncpg.Record, tenant_id: str, token: str, keys: AccessKeys) -> str | None:
    """The successor that was given before; None where the key that made it is gone."""
    made = (_successor(key, tenant_id, token, row["nonce"]) for key in keys.keys)
    return next((each for each in made if sha256_hex(each) == row["successor_sha256"]), None)
