"""Facts that a person states about themselves, found by fixed patterns: short, typed, and never the message (S3-26)."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from perdure.contracts.memory import MOST_FACTS, Fact

_END: Final = r"(?=[.,;:!?\n]|\s+(?:and|but|because|so|please)\b|$)"
_WORDS: Final = r"(?P<it>[^\s.,;:!?\n][^.,;:!?\n]{0,59}?)"
"""A few words of one clause: sixty characters at most, so that no message is kept whole under another name."""

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
"""Type, confidence, and how such a statement begins. A confidence is how often a statement of that form is meant so."""


def derived_facts(text: str) -> tuple[Fact, ...]:
    """What `text` states about whoever wrote it, in the order of the patterns; one of each type, the last stated."""
    found = []
    for kind, confidence, pattern in PATTERNS:
        stated = [match["it"].strip() for match in pattern.finditer(text)]
        if stated:
            found.append(Fact(type=kind, content=stated[-1], confidence=confidence))
    return tuple(found[:MOST_FACTS])


def told(scope: str, facts: tuple[Fact, ...]) -> str:
    """Facts as one note for a model; advice, which decides nothing."""
    lines = "\n".join(f"- {fact.type}: {fact.content}" for fact in facts)
    return f"=== Remembered ({scope}) ===\n{lines}"


# --- Resolving a name to an entity: decisive, or a question to ask (S0-71).

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
