"""Responses about webhooks of approval events."""

from datetime import datetime

from pydantic import Field

from perdure.schemas.base import Answer


class Webhook(Answer):
    """A webhook."""

    id: str
    url: str
    with_args: bool = False
    """True if notices about calls of low risk contain the call's arguments."""
    made_by: str = ""
    made_at: datetime | None = None
    waiting: int = 0
    """Notices that are not delivered yet."""
    given_up: int = 0
    problem: str | None = None
    """The problem of the last delivery that failed."""
    secret: str = Field(default="", repr=False)
    """The secret with which the receiver verifies notices. Only the answer of `add_webhook` contains it."""
