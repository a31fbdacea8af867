"""A claim is a lease: for a while nobody else decides; it lapses by itself, so that nothing is locked away for good.

One person's claims in a row are one lease, which ends after an hour however often it is renewed: then others, and the
fallback reviewer, have their turn.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from contracts.errors import CallerError
from policy.moments import told

DEFAULT_SECONDS = 900
MOST_SECONDS = 3_600
"""Of one person's claims in a row."""
BREAK_SECONDS = 300
"""So long after a claim has ended the same person's next one is another lease; the fallback looks every few seconds."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """Who has claimed a request, and until when."""

    user_id: str
    name: str
    until: datetime
    since: datetime
    """When the first of this person's claims in a row was made."""

    def stands(self, now: datetime) -> bool:
        """Whether it has not lapsed."""
        return now < self.until


def held_by_another(claim: Claimed | None, user_id: str, now: datetime) -> CallerError | None:
    """Why this user must wait, or None where nobody else holds the request."""
    if claim is None or claim.user_id == user_id or not claim.stands(now):
        return None
    details: dict[str, object] = {"claimed_by": claim.name, "claimed_until": claim.until}
    return CallerError("claimed", f"{claim.name} is looking at it until {told(claim.until)}", details, status=409)


def claim_span(claim: Claimed | None, user_id: str, now: datetime, seconds: int) -> tuple[datetime, datetime]:
    """Since when and until when this user has the request, claiming it now for `seconds`.

    Raises: CallerError 409 `claimed_too_long`.
    """
    again_at = now if claim is None else claim.until + timedelta(seconds=BREAK_SECONDS)
    goes_on = claim is not None and claim.user_id == user_id and now < again_at
    since = claim.since if claim is not None and goes_on else now
    most = since + timedelta(seconds=MOST_SECONDS)
    if most <= now:
        why = f"you have kept it for an hour; decide, or claim it again after {told(again_at)}"
        raise CallerError("claimed_too_long", why, {"again_at": again_at}, status=409)
    return since, min(most, now + timedelta(seconds=seconds))
