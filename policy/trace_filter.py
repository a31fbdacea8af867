"""What never reaches a tracer: content, secrets and internals, by the name under which they come (S3-36, S3-37).

A name is read as its words, whatever joins them: `finalOutput`, `final-output` and `final_outputs` are one. It is
denied with one denied word in it, at any depth, also inside text that is JSON. Token counts are let through by their
whole name and only as numbers. What is no denied name has still a short value: 200 characters.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from pydantic import JsonValue

DENIED: Final = frozenset(
    {"input", "message", "content", "text", "query", "transcript"}  # what somebody said
    | {"prompt", "instruction", "preprocessing"}  # what a model was told
    | {"output", "response", "completion", "answer", "result"}  # what came back
    | {"memory", "fact", "episode", "document"}  # what is remembered
    | {"vector", "embedding"}
    | {"secret", "password", "passwd", "token", "credential", "apikey", "authorization", "cookie", "bearer"}
    | {"authorized", "authorised"}  # leave that was given
    | {"state", "command", "traceback", "stack", "argument", "args", "payload", "body"}  # internals
    | {"preview", "snippet", "excerpt", "summary"}
    | {"question", "reply", "utterance", "msg", "history", "attachment", "kwarg"}
    | {"reasoning", "thinking", "thought"}
)
"""In the singular; a word in the plural is the same word."""
PAIRS: Final = frozenset({("api", "key"), ("private", "key"), ("access", "key")})
LONG: Final = tuple(sorted(word for word in DENIED if len(word) >= 5 and word not in ("state", "stack")))
"""Denied also where names are written together: `rawinput`. Shorter ones are parts of harmless words."""
COUNTS: Final = frozenset(
    {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.cache_read.input_tokens"}
    | {"gen_ai.response.time_to_first_chunk", "token_estimate"}
)
"""Names with a denied word that are numbers, and pass as such."""
NAMING: Final = ("key", "name", "field", "attribute")
"""Where an entry of a list has the name of its value: `{"key": "prompt", "value": ...}`."""
MOST_CHARACTERS: Final = 200
MOST_DEPTH: Final = 8
MOST_ITEMS: Final = 64
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_denied(name: str) -> str:
    """The denied word in a name, or an empty text."""
    words = [_singular(word.lower()) for word in _WORD.findall(name)]
    for word in words:
        if word in DENIED:
            return word
    for pair in pairwise(words):
        if pair in PAIRS:
            return " ".join(pair)
    run_together = "".join(words)
    return next((word for word in LONG if word in run_together), "")


def filtered(attributes: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
    """The attributes that may leave, and the denied word of each that may not."""
    removed: list[str] = []
    kept = dict(_pairs(attributes, removed, 0))
    return kept, tuple(removed)


def _pairs(given: Mapping[str, JsonValue], removed: list[str], depth: int) -> Iterator[tuple[str, JsonValue]]:
    named = next(filter(None, (_word_of(given.get(name)) for name in NAMING)), "")
    if named and len(given) > 1:
        removed.append(named)
        return
    for key, value in list(given.items())[:MOST_ITEMS]:
        if key in COUNTS:
            if isinstance(value, int | float):
                yield key, value
            else:
                removed.append(is_denied(key))
            continue
        word = is_denied(key)
        if word:
            removed.append(word)
        elif value is not None:
            yield key[:MOST_CHARACTERS], _value(value, removed, depth)


def _value(value: JsonValue, removed: list[str], depth: int) -> JsonValue:
    if depth >= MOST_DEPTH and isinstance(value, dict | list):
        removed.append("depth")
        return None
    if isinstance(value, dict):
        return dict(_pairs(value, removed, depth + 1))
    if isinstance(value, list):
        if len(value) == 2 and depth and isinstance(value[0], str) and (word := _word_of(value[0])):
            removed.append(word)  # a pair of a name and its value
            return None
        return [_value(each, removed, depth + 1) for each in value[:MOST_ITEMS]]
    if isinstance(value, str):
        return _text(value, removed, depth)
    if value is None or isinstance(value, int | float):
        return value
    removed.append(type(value).__name__)  # bytes, and whatever else is no JSON
    return None


def _word_of(name: object) -> str:
    return is_denied(name) if isinstance(name, str) else ""


def _text(value: str, removed: list[str], depth: int) -> JsonValue:
    """A text that is JSON is read as such, so that nothing denied hides in it; one that only looks so is left out."""
    if value.lstrip()[:1] in ("{", "["):
        try:
            inside = json.loads(value)
        except (ValueError, RecursionError):
            removed.append("json")
            return ""
        return _value(inside, removed, depth + 1)
    return value[:MOST_CHARACTERS]


def _singular(word: str) -> str:
    """The denied word of which this is the plural, else the word without the s of a plural."""
    forms = (word, word.removesuffix("s"), word.removesuffix("ies") + "y")
    known = next((form for form in forms if form in DENIED), None)
    return known or (word if word.endswith("ss") else word.removesuffix("s"))
