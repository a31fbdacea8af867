"""What is different between two JSON values, or two texts, line by line."""

import difflib
import json
from dataclasses import dataclass
from typing import Any

_MOST_LINES = 3_000
"""Longer ones are told whole, one after the other: comparing them takes seconds."""
_AROUND = 2
"""Lines that stay the same, shown beside those that do not."""
_FEW_LINES = 40
"""Of both together: so few are shown whole, with the brackets that they stand in."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a comparison."""

    sign: str
    """`-` was, `+` is, a blank for both; `…` where lines that stay the same are left out."""
    text: str


def differences(before: Any, after: Any) -> list[Line]:
    """The lines that differ, with a few around them, or all where they are few; none where there is no difference."""
    return _compared(_lines(before), _lines(after))


def text_differences(before: str, after: str) -> list[Line]:
    """The same of two texts."""
    return _compared(before.splitlines(), after.splitlines())


def _compared(old: list[str], new: list[str]) -> list[Line]:
    if len(old) + len(new) > _MOST_LINES:
        return [] if old == new else [*(Line("-", text) for text in old), *(Line("+", text) for text in new)]
    found: list[Line] = []
    around = _AROUND if len(old) + len(new) > _FEW_LINES else _FEW_LINES
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(around):
        if found:
            found.append(Line("…", ""))
        for what, start, end, to_start, to_end in group:
            if what == "equal":
                found += [Line(" ", text) for text in old[start:end]]
                continue
            found += [Line("-", text) for text in old[start:end]]
            found += [Line("+", text) for text in new[to_start:to_end]]
    return found


def _lines(value: Any) -> list[str]:
    # Without commas: a line that is not the last any more is none that differs.
    return json.dumps(value, indent=2, ensure_ascii=False, separators=("", ": ")).split("\n")
