"""Sessions of people: begun by signing in, ended by signing out, by time, or by whoever takes the person's access."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from policy.credentials import Credential
from store import audit
from store.database import Connection
from store.ids import new_id

MOST = timedelta(days=90)
"""However often it is refreshed, a session ends this long after it began: the person signs in again."""
_KEPT = "interval '7 days'"
"""After its end a session is nobody's question any more."""
_FORGET = f"""
DELETE FROM sessions WHERE id = ANY(ARRAY(
  SELECT id FROM sessions WHERE expires_at < now() - {_KEPT} ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED))
"""


@dataclass(frozen=True, slots=True)
class Session:
    """One that has just begun or been prolonged."""

    id: str
    user_id: str
    expires_at: datetime


async def begin(
    tx: Connection, user_id: str, lasts: timedelta, credential: Credential, *, local: bool = False
) -> Session:
    """A new session, opened by `credential`. `local`: by a token of the stack for its own machine."""
    session_id = new_id()
    expires_at = await tx.fetchval(
        "INSERT INTO sessions (id, tenant_id, user_id, local, expires_at, how, created_by, invited_by) VALUES "
        "($1, current_setting('perdure.tenant'), $2, $3, now() + $4::interval, $5, $6, $7) RETURNING expires_at",
        session_id,
        user_id,
        local,
        lasts,
        credential.how.value,
        credential.created_by,
        credential.invited_by,
    )
    await tx.execute(_FORGET)
    await audit.record(tx, "session.begun", session_id, {"how": credential.how.value}, actor=user_id, turn_id=None)
    return Session(session_id, user_id, expires_at)


async def end(tx: Connection, session_id: str, actor: str, why: str) -> bool:
    """End it, whoever still has a token of it; whether it was open."""
    row = await tx.fetchrow(
        "UPDATE sessions SET ended_at = now() WHERE id = $1 AND ended_at IS NULL RETURNING true", session_id
    )
    if row is None:
        return False
    await audit.record(tx, "session.ended", session_id, {"why": why}, actor=actor, turn_id=None)
    return True


async def end_all(tx: Connection, user_id: str, actor: str, why: str, *, but: str | None = None) -> int:
    """End every open session of this person, except `but`; how many there were."""
    rows = await tx.fetch(
        "UPDATE sessions SET ended_at = now() WHERE user_id = $1 AND ended_at IS NULL "
        "AND id IS DISTINCT FROM $2::uuid RETURNING id",
        user_id,
        but,
    )
    for row in rows:
        await audit.record(tx, "session.ended", str(row["id"]), {"why": why}, actor=actor, turn_id=None)
    return len(rows)
