"""Resolving a name to an entity: decisive, or a question to ask (S0-71)."""

from collections.abc import Sequence
from enum import StrEnum

from pydantic import JsonValue

RECENT = "recent_entity_context"
"""The field of state and of working memory that holds them."""
RECENT_MOST = 10
"""recent_entity_context is a FIFO of ten (S0-16)."""


class Resolution(StrEnum):
    """What a search came to."""

    DECISIVE = "resolved"
    AMBIGUOUS = "ambiguous"
    NOT_FOUND = "not_found"


def resolve(found: Sequence[tuple[str, str]]) -> Resolution:
    """Whether `found` ((id, name), best first) answers without a question."""
    if not found:
        return Resolution.NOT_FOUND
    return Resolution.DECISIVE if len(found) == 1 else Resolution.AMBIGUOUS


def remember(recent: JsonValue, entity_id: str) -> list[JsonValue]:
    """The recent entities with `entity_id` newest, each once, at most ten."""
    before = [each for each in recent if each != entity_id] if isinstance(recent, list) else []
    return [*before, entity_id][-RECENT_MOST:]


def joined(before: list[JsonValue], now: list[JsonValue], said: list[JsonValue]) -> list[JsonValue]:
    """A list that one of several calls side by side made `said` of `before`, after others have made it `now`.

    What the others have added stays, before what is newest.
    """
    others = [each for each in now if each not in before and each not in said]
    return [*said[:-1], *others, *said[-1:]][-RECENT_MOST:] if others else said
