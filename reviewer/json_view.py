"""A JSON value as a person reads it exactly: every character of it is there or written out, and none of it is markup.

A line end inside a text is shown as one, behind a mark; a backslash and an n that stand in the text are shown as JSON
has them, with two backslashes, so the two cannot be taken for each other.
"""

import json
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from reviewer.seen import seen

_TEXT = Markup('<span class="text">"{}"</span>')
_NAME = Markup('<span class="name">"{}"</span>: ')
_PLAIN = Markup('<span class="plain-value">{}</span>')
_LINE_END = Markup('<span class="line-end" title="a line end">↵</span>\n')

_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t"})


def drawn(value: Any) -> Markup:
    """`value`, indented."""
    return Markup("").join(_value(value, "\n"))


def _value(value: Any, margin: str) -> Iterator[Markup]:
    if isinstance(value, str):
        yield _TEXT.format(_text(value))
    elif isinstance(value, dict) and value:
        yield from _block("{", "}", [(Markup(_NAME.format(_text(name))), each) for name, each in value.items()], margin)
    elif isinstance(value, list) and value:
        yield from _block("[", "]", [(Markup(""), each) for each in value], margin)
    else:
        yield _PLAIN.format(json.dumps(value))


def _block(opening: str, closing: str, items: list[tuple[Markup, Any]], margin: str) -> Iterator[Markup]:
    inner = margin + "  "
    yield Markup(opening)
    for number, (name, each) in enumerate(items):
        yield Markup("," if number else "") + Markup(inner) + name
        yield from _value(each, inner)
    yield Markup(margin) + Markup(closing)


def _text(text: str) -> Markup:
    """A text as JSON has it, but for its line ends; what nobody would see is written as an escape, and marked."""
    lines = (seen(line.translate(_ESCAPED)) for line in text.split("\n"))
    return _LINE_END.join(lines)
