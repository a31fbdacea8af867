"""What a refresh token is good for: once; a moment longer for the same answer; after that it betrays a theft."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

GRACE = timedelta(seconds=10)
"""For two tabs at once, and for an answer that was lost on the way."""


class Refresh(StrEnum):
    """What becomes of a refresh token that is handed in."""

    ROTATE = "rotate"
    """It is used up, and has one successor."""
    REPEAT = "repeat"
    """It was used a moment ago: the same successor again."""
    BETRAYED = "betrayed"
    """It was used before, so somebody else has a copy: the whole session ends (RFC 9700, section 4.14)."""
    OVER = "over"
    """It is too old, or its session has ended."""


@dataclass(frozen=True, slots=True)
class RefreshFacts:
    """What the record says of a refresh token."""

    now: datetime
    """The database's clock."""
    expires_at: datetime
    used_at: datetime | None
    session_ended: bool


def outcome(facts: RefreshFacts) -> Refresh:
    """Of a token that is handed in now. Of a session that has ended nothing more can be betrayed."""
    if facts.session_ended:
        return Refresh.OVER
    if facts.used_at is not None:
        return Refresh.REPEAT if facts.now - facts.used_at <= GRACE else Refresh.BETRAYED
    return Refresh.OVER if facts.expires_at <= facts.now else Refresh.ROTATE
