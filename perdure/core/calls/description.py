"""Describes a call in one sentence for its reviewer, from the template in `describe=` of its tool and its arguments."""

import json
import re
from collections.abc import Mapping

from pydantic import JsonValue

MAX_TEMPLATE_CHARACTERS = 300

"""Maximum length of a template."""

_VALUE_CHARACTERS = 80

_GLANCE_CHARACTERS = 160

_NO_VALUE = "(nothing)"

_PART = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)(?:\|([^{}]+))?\}|[{}]")


class BadTemplate(ValueError):
    """A template that cannot describe any call; the message is the reason."""


def names_in(template: str) -> frozenset[str]:
    """Returns the arguments that a template names.

    Raises: BadTemplate.
    """
    if len(template) > MAX_TEMPLATE_CHARACTERS:
        raise BadTemplate(f"the template exceeds {MAX_TEMPLATE_CHARACTERS} characters")
    if "\n" in template:
        raise BadTemplate("the template must be one line")
    names = set()
    for part in _PART.finditer(template):
        if part.group() in "{}":
            raise BadTemplate(
                f"unmatched {part.group()!r} at position {part.start()}; write {{name}}, or {part.group() * 2} "
                "for the character itself"
            )
        if part[1]:
            names.add(part[1])
    return frozenset(names)


def describe_call(template: str, args: Mapping[str, JsonValue]) -> str:
    """Returns the sentence for these arguments; empty without a template.

    It is filled only from the exact arguments.

    Invariants:
    - No text comes from a model, except inside values. Values are in quotes or plain JSON, so that they cannot imitate
      the sentence.
    - The text for a missing value is the author's own: `{amount|the whole price}`.
    - The sentence can omit parts of the arguments but does not alter them: a long value is truncated, with the number
      of missing characters.
    """
    return _PART.sub(lambda part: _fill_part(part, args) if part[1] else part.group()[:1], template)


def _fill_part(part: re.Match[str], args: Mapping[str, JsonValue]) -> str:
    value = args.get(part[1])
    return part[2] if part[2] and value in (None, "") else json_text(value)


def arguments_on_one_line(args: Mapping[str, JsonValue]) -> str:
    """Returns the arguments on one line, truncated to the available length. Empty ones come last."""
    parts, characters_left = [], _GLANCE_CHARACTERS
    for name, value in sorted(args.items(), key=lambda pair: pair[1] in ("", None, [], {})):
        parts.append(f"{name}: {json_text(value)}")
        characters_left -= len(parts[-1])
        if characters_left < 0:
            return ", ".join(parts)[:_GLANCE_CHARACTERS] + "…"
    return ", ".join(parts)


def json_text(value: JsonValue) -> str:
    """Returns a value for a sentence as JSON, so that texts are in quotes and numbers are not."""
    if value is None:
        return _NO_VALUE
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _VALUE_CHARACTERS:
        return text
    return f"{text[:_VALUE_CHARACTERS]}… ({len(text) - _VALUE_CHARACTERS:,} more characters)"
