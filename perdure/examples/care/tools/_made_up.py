"""Made-up therapists and made-up profiles. No person behind any of it."""

from typing import Any

PROVIDERS: tuple[dict[str, Any], ...] = (
    {"id": "p1", "name": "Dr. Okafor (made up)", "focus": ["anxiety", "sleep"], "languages": ["en"], "remote": True},
    {"id": "p2", "name": "M. Lindqvist (made up)", "focus": ["grief", "low mood"], "languages": ["en", "sv"]},
    {"id": "p3", "name": "R. Haddad (made up)", "focus": ["work stress", "anxiety"], "languages": ["en", "ar"]},
    {"id": "p4", "name": "J. Moreau (made up)", "focus": ["relationships"], "languages": ["fr", "en"], "remote": True},
)

PROFILES: tuple[dict[str, Any], ...] = (
    {"age_band": "25-34", "language": "en", "prefers": "remote", "earlier_sessions": 0},
    {"age_band": "35-44", "language": "en", "prefers": "in person", "earlier_sessions": 3},
    {"age_band": "45-54", "language": "en", "prefers": "either", "earlier_sessions": 1},
)

THEMES: dict[str, tuple[str, ...]] = {
    "anxiety": ("anxious", "anxiety", "panic", "worry", "worried", "nervous"),
    "sleep": ("sleep", "insomnia", "awake", "tired"),
    "low mood": ("sad", "low", "empty", "hopeless", "depress"),
    "grief": ("grief", "died", "loss", "mourn"),
    "work stress": ("work", "job", "boss", "burnout", "stress"),
    "relationships": ("partner", "marriage", "divorce", "family", "lonely"),
}
"""Words by theme: the crude reading of a made-up extractor."""


def themes_in(messages: list[str]) -> list[str]:
    """The themes that these messages touch, in the table's order."""
    text = " ".join(messages).casefold()
    return [theme for theme, words in THEMES.items() if any(word in text for word in words)]
