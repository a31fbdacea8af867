"""The numbers of a run's steps, which name its model calls and the calls of its tools.

Branches that run side by side count apart: each takes every so-manieth number from where the fork began. So the names
of their calls follow from what each of them did, not from which was faster; a turn that is started again over its
records finds the answers of its own calls under them, and no branch another one's.
"""

from collections.abc import Sequence


class Steps:
    """A counter; the counters of branches reach back to the one that they began at."""

    def __init__(self, last: int = 0, *, stride: int = 1, above: "Steps | None" = None) -> None:
        self._last = last
        self._stride = stride
        self._above = above

    @property
    def last(self) -> int:
        """The last number taken, here or in a branch."""
        return self._last

    def take(self) -> int:
        """The next number."""
        self.reach(self._last + self._stride)
        return self._last

    def reach(self, step: int) -> None:
        """Count on from `step` at least."""
        if step > self._last:
            self._last = step
            if self._above is not None:
                self._above.reach(step)

    def apart(self, branches: int) -> Sequence["Steps"]:
        """A counter for each of so many branches; none of them ever takes a number of another's. Nothing is taken here
        before all of them have ended."""
        stride = self._stride * branches
        firsts = (self._last + (place + 1) * self._stride for place in range(branches))
        return tuple(Steps(first - stride, stride=stride, above=self) for first in firsts)
