"""Warnings about a design: rows that it leaves out, missing names, a mark that is not possible."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MARKS = {
    "bar": "bars",
    "line": "lines",
    "area": "areas",
    "point": "points",
    "arc": "a pie",
    "rect": "a heat map",
    "tick": "ticks",
}
MAX_NAME_CHARACTERS = 60


def warnings_of(design: Mapping[str, Any], columns: Sequence[Mapping[str, Any]], requested: Sequence[str]) -> list[str]:
    """Returns the warnings as sentences for the reader of the picture."""
    shown = {str(encoding["column"]) for encoding in design["encodings"].values()}
    shown_columns = [column for column in columns if column["name"] in shown]
    return [*_mark_warnings(str(design["mark"]), shown_columns, requested), *_missing_value_warnings(shown_columns)]


def _mark_warnings(mark: str, shown: Sequence[Mapping[str, Any]], requested: Sequence[str]) -> Iterator[str]:
    if not requested or mark in requested:
        return
    negative = [_name(column) for column in shown if (column.get("least") or 0) < 0]
    subject = f"{negative[0]}, which has negative values" if negative and "arc" in requested else "this"
    yield f"{_MARKS[requested[0]]} cannot show {subject}; {_MARKS[mark]} was drawn instead"


def _missing_value_warnings(shown: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for column in shown:
        count = int(column.get("nulls") or 0)
        if not count:
            continue
        rows = f"{count} row{'s have' if count > 1 else ' has'} no value in {_name(column)}"
        as_name = column["kind"] in ("nominal", "boolean")
        yield rows + (", which is shown as (missing)" if as_name else " and is left out of the chart")


def _name(column: Mapping[str, Any]) -> str:
    return repr(str(column["name"])[:MAX_NAME_CHARACTERS])
