"""API calls for effects. Each function builds a `Call`; a client sends it."""

from typing import Literal

from pydantic import JsonValue

from perdure.client.requests import Call, get, parsed_as, path, post
from perdure.schemas.base import Page
from perdure.schemas.calls import Effect, Settled

Outcome = Literal["happened", "did_not_happen"]


def list_effects(
    *, state: str | None = "outcome_unknown", limit: int | None = None, cursor: str | None = None
) -> Call[Page[Effect]]:
    """Returns effects in this state, by default those that a user must settle."""
    return get(path("effects"), parsed_as(Page[Effect]), {"state": state, "limit": limit, "cursor": cursor})


def get_effect(key: str) -> Call[Effect]:
    """Returns one effect with all fields."""
    return get(path("effects", key), parsed_as(Effect))


def settle_effect(key: str, outcome: Outcome, comment: str, *, idempotency_key: str = "") -> Call[Settled]:
    """Records the outcome of an effect. `comment` must state how it is known."""
    body: dict[str, JsonValue] = {"outcome": outcome, "comment": comment}
    return post(path("effects", key, "settle"), parsed_as(Settled), body, key=idempotency_key)
