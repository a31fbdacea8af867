"""The calls about effects that a crash left unknown. Each function makes a value; nothing is sent here."""

from datetime import datetime
from typing import Any, Literal

from pydantic import JsonValue

from perdure.client.requests import Call, get, one, path, post
from perdure.schemas.answers import Answer, Page

# --- What the API answers about effects in the ledger.


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


Outcome = Literal["happened", "did_not_happen"]


def list_effects(
    *, state: str | None = "outcome_unknown", limit: int | None = None, cursor: str | None = None
) -> Call[Page[Effect]]:
    """Effects in this state; by default those that a person must settle."""
    return get(path("effects"), one(Page[Effect]), {"state": state, "limit": limit, "cursor": cursor})


def get_effect(key: str) -> Call[Effect]:
    """One effect with all that is known of it."""
    return get(path("effects", key), one(Effect))


def settle_effect(key: str, outcome: Outcome, comment: str, *, idempotency_key: str = "") -> Call[Settled]:
    """State what became of an effect; `comment` says how it is known."""
    body: dict[str, JsonValue] = {"outcome": outcome, "comment": comment}
    return post(path("effects", key, "settle"), one(Settled), body, key=idempotency_key)
