"""What a paused turn waits for, and when it looks at its records by itself, without being rung."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from contracts.people import PauseKind, RequestKind, RequestRef

MARGIN = timedelta(seconds=1)
"""Beyond a deadline, so that the database's clock has passed it too."""
LONGEST = timedelta(minutes=10)
_KINDS = {RequestKind.CLARIFICATION: PauseKind.CLARIFICATION, RequestKind.CLIENT_RUN: PauseKind.CLIENT_RUN}


def pause_kind(requests: Sequence[RequestRef]) -> PauseKind:
    """What a pause for these waits for, and so where its run enters the graph again; all of a pause are of one."""
    return next((_KINDS[request.kind] for request in requests if request.kind in _KINDS), PauseKind.APPROVAL)


def deadlines_of(requests: Sequence[RequestRef]) -> list[datetime]:
    """When each request is worth a look by itself: where its record last said, else at its expiry."""
    times = [request.look_at or request.expires_at for request in requests]
    return [time for time in times if time is not None]


def next_look(now: datetime, deadlines: Sequence[datetime], looks: int) -> timedelta | None:
    """How long to wait before the next look: until the first deadline; None where there is none.

    A turn that is past its deadline and still undecided (its record cannot be read, the clocks differ) is looked at
    after 1, 2, 4 ... seconds, every ten minutes in the end. `looks` counts the looks in a row that changed nothing.
    """
    if not deadlines:
        return None
    left = min(deadlines) - now + MARGIN
    if left > timedelta(0):
        return left
    return min(LONGEST, timedelta(seconds=2 ** min(looks, 20)))
