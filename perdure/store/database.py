"""Connections and tenant transactions.

Every statement runs in a transaction that set its tenant; without one, row-level security shows zero rows. The
role must not be able to look past it, or the program refuses to start.
"""

import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from perdure.contracts.errors import InvariantBroken
from perdure.core.audit import Keyring

Connection = asyncpg.Connection | PoolConnectionProxy
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}|\*")


async def set_up(connection: asyncpg.Connection) -> None:
    """jsonb columns as plain values."""
    await connection.set_type_codec("jsonb", encoder=_encode, decoder=json.loads, schema="pg_catalog")


class TenantConnection(asyncpg.Connection):
    """A connection that knows whose transaction it is in, and with what that tenant's audit rows are signed."""

    __slots__ = ("signer",)
    signer: tuple[str, Keyring] | None

    def act_for(self, tenant_id: str, keyring: Keyring | None) -> None:
        """From here on it is in a transaction of this tenant."""
        self.signer = (tenant_id, keyring) if keyring is not None else None


def signer_of(tx: Connection) -> tuple[str, Keyring]:
    """The tenant of this transaction, and the keys that its audit rows are signed with.

    Raises: InvariantBroken `audit_key_missing`.
    """
    signer: tuple[str, Keyring] | None = getattr(tx, "signer", None)
    if signer is None:
        raise InvariantBroken("audit_key_missing", "this connection was opened without keys to sign audit rows")
    return signer


def _encode(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _begin(tenant_id: str) -> str:
    """The beginning of every transaction, in one round trip; the id is safe to quote by the pattern."""
    if not _TENANT.fullmatch(tenant_id):
        raise InvariantBroken("bad_tenant", "a tenant id has lower-case letters, digits and dashes only")
    return f"BEGIN; SET LOCAL perdure.tenant = '{tenant_id}'"


async def _roll_back(connection: Connection) -> None:
    """Leave no open transaction behind; a connection that cannot even do that is given up."""
    try:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
    except BaseException:
        connection.terminate()
        raise


async def _keep(_: asyncpg.Connection) -> None:
    """Nothing to reset: no session state outlives a transaction here, and the reset costs a round trip."""


async def _refuse_strong_role(pool: asyncpg.Pool) -> None:
    """Close the pool if row-level security does not bind its role.

    Raises: InvariantBroken `role_too_strong`.
    """
    async with pool.acquire() as connection:
        strong = await connection.fetchval("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user")
    if strong is None or strong:
        await pool.close()
        raise InvariantBroken(
            "role_too_strong",
            "the database role is a superuser or bypasses row-level security; give DATABASE_URL a plain role",
        )


class Database:
    """A pool whose only way in is a transaction of one tenant."""

    outages = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)
    """What a query raises where Postgres is away or in trouble, beside OSError."""

    def __init__(self, pool: asyncpg.Pool, wait_seconds: float, keyring: Keyring | None = None) -> None:
        self.pool = pool
        self.keyring = keyring
        self._wait_seconds = wait_seconds

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        most: int = 12,
        application: str = "perdure",
        wait_seconds: float = 15.0,
        plan_once: bool = False,
        keyring: Keyring | None = None,
    ) -> "Database":
        """Open the pool and refuse a role that could look past row-level security.

        `wait_seconds` bounds each of: opening a connection, waiting for a free one, a command, giving up a connection
        on which a command hangs. Without it a Postgres that says nothing holds its callers for minutes. `plan_once`
        plans a prepared statement once a connection and not by its arguments: for work whose statements go by keys.
        Without `keyring` nothing can be audited.

        Raises: InvariantBroken `role_too_strong`; asyncpg's and OS errors where Postgres is not reachable.
        """
        pool = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=most,
            init=set_up,
            connection_class=TenantConnection,
            reset=_keep,
            timeout=wait_seconds,
            command_timeout=wait_seconds,
            server_settings={
                "search_path": "perdure",
                "application_name": application,
                "jit": "off",
                "plan_cache_mode": "force_generic_plan" if plan_once else "auto",
            },
        )
        await _refuse_strong_role(pool)
        return cls(pool, wait_seconds, keyring)

    async def close(self) -> None:
        """Close every connection."""
        await self.pool.close()

    async def execute(self, tenant_id: str, statement: str) -> None:
        """One statement without arguments in a transaction of its own, in a single round trip."""
        begin = _begin(tenant_id)
        async with self.pool.acquire(timeout=self._wait_seconds) as connection:
            try:
                await connection.execute(f"{begin}; {statement}; COMMIT")
            except BaseException:
                await _roll_back(connection)
                raise

    @asynccontextmanager
    async def transaction(
        self, tenant_id: str, turn_id: str | None = None, then: str = ""
    ) -> AsyncIterator[Connection]:
        """A transaction that sees the rows of `tenant_id` only; commits at the end, rolls back on any exception.

        With `turn_id` it holds the lock of that turn's row from its beginning, as every claim must: a statement that
        waits for a lock sees the locked row as it is now and every other row as it was before, so what depends on the
        turn is read by the statements after it. `then` is one more statement of that kind, in the same round trip.
        """
        begin = _begin(tenant_id)
        if turn_id is not None:
            begin += f"; SELECT FROM turns WHERE id = '{UUID(turn_id)}' FOR UPDATE"
        if then:
            begin += f"; {then}"
        async with self.pool.acquire(timeout=self._wait_seconds) as connection:
            try:
                cast(TenantConnection, connection).act_for(tenant_id, self.keyring)
                await connection.execute(begin)
                yield connection
            except BaseException:
                await _roll_back(connection)
                raise
            await connection.execute("COMMIT")

    async def principal_row(self, token_sha256: str) -> asyncpg.Record | None:
        """The owner of a token, by its hash: the one look-up that knows no tenant yet."""
        async with self.pool.acquire(timeout=self._wait_seconds) as connection:
            row: asyncpg.Record | None = await connection.fetchrow("SELECT * FROM principal_of($1)", token_sha256)
        return row

    async def session_row(self, session_id: str) -> asyncpg.Record | None:
        """Whose session this is, with the roles of this moment, or None where it is over."""
        async with self.pool.acquire(timeout=self._wait_seconds) as connection:
            row: asyncpg.Record | None = await connection.fetchrow("SELECT * FROM principal_of_session($1)", session_id)
        return row


# --- Ids are minted here and nowhere else: UUIDv7, so that they sort by time.


def new_id() -> str:
    """A fresh UUIDv7 as text."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10), "big")
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(UUID(int=value))
