"""What a client tells of a table of its own can be true, or is refused with its place."""

from typing import Any

import pytest

from perdure.core.memory.files import contradiction, handed_in_fault

COLUMN: dict[str, Any] = {"name": "n", "kind": "quantitative", "distinct": 2, "nulls": 1, "least": -1, "most": 3.5}
NAMES: dict[str, Any] = {"name": "side", "kind": "nominal", "distinct": 3, "nulls": 0}
TABLE: dict[str, Any] = {"name": "t", "rows": 3, "columns": [NAMES, COLUMN]}
RESULT: dict[str, Any] = {"ok": True, "rows": 3, "columns": [NAMES, COLUMN]}


def test_what_can_be_true_is_taken() -> None:
    assert contradiction(TABLE) == "" == contradiction({**TABLE, "others": [{**TABLE, "name": "u"}]})
    for payload in (RESULT, {"ok": False}, {"ok": False, "error": "no"}, {"text": "another kind of answer"}):
        assert handed_in_fault(payload) == ""


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"least": 4}, "columns.1.least: is more than most"),
        ({"least": None}, "columns.1: has one end of a range"),
        ({"kind": "nominal"}, "columns.1.least: only numbers have a range"),
        ({"nulls": 4}, "columns.1.nulls: is more than there are rows"),
        ({"distinct": 4}, "columns.1.distinct: is more than there are rows"),
        ({"name": "side"}, "columns.1.name: is given twice"),
    ],
)
def test_counts_and_ranges_that_contradict_each_other_are_told_with_their_place(
    changed: dict[str, Any], told: str
) -> None:
    columns = [NAMES, {**COLUMN, **changed}]
    assert contradiction({**TABLE, "columns": columns}).startswith(told)
    assert handed_in_fault({**RESULT, "columns": columns}).startswith(told)
    beside = {**TABLE, "others": [{**TABLE, "name": "u", "columns": columns}]}
    assert contradiction(beside).startswith(f"others.0.{told}")


def test_two_tables_of_one_name_and_a_result_without_its_parts_are_refused() -> None:
    assert "given twice" in contradiction({**TABLE, "others": [TABLE]})
    for name in ("rows", "columns"):
        assert handed_in_fault({key: value for key, value in RESULT.items() if key != name}).startswith(f"{name}: ")
    assert handed_in_fault({**RESULT, "error": "no"}).startswith("error: ")
