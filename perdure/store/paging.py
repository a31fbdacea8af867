"""Cursors for pages: the last row of the previous page as opaque text."""

import base64
import binascii
import json
from collections.abc import Collection
from datetime import UTC, datetime
from uuid import UUID

from perdure.contracts.errors import CallerError
from perdure.core.text import is_clean


def cursor_after(at: datetime, row_id: str) -> str:
    """Returns the opaque cursor of the page that begins after this row, by time and id."""
    return base64.urlsafe_b64encode(json.dumps([at.isoformat(), row_id]).encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> tuple[datetime | None, str | None]:
    """Returns the time and the id of the last row of the previous page; (None, None) for the first page.

    Raises: CallerError 422 `cursor_invalid`.
    """
    at, row_id = read_key_cursor(text)
    try:
        return at, None if row_id is None else str(UUID(row_id))
    except ValueError:
        raise _invalid() from None


def read_key_cursor(text: str | None) -> tuple[datetime | None, str | None]:
    """Reads a cursor whose second part is a key and not a UUID, like `read_cursor`.

    Raises: CallerError 422 `cursor_invalid`.
    """
    if not text:
        return None, None
    try:
        at, key = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None or not is_clean(key):
            raise ValueError("not a cursor of this list")
        return moment.astimezone(UTC), key
    except (binascii.Error, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise _invalid() from None


def read_number_cursor(text: str | None) -> tuple[datetime | None, int | None]:
    """Reads a cursor whose second part is a number, like `read_cursor`.

    Raises: CallerError 422 `cursor_invalid`.
    """
    at, number = read_key_cursor(text)
    if number is None:
        return at, None
    if not (number.isascii() and number.isdigit() and len(number) < 19):  # larger than a bigint
        raise _invalid()
    return at, int(number)


def _invalid() -> CallerError:
    return CallerError("cursor_invalid", "The cursor is invalid; use a `next` value that this list returned")


class WhereBuilder:
    """A WHERE clause and its parameters, built step by step. It contains only the given filters, so that unused ones do
    not prevent the use of an index. A plan is made once for all parameters (`database.py`). The statement therefore
    contains the value of a state. Only then does the planner know that the state is rare, and uses the index."""

    def __init__(self, *conditions: str) -> None:
        self._conditions = list(conditions)
        self.given: list[object] = []
        """The parameters, $1 first."""

    def add_condition(self, condition: str, *values: object) -> None:
        """Adds `condition`, in which `{0}` and so on stand for `values`. Without a first value it adds nothing."""
        if values and values[0] is None:
            return
        self._conditions.append(condition.format(*(self.parameter(value) for value in values)))

    def add_state(self, column: str, state: str | None, states: Collection[str]) -> None:
        """Adds a filter on the state, if one is given. A state that is not in `states` matches no rows."""
        if state is not None:
            self._conditions.append(f"{column} = '{state}'" if state in states else "false")

    def parameter(self, value: object) -> str:
        """Adds a parameter and returns its placeholder, such as `$3`."""
        self.given.append(value)
        return f"${len(self.given)}"

    def __str__(self) -> str:
        return "WHERE " + (" AND ".join(self._conditions) or "true")
