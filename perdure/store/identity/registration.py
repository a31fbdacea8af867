"""Registration. The first user of a tenant registers with a setup code and becomes its administrator. Later users need
an invitation, unless the operator lets everyone register as a requester."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from perdure.contracts.errors import CallerError, PerdureError
from perdure.contracts.values import sha256_hex
from perdure.core.approvals.relations import Opening
from perdure.core.identity import (
    CODE_BYTES,
    MAX_TRIES,
    TRIES_KEPT,
    CodeEnd,
    Credential,
    SetupCode,
    SignInMethod,
    WrongTries,
    code_refusal,
    code_sha256,
    counted_under,
    format_code,
    seconds_to_wait,
)
from perdure.core.request_origin import networks_of
from perdure.store import audit
from perdure.store.database import Connection
from perdure.store.identity import origins, sign_in, users

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
_OWN_TENANT = "tenant_id = current_setting('perdure.tenant')"
_PUT_CODE = """
INSERT INTO setup_codes (tenant_id, code_sha256, expires_at) VALUES ($1, $2, clock_timestamp() + $3::interval)
ON CONFLICT (tenant_id) DO UPDATE SET code_sha256 = excluded.code_sha256, expires_at = excluded.expires_at,
  ended_at = NULL, end_reason = NULL RETURNING expires_at
"""
_CODE = """
SELECT code_sha256, expires_at, ended_at > clock_timestamp() - $1::interval AS ended_lately,
  CASE WHEN ended_at IS NOT NULL THEN end_reason WHEN expires_at <= clock_timestamp() THEN 'expired' END AS end_reason,
  coalesce(ended_at, expires_at) AS ended_at
FROM setup_codes
"""
_END_CODE = f"""
UPDATE setup_codes SET ended_at = clock_timestamp(), end_reason = $1 WHERE ended_at IS NULL AND {_OWN_TENANT}
"""
_TRIES = """
SELECT address, wrong_tries, extract(epoch FROM clock_timestamp() - last_at)::float8 AS seconds_ago
FROM setup_code_tries WHERE address = ANY($1) AND last_at > clock_timestamp() - $2::interval
"""
_COUNTED = "SELECT count(*) FROM setup_code_tries WHERE last_at > clock_timestamp() - $1::interval"
_FORGET_TRIES = f"DELETE FROM setup_code_tries WHERE last_at <= clock_timestamp() - $1::interval AND {_OWN_TENANT}"
_FORGET_ALL_TRIES = f"DELETE FROM setup_code_tries WHERE {_OWN_TENANT}"
_COUNT_TRY = """
INSERT INTO setup_code_tries AS t (tenant_id, address, wrong_tries, last_at)
VALUES (current_setting('perdure.tenant'), $1, 1, clock_timestamp())
ON CONFLICT (tenant_id, address) DO UPDATE SET wrong_tries = t.wrong_tries + 1, last_at = excluded.last_at
RETURNING wrong_tries
"""
_REGISTERED = Credential(SignInMethod.REGISTRATION)


@dataclass(frozen=True, slots=True)
class Client:
    """Signs of other users in the registering client."""

    signed_in_as: tuple[str, ...] = ()
    """The user as whom it is signed in, and the creators of that credential."""
    is_at: Callable[[str], bool] = lambda _: False
    """Returns whether it is at the address of this keyed digest."""
    is_of: Callable[[str], bool] = lambda _: False
    """Returns whether this user has signed in with this browser before."""
    device_marks: Sequence[str] = ()
    """The names of its device cookies (`device_mark`), which are not checked."""

    def shares(self, made_at: str, inviters: Sequence[str]) -> bool | None:
        """Returns whether the client is at the address where the invitation was made, or in a browser of an inviter.
        None if it is unknown."""
        if any(map(self.is_of, inviters)) or not set(inviters).isdisjoint(self.signed_in_as):
            return True
        return self.is_at(made_at) if made_at else None

    async def users(self, tx: Connection) -> tuple[str, ...]:
        """Returns the user as whom it is signed in, the creators of that credential, and the users who have signed in
        with its browser before. Without the last, signing out would hide who registers."""
        owners = filter(self.is_of, await origins.users_of_marks(tx, self.device_marks))
        return tuple(dict.fromkeys((*self.signed_in_as, *owners)))


UNKNOWN_CLIENT = Client()


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A person who wants to register, with an invitation or a setup code."""

    name: str
    display_name: str = ""
    invitation: str = ""
    setup_code: str = ""
    is_vouched_for: bool = False
    """True if a local administrator's token admits the person."""
    address: str = ""
    """The client's address, for which wrong setup codes are counted."""
    client: Client = UNKNOWN_CLIENT


@dataclass(frozen=True, slots=True)
class CodeState:
    """The state of the setup code, as the sign-in page shows it."""

    is_valid: bool = False
    end: CodeEnd | None = None
    """The reason why it cannot be used; None if it ended more than a day ago because of an administrator."""
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class IssuedCode:
    """A valid setup code in plain text. It is empty if the tenant has an administrator."""

    code: str = field(default="", repr=False)
    expires_at: datetime | None = None


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


async def code_state(tx: Connection, *, local: bool) -> CodeState:
    """Returns whether the setup code of the tenant can be used, or the reason why not."""
    is_awaited = await awaits_first(tx, local=local)
    row = await tx.fetchrow(_CODE, CODE_LIFETIME)
    if row is None:
        return CodeState(end=CodeEnd.MISSING) if is_awaited else CodeState()
    if is_awaited and row["end_reason"] is None:
        return CodeState(is_valid=True)
    if is_awaited:
        end = CodeEnd(row["end_reason"]).while_awaited()
        return CodeState(end=end, ended_at=None if end is CodeEnd.MISSING else row["ended_at"])
    return CodeState(end=CodeEnd(row["end_reason"]), ended_at=row["ended_at"]) if row["ended_lately"] else CodeState()


async def registration_refusal(
    tx: Connection, newcomer: Newcomer, *, is_open: bool, local: bool
) -> PerdureError | None:
    """Returns why this person cannot register without an invitation, or None. A wrong setup code is counted, so the
    caller must let the transaction commit. `details.tries_left` of the error is 0 if the address must then wait
    for `details.retry_after_seconds`."""
    if await awaits_first(tx, local=local):
        if newcomer.is_vouched_for or (is_open and not newcomer.setup_code):
            return None
        return await _try_code(tx, newcomer)
    return await _refusal_of_later_user(tx, newcomer, is_open=is_open)


async def _refusal_of_later_user(tx: Connection, newcomer: Newcomer, *, is_open: bool) -> CallerError | None:
    # A missing tenant gets the same error as a closed one, so that callers cannot find out which tenants exist.
    if newcomer.setup_code:
        stored = await _read_setup_code(tx)
        if stored is not None and stored.matches(newcomer.setup_code):
            end = stored.end if stored.end is CodeEnd.USED else CodeEnd.ADMINISTRATOR_EXISTS
            return code_refusal(newcomer.setup_code, replace(stored, end=end))
    is_there = await tx.fetchval("SELECT true FROM tenants WHERE tenant_id = current_setting('perdure.tenant')")
    if not is_open or not is_there:
        return _closed()
    return code_refusal(newcomer.setup_code, None) if newcomer.setup_code else None


async def _try_code(tx: Connection, newcomer: Newcomer) -> PerdureError | None:
    """Checks the code of a first user. The lock of the code's row makes simultaneous tries sequential."""
    stored = await _read_awaited_code(tx, lock=True)
    if stored is None or stored.end is not None or not newcomer.setup_code.strip():
        return code_refusal(newcomer.setup_code, stored)
    names = networks_of(newcomer.address)
    rows = await tx.fetch(_TRIES, names, TRIES_KEPT)
    tries = {row["address"]: WrongTries(row["wrong_tries"], row["seconds_ago"]) for row in rows}
    name = counted_under(names, tries, await tx.fetchval(_COUNTED, TRIES_KEPT))
    if name in tries and (limited := tries[name].refusal()):
        return limited
    refused = code_refusal(newcomer.setup_code, stored)
    if refused is not None:
        await tx.execute(_FORGET_TRIES, TRIES_KEPT)
        number = await tx.fetchval(_COUNT_TRY, name)
        refused.details["tries_left"] = -number % MAX_TRIES
        if seconds := seconds_to_wait(number):
            refused.details["retry_after_seconds"] = seconds
    return refused


async def _read_setup_code(tx: Connection, *, lock: bool = False) -> SetupCode | None:
    row = await tx.fetchrow(f"{_CODE} FOR UPDATE" if lock else _CODE, CODE_LIFETIME)
    if row is None:
        return None
    end = None if row["end_reason"] is None else CodeEnd(row["end_reason"])
    return SetupCode(row["code_sha256"], end, row["ended_at"])


async def _read_awaited_code(tx: Connection, *, lock: bool = False) -> SetupCode | None:
    """Returns the code of a tenant that awaits its first user."""
    stored = await _read_setup_code(tx, lock=lock)
    return stored if stored is None or stored.end is None else replace(stored, end=stored.end.while_awaited())


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
        user_id, credential = await take_invitation(tx, newcomer.invitation, newcomer.name, newcomer.client)
        await sign_in.end_all_sessions(tx, user_id, user_id, "a password was set with an invitation")
        if newcomer.display_name:
            await tx.execute("UPDATE users SET display_name = $2 WHERE id = $1", user_id, newcomer.display_name)
    else:
        await tx.execute(_ONE_AT_A_TIME)
        has_key = newcomer.is_vouched_for or bool(newcomer.setup_code)
        is_first = has_key and await awaits_first(tx, local=local)
        if is_first:
            await _use_code(tx, newcomer)
        elif refusal := await _refusal_of_later_user(tx, newcomer, is_open=is_open):
            raise refusal
        roles = FIRST_ROLES if is_first else ROLES
        user_id, credential = (
            (await users.add_user(tx, newcomer.name, newcomer.display_name, roles, None)).id,
            _REGISTERED,
        )
        opened = Opening.SETUP_CODE if is_first else Opening.REGISTRATION
        opened_as = () if is_first else await newcomer.client.users(tx)
        await origins.record_opening(tx, user_id, opened, opened_as=opened_as)
    await sign_in.set_password(tx, user_id, password_hash, credential)
    return user_id, credential, is_first


async def _use_code(tx: Connection, newcomer: Newcomer) -> None:
    """Uses up the setup code. Its record stays, with the reason.

    Raises: CallerError 403 `setup_code_invalid` if it has just become invalid.
    """
    used = await tx.fetchval(
        f"{_END_CODE} AND code_sha256 = $2 AND expires_at > clock_timestamp() RETURNING true",
        CodeEnd.USED.value,
        code_sha256(newcomer.setup_code),
    )
    if used or newcomer.is_vouched_for:
        await _end_code(tx)
        return
    raise code_refusal(newcomer.setup_code, await _read_awaited_code(tx)) or _closed()


async def _end_code(tx: Connection) -> None:
    """Ends the code, if it has not ended, because the tenant has an administrator; forgets the wrong tries."""
    await tx.execute(_END_CODE, CodeEnd.ADMINISTRATOR_EXISTS.value)
    await tx.execute(_FORGET_ALL_TRIES)


def _closed() -> CallerError:
    return CallerError(
        "invitation_needed", "Registration requires an invitation; ask an administrator for one", status=403
    )


async def ensure_code(owner: Connection, tenant_id: str, before: str, *, local: bool) -> IssuedCode:
    """Returns the setup code of a tenant without an administrator: `before` if it is still valid, else a new code,
    which replaces the old one. No address must wait afterwards. It must run in a transaction of the tenant, as the
    database owner."""
    await owner.execute(_ONE_AT_A_TIME)
    if not await awaits_first(owner, local=local):
        await _end_code(owner)
        return IssuedCode()
    await owner.execute(_FORGET_ALL_TRIES)
    row = await owner.fetchrow(f"{_CODE} FOR UPDATE", CODE_LIFETIME)
    if before and row is not None and row["end_reason"] is None and row["code_sha256"] == code_sha256(before):
        return IssuedCode(before, row["expires_at"])
    code = format_code(secrets.token_bytes(CODE_BYTES))
    return IssuedCode(code, await owner.fetchval(_PUT_CODE, tenant_id, code_sha256(code), CODE_LIFETIME))


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


async def invite(tx: Connection, name: str, actor: str, credential: Credential, made_at: str = "") -> Invitation:
    """Invites a user of the tenant. An earlier invitation becomes invalid. `credential` is what the actor signed in
    with, and `made_at` a keyed digest of the client's address.

    The user sets a password with the token, once, within 7 days.

    Raises: CallerError 404 `user_not_found`; 409 `user_of_gateway`.
    """
    await users.refuse_subject(tx, name)
    user_id = await tx.fetchval("SELECT id FROM users WHERE name = $1 AND disabled_at IS NULL", name)
    if user_id is None:
        raise CallerError("user_not_found", "User not found", status=404)
    token = f"perdure_invitation_{secrets.token_urlsafe(32)}"
    expires_at = await tx.fetchval(
        "INSERT INTO invitations (token_sha256, tenant_id, user_id, expires_at, created_by, made_at) "
        f"VALUES ($1, current_setting('perdure.tenant'), $2, now() + {_INVITATION_LIFETIME}, "
        "array_remove($3::uuid[], $2), $4) "
        "ON CONFLICT (user_id) DO UPDATE SET token_sha256 = excluded.token_sha256, expires_at = excluded.expires_at, "
        "created_by = excluded.created_by, made_at = excluded.made_at RETURNING expires_at",
        sha256_hex(token),
        user_id,
        credential.handed_on(actor),
        made_at,
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


async def take_invitation(
    tx: Connection, token: str, name: str, client: Client = UNKNOWN_CLIENT
) -> tuple[str, Credential]:
    """Uses up an invitation. Returns the id of the user with this name, and their credential. A first invitation opens
    the account, and what the client shows of the inviter is recorded.

    Raises: CallerError 403 `invitation_invalid`.
    """
    row = await tx.fetchrow(
        "WITH taken AS (DELETE FROM invitations i USING users u WHERE i.token_sha256 = $1 AND i.expires_at > now() "
        "AND u.id = i.user_id AND u.name = $2 AND u.disabled_at IS NULL RETURNING u.id, i.created_by, i.made_at) "
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
    if not row["in_use"]:
        await origins.record_opening(
            tx,
            str(row["id"]),
            Opening.INVITATION,
            opened_as=client.signed_in_as,
            invited_by=inviters,
            invited_near=client.shares(row["made_at"], inviters),
        )
    return str(row["id"]), made


def _invalid() -> CallerError:
    return CallerError(
        "invitation_invalid",
        "This invitation is for another name, was already used, or has expired; ask an administrator for a new one",
        status=403,
    )
