"""How long a caller waits after wrong passwords, so that guessing gets slower and the owner keeps a way in.

A device that the owner has signed in from before is judged by its own wrong guesses only: guesses from elsewhere never
delay it. Every other caller is judged by the guesses from its address at this account, by those of all unknown devices
at this account, and by those from its address at all accounts; the longest wait counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_HOUR, _DAY = 3_600, 86_400
_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one may guess."""

    name: str
    free: int
    """Wrong guesses without a wait."""
    most_seconds: int
    """The longest wait; the first one is a second, and each is twice the one before it."""
    kept_seconds: int = _DAY
    """Wrong guesses are forgotten this long after the last one."""
    is_window: bool = False
    """They are forgotten this long after the first one: of what many people share, mistakes do not add up for ever."""


DEVICE = Pace("device", 5, 900)
PLACE = Pace("place", 5, 900)
"""One address at one account."""
ACCOUNT = Pace("account", 20, 60, _HOUR, is_window=True)
"""All unknown devices at one account. Short: a stranger who keeps guessing also delays an owner on a new device."""
ADDRESS = Pace("address", 50, 60, _HOUR, is_window=True)
"""One address at all accounts: many people may share one."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The wrong guesses that are counted under one key."""

    failures: int = 0
    last_at: float = 0.0


def wait_after(pace: Pace, failures: int) -> int:
    """How many seconds after so many wrong guesses the next one may come."""
    if failures < pace.free:
        return 0
    return int(min(pace.most_seconds, 2 ** min(failures - pace.free, _MOST_DOUBLINGS)))


def wait_left(counted: Sequence[tuple[Pace, Tally]], now: float) -> float:
    """How many seconds from now the next guess may come; 0 for one that may come now."""
    due = (tally.last_at + wait_after(pace, tally.failures) - now for pace, tally in counted if tally.failures)
    # A clock that was set back makes no wait longer than it would be from now.
    longest = max((wait_after(pace, tally.failures) for pace, tally in counted), default=0)
    return min(longest, max(0.0, *due, 0.0)) if counted else 0.0
