"""The calls about effects that a crash left unknown. Each function makes a value; nothing is sent here."""

from typing import Literal

from pydantic import JsonValue

from perdure.client.answers import Page
from perdure.client.calls import Call, get, one, path, post
from perdure.client.effect_answers import Effect, Settled

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
