"""Timers of a paused turn: when it reads its records without a wake signal."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from perdure.contracts.approvals import RequestRef

MARGIN = timedelta(seconds=1)
"""The time that is added to a deadline, so that the database's clock has passed it, too."""
MAX_WAIT = timedelta(minutes=10)


def deadlines_of(requests: Sequence[RequestRef]) -> list[datetime]:
    """Returns when to check each request again: at its recorded check time, otherwise at its expiry."""
    times = [request.look_at or request.expires_at for request in requests]
    return [time for time in times if time is not None]


def wait_before_check(now: datetime, deadlines: Sequence[datetime], checks: int) -> timedelta | None:
    """Returns the wait before the next check, until the first deadline; None without deadlines.

    A turn can be undecided after its deadline, for example if its record is unreadable or the clocks differ. It is then
    checked after 1, 2, 4 ... seconds, at most every ten minutes. `checks` is the number of consecutive checks without a
    change.
    """
    if not deadlines:
        return None
    remaining = min(deadlines) - now + MARGIN
    if remaining > timedelta(0):
        return remaining
    return min(MAX_WAIT, timedelta(seconds=2 ** min(checks, 20)))
