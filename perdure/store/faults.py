"""The meaning of an exception of Postgres: one table, for activities and for the API."""

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
        *(asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError, OSError),
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
        *(asyncpg.ClientConfigurationError, _base.DataError, asyncpg.InterfaceWarning),
    ),
}
"""InterfaceError mostly means a closed connection or pool. asyncpg raises InternalClientError if Postgres dies in the
middle of a statement (seen when many processes were killed)."""
_FAULTS = {kind: fault for fault, kinds in _MEMBERS.items() for kind in kinds}


def store_fault(kind: type[BaseException]) -> StoreFault | None:
    """Returns the meaning of an exception class by its nearest base in the table, or None if Postgres raises no such
    exception."""
    return next((_FAULTS[base] for base in kind.__mro__ if base in _FAULTS), None)


def object_names(error: BaseException) -> str:
    """Returns the message of Postgres if it only names the missing table or right; otherwise an empty string, because
    other messages can quote a row."""
    is_named = store_fault(type(error)) is StoreFault.UNREADABLE and not isinstance(error, asyncpg.InternalServerError)
    return str(getattr(error, "message", None) or "") if is_named else ""
