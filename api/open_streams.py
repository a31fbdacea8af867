"""How many event streams one person, and one tenant, may hold open at this process.

What a stream takes is of the process that serves it, a connection and some 40 KB, so each process counts its own.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from contracts.errors import LimitReached

RETRY_AFTER_SECONDS = 15


class OpenStreams:
    """Counts the streams that are open."""

    def __init__(self, per_person: int, per_tenant: int) -> None:
        self._per_person = per_person
        self._per_tenant = per_tenant
        self._of: Counter[tuple[str, ...]] = Counter()

    @contextmanager
    def one_more(self, tenant_id: str, user_id: str) -> Iterator[None]:
        """A stream of this person, while the block runs.

        Raises: LimitReached `too_many_streams`.
        """
        person, tenant = (tenant_id, user_id), (tenant_id,)
        self._check(person, self._per_person, "PERDURE_STREAMS_PER_USER", "you have")
        self._check(tenant, self._per_tenant, "PERDURE_STREAMS_PER_TENANT", "all of your tenant together have")
        self._of.update((person, tenant))
        try:
            yield
        finally:
            for each in (person, tenant):
                self._of[each] -= 1
                if not self._of[each]:
                    del self._of[each]

    def _check(self, whose: tuple[str, ...], most: int, variable: str, who_has: str) -> None:
        held = self._of[whose]
        if held < most:
            return
        details: dict[str, object] = {
            "open": held,
            "limit": most,
            "variable": variable,
            "retry_after_seconds": RETRY_AFTER_SECONDS,
        }
        do = "close one that nobody reads, or follow all turns of a conversation by its one stream"
        raise LimitReached("too_many_streams", f"{who_has} {held} streams open, the most ({variable}): {do}", details)
