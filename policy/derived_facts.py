"""Facts that a person states about themselves, found by fixed patterns: short, typed, and never the message (S3-26)."""

import re
from typing import Final

from contracts.facts import MOST_FACTS, Fact

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
