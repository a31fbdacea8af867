"""Line-by-line differences of two values or texts, for the pages."""

import difflib
import json
from dataclasses import dataclass
from typing import Any

_MAX_DIFF_LINES = 3_000

"""Longer inputs are shown in full, one below the other, because comparing them takes seconds."""

_CONTEXT_LINES = 2

"""Unchanged lines that are shown around each change."""

_WHOLE_DIFF_LINES = 40

"""Lines of both inputs together. Up to this number all lines are shown, so that the enclosing brackets are visible."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a comparison."""

    sign: str
    """`-` for a removed line, `+` for an added one, a blank for an unchanged one, `…` for omitted unchanged lines."""
    text: str


def differences(before: Any, after: Any) -> list[DiffLine]:
    """Returns the lines that differ, with a few lines around them, or all lines if they are few. Empty if nothing
    differs."""
    return _compare_lines(_json_lines(before), _json_lines(after))


def text_differences(before: str, after: str) -> list[DiffLine]:
    """Returns the lines of two texts that differ, as `differences` does."""
    return _compare_lines(before.splitlines(), after.splitlines())


def _compare_lines(old: list[str], new: list[str]) -> list[DiffLine]:
    if len(old) + len(new) > _MAX_DIFF_LINES:
        return [] if old == new else [*(DiffLine("-", text) for text in old), *(DiffLine("+", text) for text in new)]
    lines: list[DiffLine] = []
    context = _CONTEXT_LINES if len(old) + len(new) > _WHOLE_DIFF_LINES else _WHOLE_DIFF_LINES
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        if lines:
            lines.append(DiffLine("…", ""))
        for change, start, end, to_start, to_end in group:
            if change == "equal":
                lines += [DiffLine(" ", text) for text in old[start:end]]
                continue
            lines += [DiffLine("-", text) for text in old[start:end]]
            lines += [DiffLine("+", text) for text in new[to_start:to_end]]
    return lines


def _json_lines(value: Any) -> list[str]:
    # Without commas, a line that is no longer the last one counts as unchanged.
    return json.dumps(value, indent=2, ensure_ascii=False, separators=("", ": ")).split("\n")
