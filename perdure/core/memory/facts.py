"""Facts that users state about themselves, found by fixed patterns. A fact is short and typed, and never the whole
message."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from perdure.contracts.memory import MAX_FACTS, Fact

_END: Final = r"(?=[.,;:!?\n]|\s+(?:and|but|because|so|please)\b|$)"
_WORDS: Final = r"(?P<it>[^\s.,;:!?\n][^.,;:!?\n]{0,59}?)"
"""A few words of one clause: at most 60 characters, so that a whole message is never stored as a fact."""

PATTERNS: Final[tuple[tuple[str, float, re.Pattern[str]], ...]] = tuple(
    (kind, confidence, re.compile(rf"(?i)\b{begins}\s+{_WORDS}{_END}"))
    for kind, confidence, begins in (
        ("name", 0.9, r"(?:my name is|call me)"),
        ("language", 0.8, r"(?:answer|reply|write) (?:me )?in"),
        ("place", 0.7, r"i (?:live|work) in"),
        ("prefers", 0.7, r"i (?:prefer|would rather have)"),
        ("likes", 0.6, r"i (?:really )?(?:like|love)"),
        ("dislikes", 0.6, r"i (?:do not|don't) like"),
    )
)
"""The type, the confidence and the beginning of such a statement. The confidence is the share of statements of that
form that are really meant so."""
RECENT_ENTITIES_FIELD = "recent_entity_context"
"""The field of the state and of working memory that contains the recent entities."""
FAILED_RESOLVES = "consecutive_failed_resolves"
"""The field of the state and of working memory that counts searches for entities. A search that finds its entity resets
it, as does a reviewer's decision."""
MAX_RECENT_ENTITIES = 10
"""The maximum number of recent entities; the oldest is dropped first."""


def derived_facts(text: str) -> tuple[Fact, ...]:
    """Returns the facts that `text` states about its author, in the order of the patterns: the last of each type."""
    found = []
    for kind, confidence, pattern in PATTERNS:
        stated = [match["it"].strip() for match in pattern.finditer(text)]
        if stated:
            found.append(Fact(type=kind, content=stated[-1], confidence=confidence))
    return tuple(found[:MAX_FACTS])


def facts_note(scope: str, facts: tuple[Fact, ...]) -> str:
    """Returns the facts as one note for a model. They are advice and decide nothing."""
    lines = "\n".join(f"- {fact.type}: {fact.content}" for fact in facts)
    return f"=== Remembered ({scope}) ===\n{lines}"


class Resolution(StrEnum):
    """The result of a search for an entity."""

    DECISIVE = "resolved"
    AMBIGUOUS = "ambiguous"
    NOT_FOUND = "not_found"


def resolve_entity(found: Sequence[tuple[str, str]]) -> Resolution:
    """Returns whether `found` ((id, name), best first) is decisive, ambiguous or empty."""
    if not found:
        return Resolution.NOT_FOUND
    return Resolution.DECISIVE if len(found) == 1 else Resolution.AMBIGUOUS


def remember_entity(recent: JsonValue, entity_id: str) -> list[JsonValue]:
    """Returns the recent entities with `entity_id` as the newest: no duplicates, at most ten."""
    before = [each for each in recent if each != entity_id] if isinstance(recent, list) else []
    return [*before, entity_id][-MAX_RECENT_ENTITIES:]


def merge_lists(before: list[JsonValue], now: list[JsonValue], after: list[JsonValue]) -> list[JsonValue]:
    """Merges a list that one of several parallel calls changed from `before` to `after`, while others changed it to
    `now`.

    The additions of the other calls are kept, before the newest entry.
    """
    others = [each for each in now if each not in before and each not in after]
    return [*after[:-1], *others, *after[-1:]][-MAX_RECENT_ENTITIES:] if others else after
