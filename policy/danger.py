"""Words by which a message is taken over before any model is asked: the deterministic part of a safety check (S1-13).

The words are an agent's, by what they speak of; a phrase is found however it is written (policy/look_alikes.py), and
also where it begins in one message and ends in the next. Too much is found rather than too little.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from policy.look_alikes import forms, readings

Words = Mapping[str, Sequence[str]]
"""By category: phrases."""
REACH: Final = 200
"""How far from where two messages meet a phrase that crosses is looked for, in characters; no phrase is longer."""


def danger_in(message: str, before: str, words: Words) -> str:
    """The category of the first phrase that `message` has, or that is made of the end of the message `before` and the
    beginning of this one; empty where there is none. What `before` has by itself was said then."""
    if not words:
        return ""
    texts = readings(message)
    seams = [_seam(*pair) for pair in zip(readings(before), texts, strict=True)] if before else []
    for category, phrases in words.items():
        for phrase in phrases:
            if any(form in text for text, each in zip(texts, forms(phrase), strict=True) for form in each):
                return category
            if any(_crosses(form, seam) for seam, each in zip(seams, forms(phrase), strict=False) for form in each):
                return category
    return ""


def is_phrase(phrase: str) -> bool:
    """Whether it can be looked for: words, not too many, and at most one `*`, behind the last of them."""
    return len(phrase) < REACH and bool(forms(phrase)) and "*" not in phrase.rstrip()[:-1]


def _seam(before: str, after: str) -> tuple[str, str, str]:
    """Where the two meet: the end of the one, the beginning of the other, and both as one text."""
    end, beginning = before[-REACH:], after[:REACH]
    return end, beginning, end.rstrip() + beginning


def _crosses(form: str, seam: tuple[str, str, str]) -> bool:
    """Whether `form` is there once the two are read as one text, and in neither of them alone."""
    end, beginning, both = seam
    return form in both and form not in end and form not in beginning
