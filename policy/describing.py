"""A tool's own sentence about one call: its author's template, filled from the exact arguments and from nothing else.

Invariants:
- No word of it is a model's, except inside a value; and values stand in quotes or are plain JSON, so none of them can
  pose as the sentence.
- What stands where there is no value is the author's own: `{amount|the whole price}`.
- It says less than the arguments, never something else: a value that is long is cut and says how much is missing.
"""

import json
import re
from collections.abc import Mapping

from pydantic import JsonValue

MOST_CHARACTERS = 300
"""Of a template."""
_VALUE_CHARACTERS = 80
_GLANCE_CHARACTERS = 160
_NOTHING = "(nothing)"
_PART = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)(?:\|([^{}]+))?\}|[{}]")


class BadTemplate(ValueError):
    """A template that no call could be described by; says why."""


def names_in(template: str) -> frozenset[str]:
    """The arguments that a template names.

    Raises: BadTemplate.
    """
    if len(template) > MOST_CHARACTERS:
        raise BadTemplate(f"it has more than {MOST_CHARACTERS} characters")
    if "\n" in template:
        raise BadTemplate("it is one line")
    found = set()
    for part in _PART.finditer(template):
        if part.group() in "{}":
            raise BadTemplate(f"a single {part.group()!r} at {part.start()}: write {{name}}, or {part.group() * 2}")
        if part[1]:
            found.add(part[1])
    return frozenset(found)


def described(template: str, args: Mapping[str, JsonValue]) -> str:
    """The sentence for these arguments; empty without a template."""
    return _PART.sub(lambda part: _filled(part, args) if part[1] else part.group()[:1], template)


def _filled(part: re.Match[str], args: Mapping[str, JsonValue]) -> str:
    value = args.get(part[1])
    return part[2] if part[2] and value in (None, "") else told(value)


def at_a_glance(args: Mapping[str, JsonValue]) -> str:
    """The arguments on one line, of the first of them as much as there is room for."""
    said, room = [], _GLANCE_CHARACTERS
    for name, value in args.items():
        said.append(f"{name}: {told(value)}")
        room -= len(said[-1])
        if room < 0:
            return ", ".join(said)[:_GLANCE_CHARACTERS] + "…"
    return ", ".join(said)


def told(value: JsonValue) -> str:
    """A value inside a sentence: JSON, so that a text is in quotes and a number is not."""
    if value is None:
        return _NOTHING
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _VALUE_CHARACTERS:
        return text
    return f"{text[:_VALUE_CHARACTERS]}… ({len(text) - _VALUE_CHARACTERS:,} more characters)"
