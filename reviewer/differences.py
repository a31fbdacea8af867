"""What is different between two JSON values, or two texts, line by line."""

import difflib
import json
from dataclasses import dataclass
from typing import Any

_MOST_LINES = 3_000
"""Longer ones are told whole, one after the other: comparing them takes seconds."""
_AROUND = 2
"""Lines that stay the same, shown beside those that do not."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a comparison."""

    sign: str
    """`-` was, `+` is, a blank for both; `…` where lines that stay the same are left out."""
    text: str


def differences(before: Any, after: Any, *, commas: bool = True) -> list[Line]:
    """The lines that differ, with a few around them; none where there is no difference. Without `commas` a line that is
    not the last any more is none that differs: for what is read and never sent."""
    return _compared(_lines(before, commas), _lines(after, commas))


def text_differences(before: str, after: str) -> list[Line]:
    """The same of two texts."""
    return _compared(before.splitlines(), after.splitlines())


def _compared(old: list[str], new: list[str]) -> list[Line]:
    if len(old) + len(new) > _MOST_LINES:
        return [] if old == new else [*(Line("-", text) for text in old), *(Line("+", text) for text in new)]
    found: list[Line] = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_AROUND):
        if found:
            found.append(Line("…", ""))
        for what, start, end, to_start, to_end in group:
            if what == "equal":
                found += [Line(" ", text) for text in old[start:end]]
                continue
            found += [Line("-", text) for text in old[start:end]]
            found += [Line("+", text) for text in new[to_start:to_end]]
    return found


def _lines(value: Any, commas: bool) -> list[str]:
    return json.dumps(value, indent=2, ensure_ascii=False, separators=("," if commas else "", ": ")).splitlines()
