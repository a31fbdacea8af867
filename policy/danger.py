"""Words by which a message is taken over before any model is asked: the deterministic part of a safety check (S1-13).

The words are an agent's, by what they speak of; a phrase is found however it is written (policy/look_alikes.py), and
also where it begins in one message and ends in the next. Too much is found rather than too little.
"""

from collections.abc import Mapping, Sequence

from policy.look_alikes import forms, readings

Words = Mapping[str, Sequence[str]]
"""By category: phrases."""


def danger_in(message: str, before: str, words: Words) -> str:
    """The category of the first phrase that `message` has, or that is made of the end of the message `before` and the
    beginning of this one; empty where there is none. What `before` has by itself was said then."""
    if not words:
        return ""
    alone, first = readings(message), readings(before) if before else ()
    for category, phrases in words.items():
        for phrase in phrases:
            wanted = forms(phrase)
            if any(form in text for text, each in zip(alone, wanted, strict=True) for form in each):
                return category
            if any(
                _spans(earlier, text, form)
                for earlier, text, each in zip(first, alone, wanted, strict=False)
                for form in each
            ):
                return category
    return ""


def is_phrase(phrase: str) -> bool:
    """Whether it can be looked for: words, and at most one `*`, behind the last of them."""
    return bool(forms(phrase)) and "*" not in phrase.rstrip()[:-1]


def _spans(before: str, after: str, form: str) -> bool:
    """Whether `form` is there once the two are read as one text, in neither of them alone."""
    reach = len(form)
    joined = before[-reach:].rstrip() + after[:reach]
    return form in joined and form not in before[-reach:] and form not in after
