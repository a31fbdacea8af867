"""What the API answers about effects in the ledger."""

from datetime import datetime
from typing import Any

from perdure.client.answers import Answer


class Effect(Answer):
    """An effect in the ledger; asked for by its key, it comes with all that is known."""

    key: str
    tool: str
    state: str
    turn_id: str = ""
    call_id: str = ""
    agent: str = ""
    args: dict[str, Any] = {}
    effect: str = ""
    attempts: int = 0
    """How many workers have owned the call."""
    first_sent_at: datetime | None = None
    """From then on it may have happened."""
    deadline: datetime | None = None
    """Until then a frozen worker may still send it, so nobody may say that it did not happen."""
    settled_at: datetime | None = None
    settled_by: str | None = None
    comment: str | None = None
    """How the one who settled it knew."""
    created_at: datetime | None = None


class Settled(Answer):
    """What a person stated about an effect."""

    key: str
    outcome: str
