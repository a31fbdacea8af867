"""When a start has failed and when a running part hangs: two clocks that are told what was seen.

A slow start is not a failed one: it is given up when it has made no progress for a while, or at a limit far beyond.
A part hangs when it has not answered for a while in which somebody listened: if the supervisor itself did not run (it
was stopped, the machine slept), what it missed counts for nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from local.errors import StackError

_START, _HANG = "PERDURE_START_SECONDS", "PERDURE_HANG_SECONDS"
_LONGEST_SECONDS = 86_400
_MOST_STARTS = 4
"""A start that goes on making progress is given up after this many times the setting."""
_WORKS = 0.01
"""The share of one processor that counts as progress; a process that only waits and looks uses less."""
LOOK_SECONDS = 2.0
"""How often a running part is asked."""
_LATE_SECONDS = 8.0
"""A look that comes later than this after the one before shows that the supervisor itself did not run."""
_FIRST_WORD_SECONDS = 20.0
_NEXT_WORD_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the supervisor waits."""

    start_seconds: float = 180.0
    """How long a part that starts may make no progress."""
    hang_seconds: float = 20.0
    """How long a part that runs may give no answer; 0: for ever."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Patience":
        """What PERDURE_START_SECONDS and PERDURE_HANG_SECONDS say.

        Raises: StackError that names the variable to correct.
        """
        return cls(
            _seconds(environ, _START, cls().start_seconds, least=1),
            _seconds(environ, _HANG, cls().hang_seconds, least=0),
        )


def _seconds(environ: Mapping[str, str], name: str, default: float, least: int) -> float:
    text = environ.get(name) or ""
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", text) or not least <= int(text) <= _LONGEST_SECONDS:
        raise StackError(f"{name} is {text!r}; it must be a number of seconds from {least} to {_LONGEST_SECONDS}")
    return float(text)


class SlowStart:
    """The clock of one start."""

    def __init__(self, limit_seconds: float, now: float) -> None:
        self._limit = limit_seconds
        self._began = self._looked = self._moved = now
        self._seen = (0.0, 0)
        self._word_at = now + _FIRST_WORD_SECONDS

    def look(self, now: float, cpu_seconds: float, lines: int) -> None:
        """Note what the part has used and written so far."""
        used, written = cpu_seconds - self._seen[0], lines - self._seen[1]
        # Less than before: a process of the part has ended, or it is another one.
        if written or used < 0 or used > _WORKS * (now - self._looked):
            self._moved = now
        self._seen, self._looked = (cpu_seconds, lines), now

    def hold(self, now: float) -> None:
        """Count nothing up to now: the part waits for another one."""
        self._word_at += now - self._looked
        self._began += now - self._looked
        self._moved = self._looked = now

    def failure(self, now: float) -> str:
        """Why it is to be given up; empty while it is not."""
        if now - self._moved >= self._limit:
            return f"was not ready after {now - self._began:.0f} s and made no progress for {self._limit:.0f} s"
        if now - self._began >= _MOST_STARTS * self._limit:
            return f"was still not ready after {now - self._began:.0f} s, {_MOST_STARTS} times {_START}"
        return ""

    def word(self, now: float) -> str:
        """What to tell a person who waits, now and then; else empty."""
        if now < self._word_at:
            return ""
        self._word_at = now + _NEXT_WORD_SECONDS
        quiet = now - self._moved
        doing = "still working" if quiet < _NEXT_WORD_SECONDS else f"no progress for {quiet:.0f} s"
        return f"not ready after {now - self._began:.0f} s; {doing}"


class Listening:
    """The clock of one running part."""

    def __init__(self, limit_seconds: float, now: float) -> None:
        self._limit = limit_seconds
        self._heard = self._looked = now

    def hangs(self, answered: bool, now: float) -> bool:
        """Note whether it has just answered, and tell whether it has been silent for too long."""
        if answered or now - self._looked > _LATE_SECONDS:
            self._heard = now
        self._looked = now
        return bool(self._limit) and now - self._heard >= self._limit
