"""API calls for effects. Each function builds a `Call`; a client sends it."""

from datetime import datetime
from typing import Any, Literal

from pydantic import JsonValue

from perdure.client.requests import Call, get, one, path, post
from perdure.schemas.answers import Answer, Page

# --- Answers about effects of the ledger


class Effect(Answer):
    """An effect of the ledger. `get_effect` returns it with all fields."""

    key: str
    tool: str
    state: str
    turn_id: str = ""
    call_id: str = ""
    agent: str = ""
    args: dict[str, Any] = {}
    effect: str = ""
    attempts: int = 0
    """The number of workers that have owned the call."""
    first_sent_at: datetime | None = None
    """The time after which the effect may have happened."""
    deadline: datetime | None = None
    """The time until which a frozen worker may still send the effect. Before it, the outcome cannot be "did not
    happen"."""
    settled_at: datetime | None = None
    settled_by: str | None = None
    comment: str | None = None
    """The evidence of the user who settled it."""
    created_at: datetime | None = None


class Settled(Answer):
    """The outcome that a user recorded for an effect."""

    key: str
    outcome: str


Outcome = Literal["happened", "did_not_happen"]


def list_effects(
    *, state: str | None = "outcome_unknown", limit: int | None = None, cursor: str | None = None
) -> Call[Page[Effect]]:
    """Returns effects in this state, by default those that a user must settle."""
    return get(path("effects"), one(Page[Effect]), {"state": state, "limit": limit, "cursor": cursor})


def get_effect(key: str) -> Call[Effect]:
    """Returns one effect with all fields."""
    return get(path("effects", key), one(Effect))


def settle_effect(key: str, outcome: Outcome, comment: str, *, idempotency_key: str = "") -> Call[Settled]:
    """Records the outcome of an effect. `comment` must state how it is known."""
    body: dict[str, JsonValue] = {"outcome": outcome, "comment": comment}
    return post(path("effects", key, "settle"), one(Settled), body, key=idempotency_key)
