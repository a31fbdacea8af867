"""A claim is a lease: for a while nobody else decides; it lapses by itself, so that nothing is locked away for good."""

from dataclasses import dataclass
from datetime import datetime

from contracts.errors import CallerError
from policy.moments import told

DEFAULT_SECONDS = 900
MOST_SECONDS = 3_600


@dataclass(frozen=True, slots=True)
class Claimed:
    """Who has claimed a request, and until when."""

    user_id: str
    name: str
    until: datetime

    def stands(self, now: datetime) -> bool:
        """Whether it has not lapsed."""
        return now < self.until


def held_by_another(claim: Claimed | None, user_id: str, now: datetime) -> CallerError | None:
    """Why this user must wait, or None where nobody else holds the request."""
    if claim is None or claim.user_id == user_id or not claim.stands(now):
        return None
    details: dict[str, object] = {"claimed_by": claim.name, "claimed_until": claim.until}
    return CallerError("claimed", f"{claim.name} is looking at it until {told(claim.until)}", details, status=409)
