"""User sessions. They begin with a sign-in and end with a sign-out, by expiry, or when the user's access is removed."""

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from perdure.contracts.values import sha256_hex
from perdure.core.identity import (
    AccessKey,
    AccessKeys,
    Credential,
    RefreshOutcome,
    RefreshRecord,
    SignInMethod,
    refresh_outcome,
)
from perdure.core.passwords import GuessRate, GuessTally
from perdure.store import audit
from perdure.store.database import Connection, new_id
from perdure.store.valkey import Valkey

MAX_SESSIONS = timedelta(days=90)
"""The maximum duration of a session, even if it is refreshed. After it the user must sign in again."""
_KEPT = "interval '7 days'"
"""Ended sessions are deleted after this time."""
_FORGET = f"""
DELETE FROM sessions WHERE id = ANY(ARRAY(
  SELECT id FROM sessions WHERE expires_at < now() - {_KEPT} ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED))
"""
_REFRESH_TOKEN_FORM = re.compile(r"prt\.([a-z0-9][a-z0-9-]{0,62})\.[\w-]{43}", re.ASCII)
CODE_LIFETIME = timedelta(minutes=15)
_SIGN_IN_CODE_FORM = re.compile(r"([a-z0-9][a-z0-9-]{0,62})\.[\w-]{32}", re.ASCII)
_MAX_LOCAL_KEYS = 20_000
"""The maximum number of keys that a process counts without Valkey. The least recently used ones are dropped."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session that has just begun or was extended."""

    id: str
    user_id: str
    expires_at: datetime


async def begin_session(
    tx: Connection, user_id: str, lifetime: timedelta, credential: Credential, *, local: bool = False
) -> Session:
    """Begins a session for the user who signed in with `credential`. `local` marks sessions of a token that the stack
    created for its own machine."""
    session_id = new_id()
    expires_at = await tx.fetchval(
        "INSERT INTO sessions (id, tenant_id, user_id, local, expires_at, how, created_by, invited_by) VALUES "
        "($1, current_setting('perdure.tenant'), $2, $3, now() + $4::interval, $5, $6, $7) RETURNING expires_at",
        session_id,
        user_id,
        local,
        lifetime,
        credential.how.value,
        credential.created_by,
        credential.invited_by,
    )
    await tx.execute(_FORGET)
    await audit.record(tx, "session.begun", session_id, {"how": credential.how.value}, actor=user_id, turn_id=None)
    return Session(session_id, user_id, expires_at)


async def end_session(tx: Connection, session_id: str, actor: str, why: str) -> bool:
    """Ends a session, even if its tokens are still in use. Returns whether it was open."""
    row = await tx.fetchrow(
        "UPDATE sessions SET ended_at = now() WHERE id = $1 AND ended_at IS NULL RETURNING true", session_id
    )
    if row is None:
        return False
    await audit.record(tx, "session.ended", session_id, {"why": why}, actor=actor, turn_id=None)
    return True


async def end_all_sessions(
    tx: Connection, user_id: str, actor: str, why: str, *, except_session_id: str | None = None
) -> int:
    """Ends all open sessions of this user, except `except_session_id`. Returns their number."""
    rows = await tx.fetch(
        "UPDATE sessions SET ended_at = now() WHERE user_id = $1 AND ended_at IS NULL "
        "AND id IS DISTINCT FROM $2::uuid RETURNING id",
        user_id,
        except_session_id,
    )
    for row in rows:
        await audit.record(tx, "session.ended", str(row["id"]), {"why": why}, actor=actor, turn_id=None)
    return len(rows)


_LOCK_TOKEN = """
SELECT r.*, s.user_id, s.ended_at, s.expires_at AS session_expires_at, u.disabled_at, now() AS now
FROM refresh_tokens r JOIN sessions s ON s.id = r.session_id JOIN users u ON u.id = s.user_id
WHERE r.token_sha256 = $1 FOR UPDATE OF r, s
"""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The result of using a refresh token. Each token is used once and has one successor. Postgres stores only hashes.
    A successor is derived from the token before it. It can therefore be returned again within the grace period without
    being stored."""

    outcome: RefreshOutcome
    session_id: str = ""
    user_id: str = ""
    successor: str = ""
    """The next token; set for ROTATE and REPEAT."""
    expires_at: datetime | None = None


def tenant_of_refresh_token(token: str) -> str | None:
    """Returns the tenant that a token names, or None if the text is not a refresh token. Only the hash authenticates
    the token."""
    found = _REFRESH_TOKEN_FORM.fullmatch(token)
    return found[1] if found else None


async def first_refresh_token(tx: Connection, tenant_id: str, session_id: str, lifetime: timedelta) -> str:
    """Creates the first refresh token of a session and returns its text. Postgres stores only its hash."""
    token = _make_token(tenant_id, secrets.token_urlsafe(32))
    await _insert(tx, token, session_id, lifetime)
    return token


async def rotate_refresh_token(
    tx: Connection, tenant_id: str, token: str, keys: AccessKeys, lifetime: timedelta
) -> Rotation:
    """Uses a refresh token. Of two concurrent requests, the second waits for the first and gets the same result.

    A token used again after the grace period ends its session in this transaction, so the caller must let it commit.
    """
    row = await tx.fetchrow(_LOCK_TOKEN, sha256_hex(token))
    if row is None:
        return Rotation(RefreshOutcome.OVER)
    ended = row["ended_at"] or row["disabled_at"] or row["session_expires_at"] <= row["now"]
    found = refresh_outcome(RefreshRecord(row["now"], row["expires_at"], row["used_at"], bool(ended)))
    session_id, user_id = str(row["session_id"]), str(row["user_id"])
    if found is RefreshOutcome.REUSED:
        await end_session(tx, session_id, user_id, "a refresh token was reused")
    if found in (RefreshOutcome.REUSED, RefreshOutcome.OVER):
        return Rotation(found)
    if found is RefreshOutcome.REPEAT:
        successor = _returned_successor(row, tenant_id, token, keys)
        if successor is None:
            return Rotation(RefreshOutcome.OVER)
        return Rotation(found, session_id, user_id, successor, row["session_expires_at"])
    nonce = secrets.token_hex(16)
    successor = _derive_successor(keys.newest, tenant_id, token, nonce)
    await tx.execute(
        "UPDATE refresh_tokens SET used_at = now(), nonce = $2, successor_sha256 = $3 WHERE token_sha256 = $1",
        row["token_sha256"],
        nonce,
        sha256_hex(successor),
    )
    await tx.execute("DELETE FROM refresh_tokens WHERE session_id = $1 AND expires_at < now()", row["session_id"])
    await _insert(tx, successor, session_id, lifetime)
    until: datetime = await tx.fetchval(
        "UPDATE sessions SET expires_at = least(now() + $2::interval, began_at + $3::interval) WHERE id = $1 "
        "RETURNING expires_at",
        session_id,
        lifetime,
        MAX_SESSIONS,
    )
    return Rotation(found, session_id, user_id, successor, until)


async def _insert(tx: Connection, token: str, session_id: str, lifetime: timedelta) -> None:
    await tx.execute(
        "INSERT INTO refresh_tokens (token_sha256, tenant_id, session_id, expires_at) "
        "VALUES ($1, current_setting('perdure.tenant'), $2, now() + $3::interval)",
        sha256_hex(token),
        session_id,
        lifetime,
    )


def _make_token(tenant_id: str, secret: str) -> str:
    return f"prt.{tenant_id}.{secret}"


def _derive_successor(key: AccessKey, tenant_id: str, token: str, nonce: str) -> str:
    return _make_token(tenant_id, key.derive("refresh token", token, nonce))


def _returned_successor(row: asyncpg.Record, tenant_id: str, token: str, keys: AccessKeys) -> str | None:
    """Returns the successor that was returned before, or None if the key that made it was removed."""
    made = (_derive_successor(key, tenant_id, token, row["nonce"]) for key in keys.keys)
    return next((each for each in made if sha256_hex(each) == row["successor_sha256"]), None)


@dataclass(frozen=True, slots=True)
class Code:
    """A new code; it is shown once."""

    code: str
    expires_at: datetime


def tenant_of_sign_in_code(code: str) -> str | None:
    """Returns the tenant that a code names, or None if the text is not a code. Only the hash authenticates the code."""
    found = _SIGN_IN_CODE_FORM.fullmatch(code)
    return found[1] if found else None


async def make_sign_in_code(tx: Connection, tenant_id: str, user_id: str) -> Code:
    """Creates a code for this user and deletes expired codes. A browser that opens the link of a code is signed in as
    its requester. A code works once and expires after 15 minutes. Links remain in a terminal's scrollback and in a
    browser's history, but used codes are worthless. Postgres stores only hashes."""
    code = f"{tenant_id}.{secrets.token_urlsafe(24)}"
    await tx.execute("DELETE FROM sign_in_codes WHERE expires_at <= now()")
    expires_at = await tx.fetchval(
        "INSERT INTO sign_in_codes (code_sha256, tenant_id, user_id, expires_at) "
        "VALUES ($1, $2, $3, now() + $4::interval) RETURNING expires_at",
        sha256_hex(code),
        tenant_id,
        user_id,
        CODE_LIFETIME,
    )
    await audit.record(tx, "sign_in_code.made", user_id, {}, actor=user_id, turn_id=None)
    return Code(code, expires_at)


async def take_sign_in_code(tx: Connection, code: str) -> str | None:
    """Uses up a code and returns its user's id, or None if the code is invalid or has expired. Only one of two
    concurrent requests succeeds."""
    found = await tx.fetchval(
        "DELETE FROM sign_in_codes c USING users u WHERE c.code_sha256 = $1 AND c.expires_at > now() "
        "AND u.id = c.user_id AND u.disabled_at IS NULL RETURNING u.id",
        sha256_hex(code),
    )
    return str(found) if found is not None else None


@dataclass(frozen=True, slots=True)
class StoredPassword:
    """The password hash of a user who can sign in with it. Users without a password sign in with a token or through an
    identity provider."""

    user_id: str
    hash: str
    credential: Credential


async def password_of_name(tx: Connection, name: str) -> StoredPassword | None:
    """Returns the password of the user with this name, or None if the user has none or is disabled."""
    row = await tx.fetchrow(
        "SELECT u.id, p.hash, p.created_by, p.invited_by FROM users u JOIN passwords p ON p.user_id = u.id "
        "WHERE u.name = $1 AND u.disabled_at IS NULL",
        name,
    )
    if row is None:
        return None
    made = Credential(SignInMethod.PASSWORD, tuple(map(str, row["created_by"])), tuple(map(str, row["invited_by"])))
    return StoredPassword(str(row["id"]), row["hash"], made)


async def password_of_user(tx: Connection, user_id: str, *, lock: bool = False) -> str | None:
    """Returns the user's password hash. With `lock`, it cannot change before the transaction ends."""
    statement = "SELECT hash FROM passwords WHERE user_id = $1" + (" FOR SHARE" if lock else "")
    found: str | None = await tx.fetchval(statement, user_id)
    return found


async def set_password(tx: Connection, user_id: str, password_hash: str, credential: Credential) -> None:
    """Replaces the user's password. `credential` is what the caller signed in with; the users who created it may know
    the password."""
    await tx.execute(
        "INSERT INTO passwords (user_id, tenant_id, hash, created_by, invited_by) "
        "VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4) ON CONFLICT (user_id) DO UPDATE SET "
        "hash = excluded.hash, set_at = now(), created_by = excluded.created_by, invited_by = excluded.invited_by",
        user_id,
        password_hash,
        credential.created_by,
        credential.invited_by,
    )
    await audit.record(tx, "user.password_set", user_id, {}, actor=user_id, turn_id=None)


Key = tuple[GuessRate, str]
"""The kind of count and the value that it is counted for."""
_PREFIX = "perdure:guesses"
# A guess is counted before it is checked, and only if the tallies have not changed since they were read. Concurrent
# guesses therefore get as many attempts as sequential ones.
_COUNT = """
for i, key in ipairs(KEYS) do
  if tonumber(redis.call('HGET', key, 'failures') or 0) ~= tonumber(ARGV[3 * i - 2]) then return 0 end
end
local now = redis.call('TIME')
for i, key in ipairs(KEYS) do
  local failures = redis.call('HINCRBY', key, 'failures', 1)
  redis.call('HSET', key, 'last', now[1] .. '.' .. string.format('%06d', now[2]))
  if failures == 1 or ARGV[3 * i] == '0' then redis.call('EXPIRE', key, ARGV[3 * i - 1]) end
end
return 1
"""
_TAKE_BACK = """
for _, key in ipairs(KEYS) do
  if tonumber(redis.call('HGET', key, 'failures') or 0) > 1 then
    redis.call('HINCRBY', key, 'failures', -1)
  else
    redis.call('DEL', key)
  end
end
"""


class GuessCounter:
    """The tallies of wrong passwords. Valkey counts them for all API processes. If Valkey is unavailable, each process
    counts separately."""

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey
        self._alone: OrderedDict[str, GuessTally] = OrderedDict()

    async def read(self, keys: Sequence[Key]) -> tuple[float, list[GuessTally]]:
        """Returns the current time of the counting clock, and the tally of each key."""
        names = [_name(key) for key in keys]

        async def work() -> tuple[float, list[GuessTally]]:
            async with self._valkey.client.pipeline(transaction=False) as pipeline:
                pipeline.time()
                for name in names:
                    pipeline.hmget(name, "failures", "last")
                (seconds, micros), *found = await pipeline.execute()
            return float(seconds) + micros / 1e6, [GuessTally(int(each[0] or 0), float(each[1] or 0)) for each in found]

        shared = await self._valkey.attempt(work)
        if shared is not None:
            return shared
        now = time.time()
        return now, [self._alone_of(key, now) for key in keys]

    async def count(self, keys: Sequence[Key], seen: Sequence[GuessTally]) -> bool:
        """Counts one wrong guess under each key. Returns False if another guess was counted since `seen` was read."""
        names = [_name(key) for key in keys]
        given = [
            str(each)
            for (pace, _), tally in zip(keys, seen, strict=True)
            for each in (tally.failures, pace.kept_seconds, int(pace.is_window))
        ]

        async def work() -> int:
            answer: int = await self._valkey.client.eval(_COUNT, len(names), *names, *given)
            return answer

        shared = await self._valkey.attempt(work)
        if shared is not None:
            return bool(shared)
        now = time.time()
        for key, name in zip(keys, names, strict=True):
            self._alone[name] = GuessTally(self._alone_of(key, now).failures + 1, now)
            self._alone.move_to_end(name)
        while len(self._alone) > _MAX_LOCAL_KEYS:
            self._alone.popitem(last=False)
        return True

    def _alone_of(self, key: Key, now: float) -> GuessTally:
        tally = self._alone.get(_name(key), GuessTally())
        return tally if now - tally.last_at < key[0].kept_seconds else GuessTally()

    async def take_back(self, keys: Sequence[Key]) -> None:
        """Removes a counted guess, because it was right or was never checked."""
        names = [_name(key) for key in keys]

        async def work() -> bool:
            await self._valkey.client.eval(_TAKE_BACK, len(names), *names)
            return True

        await self._valkey.attempt(work)
        for name in names:
            tally = self._alone.get(name)
            if tally is not None:
                self._alone[name] = GuessTally(max(0, tally.failures - 1), tally.last_at)

    async def forget(self, keys: Sequence[Key]) -> None:
        """Deletes the counted attempts of these keys, after a successful sign-in."""
        names = [_name(key) for key in keys]

        async def work() -> bool:
            await self._valkey.client.delete(*names)
            return True

        await self._valkey.attempt(work)
        for name in names:
            self._alone.pop(name, None)


def _name(key: Key) -> str:
    """Returns the key without the account's name. The caller typed that name, and it may be a password by mistake."""
    pace, of = key
    return f"{_PREFIX}:{pace.name}:{sha256_hex(of)[:32]}"
