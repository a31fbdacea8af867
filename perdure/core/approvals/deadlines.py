"""Timers of a paused turn: when it reads its records without a wake signal."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from perdure.contracts.approvals import RequestRef

MARGIN = timedelta(seconds=1)
"""The time that is added to a deadline, so that the database's clock has passed it, too."""
LONGEST = timedelta(minutes=10)


def deadlines_of(requests: Sequence[RequestRef]) -> list[datetime]:
    """Returns when to check each request again: at its recorded check time, otherwise at its expiry."""
    times = [request.look_at or request.expires_at for request in requests]
    return [time for time in times if time is not None]


def next_look(now: datetime, deadlines: Sequence[datetime], looks: int) -> timedelta | None:
    """Returns the wait before the next check, until the first deadline; None without deadlines.

    A turn can be undecided after its deadline, for example if its record is unreadable or the clocks differ. It is then
    checked after 1, 2, 4 ... seconds, at most every ten minutes. `looks` is the number of consecutive checks without a
    change.
    """
    if not deadlines:
        return None
    left = min(deadlines) - now + MARGIN
    if left > timedelta(0):
        return left
    return min(LONGEST, timedelta(seconds=2 ** min(looks, 20)))
