"""The meaning of an exception of Postgres: one table, for activities and for the API."""

import errno
import re
import socket
import ssl
import traceback
from collections.abc import Mapping
from enum import Enum, auto

import asyncpg
from asyncpg.exceptions import _base


class StoreFault(Enum):
    """The reason of a failure, which decides whether another attempt can succeed."""

    UNAVAILABLE = auto()
    """Postgres is down, overloaded, full or read-only."""
    UNREADABLE = auto()
    """A missing table, column, function or right, or damaged data. An operator must mend it."""
    CONFLICT = auto()
    """The transaction conflicted with another one."""
    REFUSED = auto()
    """The statement or its values are wrong: a fault of the program."""


_MEMBERS: Mapping[StoreFault, tuple[type[BaseException], ...]] = {
    StoreFault.UNAVAILABLE: (
        *(asyncpg.PostgresConnectionError, asyncpg.InsufficientResourcesError, asyncpg.OperatorInterventionError),
        *(asyncpg.PostgresSystemError, asyncpg.ReadOnlySQLTransactionError),
        asyncpg.InternalClientError,
    ),
    StoreFault.UNREADABLE: (
        *(asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError),
        *(asyncpg.UndefinedObjectError, asyncpg.InvalidSchemaNameError, asyncpg.InvalidCatalogNameError),
        *(asyncpg.InsufficientPrivilegeError, asyncpg.InvalidAuthorizationSpecificationError),
        asyncpg.InternalServerError,
    ),
    StoreFault.CONFLICT: (
        *(asyncpg.TransactionRollbackError, asyncpg.LockNotAvailableError, asyncpg.InvalidCachedStatementError),
        asyncpg.OutdatedSchemaCacheError,
    ),
    StoreFault.REFUSED: (
        *(asyncpg.PostgresError, asyncpg.UnsupportedClientFeatureError, asyncpg.UnsupportedServerFeatureError),
        *(asyncpg.ClientConfigurationError, _base.DataError, asyncpg.InterfaceError, asyncpg.InterfaceWarning),
    ),
}
"""asyncpg raises InternalClientError if Postgres dies in the middle of a statement (seen when many processes were
killed)."""
_FAULTS = {kind: fault for fault, kinds in _MEMBERS.items() for kind in kinds}
_CLOSED = re.compile(r"\b(connection|pool) (is (closed|closing)|has been released)\b")
"""asyncpg's sentences for a connection or a pool that has ended (0.32). All its other InterfaceErrors are about how it
was called, such as a wrong number of arguments."""
_UNAVAILABLE_NUMBERS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM),
        *(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ENETRESET),
        errno.EADDRNOTAVAIL,
    }
)
"""The errors of a full or broken disk, of a process without files or memory left, and of a network."""


def store_fault(error: BaseException) -> StoreFault | None:
    """Returns the meaning of an exception by its nearest base in the table, or None if Postgres raises no such
    exception. An InterfaceError and an OSError count as an outage only if they are one."""
    if isinstance(error, OSError):
        return StoreFault.UNAVAILABLE if _is_outage(error) else None
    fault = next((_FAULTS[base] for base in type(error).__mro__ if base in _FAULTS), None)
    is_closed = type(error) is asyncpg.InterfaceError and _CLOSED.search("".join(error.args))
    return StoreFault.UNAVAILABLE if is_closed else fault


def _is_outage(error: OSError) -> bool:
    """Returns whether an OSError is an outage. Each one of asyncpg is: a connection that fails at several addresses
    ends in an OSError without a number, and one to a missing socket file in FileNotFoundError."""
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError):
        return True
    return error.errno in _UNAVAILABLE_NUMBERS or raised_by_asyncpg(error)


def raised_by_asyncpg(error: BaseException) -> bool:
    """Returns whether asyncpg raised the error, by its stack frames."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").partition(".")[0] == "asyncpg" for frame, _ in frames)


def object_names(error: BaseException) -> str:
    """Returns the message of Postgres if it only names the missing table or right; otherwise an empty string, because
    other messages can quote a row."""
    is_named = store_fault(error) is StoreFault.UNREADABLE and not isinstance(error, asyncpg.InternalServerError)
    return str(getattr(error, "message", None) or "") if is_named else ""
