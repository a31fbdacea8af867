"""Pages by cursor: where the last page ended, as opaque text."""

import base64
import binascii
import json
from datetime import datetime
from uuid import UUID

from contracts.errors import CallerError


def cursor_after(at: datetime, row_id: str) -> str:
    """The cursor of a page that ended with this row."""
    return base64.urlsafe_b64encode(json.dumps([at.isoformat(), row_id]).encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> tuple[datetime | None, str | None]:
    """(time, id) of the row that the last page ended with; (None, None) for the first page.

    Raises: CallerError 422 `cursor_invalid`.
    """
    if not text:
        return None, None
    try:
        at, row_id = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        return moment, str(UUID(row_id))
    except (binascii.Error, ValueError, TypeError, AttributeError, RecursionError):
        raise CallerError("cursor_invalid", "the cursor is not one that this list gave out") from None
