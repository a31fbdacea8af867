"""Connections and transactions of tenants.

Every statement runs in a transaction that sets its tenant. Without a tenant, row-level security returns no rows. The
program refuses to start if its role can bypass row-level security.

Each transaction makes its own settings too, so that no state is needed between transactions. A pooler such as PgBouncer
in transaction mode, which gives each transaction to another connection of Postgres, can therefore be between them.
"""

import json
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, cast
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from perdure.contracts.errors import InvariantBroken
from perdure.core.audit import Keyring

T = TypeVar("T")
Connection = asyncpg.Connection | PoolConnectionProxy
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}|\*")
_CACHED_STATEMENTS = 100
_PROBES = 4
"""A probe finds nothing if the pooler opens a connection at that moment and gives it to the second client."""
_PROBE_SECONDS = 5.0


async def set_up(connection: asyncpg.Connection) -> None:
    """Makes the connection convert between jsonb columns and plain Python values."""
    await connection.set_type_codec("jsonb", encoder=_encode, decoder=json.loads, schema="pg_catalog")


class TenantConnection(asyncpg.Connection):
    """A connection with the tenant of its transaction, and the keys that sign the tenant's audit rows."""

    __slots__ = ("signer",)
    signer: tuple[str, Keyring] | None

    def act_for(self, tenant_id: str, keyring: Keyring | None) -> None:
        """Sets the tenant of the transaction that begins."""
        self.signer = (tenant_id, keyring) if keyring is not None else None


async def reach_postgres(name: str, opening: Awaitable[T], advice: str = "") -> T:
    """Returns the result of the first use of the Postgres that the variable `name` describes.

    Raises: SystemExit that names the variable, if Postgres is unavailable or rejects it.
    """
    try:
        return await opening
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, InvariantBroken) as error:
        lines = (error.message if isinstance(error, InvariantBroken) else str(error)).splitlines()
        # Postgres's hint to run initdb would not bring data back.
        why = "; ".join(line for line in lines if "initdb" not in line) or type(error).__name__
        raise SystemExit(
            f"{name}: cannot use this Postgres: {why}; {advice or f'start it, or correct {name}'}"
        ) from None


def signer_of(tx: Connection) -> tuple[str, Keyring]:
    """Returns the tenant of this transaction and the keys that sign its audit rows.

    Raises: InvariantBroken `audit_key_missing`.
    """
    signer: tuple[str, Keyring] | None = getattr(tx, "signer", None)
    if signer is None:
        raise InvariantBroken("audit_key_missing", "this connection has no keys to sign audit rows")
    return signer


def _encode(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _begin(settings: str, tenant_id: str) -> str:
    """Returns the first statements of a transaction, sent in one round trip. The pattern makes the tenant id safe to
    quote."""
    if not _TENANT.fullmatch(tenant_id):
        raise InvariantBroken("bad_tenant", "a tenant id can contain only lower-case letters, digits and dashes")
    return f"BEGIN; {settings}; SET LOCAL perdure.tenant = '{tenant_id}'"


async def _roll_back(connection: Connection) -> None:
    """Rolls back the open transaction. A connection that cannot roll back is terminated."""
    try:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
    except BaseException:
        connection.terminate()
        raise


async def _skip_reset(_: asyncpg.Connection) -> None:
    """Resets nothing: no session state outlives a transaction here, and a reset costs a round trip."""


async def _refuse_lost_statements(pool: asyncpg.Pool) -> None:
    """Checks that a prepared statement outlives its transaction. Behind a pooler in transaction mode it does not: while
    the second connection has a transaction, the first one uses another connection of Postgres.

    Raises: InvariantBroken `statements_lost`, or `one_connection` if Postgres has none for the second one.
    """
    try:
        async with pool.acquire() as first, pool.acquire() as second:
            await _probe_statements(first, second)
    except TimeoutError:
        raise InvariantBroken(
            "one_connection",
            "a second connection gets no answer here, as behind a pooler that has only one connection; give its pool "
            "more, and if it is in transaction mode, also set PERDURE_STATEMENT_CACHE=false",
        ) from None


async def _probe_statements(first: Connection, second: Connection) -> None:
    """Raises: InvariantBroken `statements_lost`; TimeoutError."""
    for probe in range(_PROBES):
        statement = await first.prepare("SELECT 1", name=f"perdure_{os.urandom(8).hex()}")
        for _ in range(probe):  # a pooler can hand out its connections in turn
            await second.execute("SELECT 1")
        await second.execute("BEGIN")
        try:
            await statement.fetchval(timeout=_PROBE_SECONDS)
        except asyncpg.InvalidSQLStatementNameError:
            raise InvariantBroken(
                "statements_lost",
                "prepared statements do not outlive a transaction here, as behind a pooler in transaction mode; "
                "set PERDURE_STATEMENT_CACHE=false",
            ) from None
        finally:
            await _roll_back(second)


class Database:
    """A connection pool that allows only transactions of one tenant."""

    outages = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)
    """The exceptions of a query, besides OSError, if Postgres is unavailable or in trouble."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        wait_seconds: float,
        keyring: Keyring | None = None,
        *,
        plan_once: bool = False,
        statement_cache: bool = True,
    ) -> None:
        self.pool = pool
        self.keyring = keyring
        self._wait_seconds = wait_seconds
        self._settings = "SET LOCAL search_path = perdure; SET LOCAL jit = off"
        if plan_once:
            self._settings += "; SET LOCAL plan_cache_mode = force_generic_plan"
        self._statement_cache = statement_cache
        self.on_error: Callable[[Exception], None] | None = None
        """Called with every exception that ends a transaction."""

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        max_connections: int = 12,
        application: str = "perdure",
        wait_seconds: float = 15.0,
        plan_once: bool = False,
        statement_cache: bool = True,
        any_role: bool = False,
        keyring: Keyring | None = None,
    ) -> "Database":
        """Opens the pool. Its role must not bypass row-level security, unless `any_role` is set.

        `wait_seconds` limits each of these: opening a connection, waiting for a free one, one command, and giving up a
        connection on which a command hangs. Without it, a Postgres that does not respond blocks its callers for
        minutes. `plan_once` plans a prepared statement once per connection, whatever its arguments; it is for
        statements that use keys. Without `statement_cache` a statement with arguments takes two round trips. Without
        `keyring` no audit rows can be written.

        Raises: InvariantBroken `role_too_strong`, or `statements_lost` if the statement cache cannot work here;
        asyncpg's and OS errors if Postgres is not reachable.
        """
        pool = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=max_connections,
            init=set_up,
            connection_class=TenantConnection,
            reset=_skip_reset,
            timeout=wait_seconds,
            command_timeout=wait_seconds,
            statement_cache_size=_CACHED_STATEMENTS if statement_cache else 0,
            server_settings={"application_name": application},
        )
        database = cls(pool, wait_seconds, keyring, plan_once=plan_once, statement_cache=statement_cache)
        await database._check(any_role=any_role)
        return database

    async def _check(self, *, any_role: bool) -> None:
        """Closes the pool and raises InvariantBroken if it cannot be used."""
        try:
            if not any_role:
                await self._refuse_strong_role()
            if self._statement_cache and self.pool.get_max_size() > 1:
                await _refuse_lost_statements(self.pool)
        except BaseException:
            await self.pool.close()
            raise

    async def _refuse_strong_role(self) -> None:
        """Checks that the role cannot bypass row-level security.

        Raises: InvariantBroken `role_too_strong`.
        """
        query = "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
        async with self.without_tenant() as connection:
            strong = await connection.fetchval(query)
        if strong is None or strong:
            raise InvariantBroken(
                "role_too_strong",
                "the database role is a superuser or bypasses row-level security; give DATABASE_URL a plain role",
            )

    async def close(self) -> None:
        """Closes all connections."""
        await self.pool.close()

    async def execute(self, tenant_id: str, statement: str) -> None:
        """Runs one statement without arguments in a separate transaction, in a single round trip."""
        begin = _begin(self._settings, tenant_id)
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
        """Opens a transaction that sees only the rows of `tenant_id`. It commits at the end and rolls back on any
        exception.

        With `turn_id` the transaction locks that turn's row first, as every claim must. A statement that waits for a
        lock sees the locked row in its new state, but all other rows in their old state. Data that depends on the turn
        must therefore be read by later statements. `then` is another statement without arguments, sent in the same
        round trip.
        """
        begin = _begin(self._settings, tenant_id)
        if turn_id is not None:
            begin += f"; SELECT FROM turns WHERE id = '{UUID(turn_id)}' FOR UPDATE"
        if then:
            begin += f"; {then}"
        async with self._reporting_connection() as connection:
            try:
                cast(TenantConnection, connection).act_for(tenant_id, self.keyring)
                await connection.execute(begin)
                yield connection
            except BaseException:
                await _roll_back(connection)
                raise
            await connection.execute("COMMIT")

    @asynccontextmanager
    async def _reporting_connection(self) -> AsyncIterator[Connection]:
        try:
            async with self.pool.acquire(timeout=self._wait_seconds) as connection:
                yield connection
        except Exception as error:
            if self.on_error is not None:
                self.on_error(error)
            raise

    @asynccontextmanager
    async def without_tenant(self) -> AsyncIterator[Connection]:
        """Yields a connection for one statement, which must name the schema of its tables. It sees the rows of all
        tenants with the relay's role, else of none.

        Without the statement cache it is a transaction. A pooler could otherwise prepare a statement on one connection
        of Postgres and run it on another.
        """
        async with self.pool.acquire(timeout=self._wait_seconds) as connection:
            if self._statement_cache:
                yield connection
            else:
                async with connection.transaction():
                    yield connection

    async def principal_row(self, token_sha256: str) -> asyncpg.Record | None:
        """Returns the owner of a token by the token's hash. This is the only look-up without a tenant."""
        async with self.without_tenant() as connection:
            row: asyncpg.Record | None = await connection.fetchrow(
                "SELECT * FROM perdure.principal_of($1)", token_sha256
            )
        return row

    async def session_row(self, session_id: str) -> asyncpg.Record | None:
        """Returns the user of a session with their current roles, or None if the session has ended."""
        async with self.without_tenant() as connection:
            row: asyncpg.Record | None = await connection.fetchrow(
                "SELECT * FROM perdure.principal_of_session($1)", session_id
            )
        return row


def new_id() -> str:
    """Returns a new UUIDv7 as text. Ids are only created here, so that all of them sort by time."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10), "big")
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(UUID(int=value))
