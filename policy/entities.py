"""Resolving a name to an entity: decisive, or a question to ask (S0-71)."""

from collections.abc import Sequence
from enum import StrEnum

from pydantic import JsonValue

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
