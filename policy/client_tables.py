"""Whether what a client tells of a table of its own can be true: counts and ranges that contradict each other are
refused with their place, and nothing of what was told is quoted.

The form itself is checked before (contracts/tables.py, the schema of a pause).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def contradiction(told: Mapping[str, Any]) -> str:
    """Of a table with those beside it: the first thing that cannot be; empty where all can."""
    return next(_of_tables(told), "")


def handed_in_fault(payload: Mapping[str, Any]) -> str:
    """Of what came of a plan: what is missing of it, or cannot be; empty for a result, and for work that failed."""
    if payload.get("ok") is not True:
        return ""
    for name in ("rows", "columns"):
        if name not in payload:
            return f"{name}: is missing, though ok says that the plan was carried out"
    if "error" in payload:
        return "error: says what failed, though ok says that nothing did"
    return next(_of_columns(payload["columns"], payload["rows"]), "")


def _of_tables(told: Mapping[str, Any]) -> Iterator[str]:
    yield from _of_columns(told["columns"], told["rows"])
    names = {told["name"]}
    for place, other in enumerate(told.get("others") or ()):
        if other["name"] in names:
            yield f"others.{place}.name: is given twice; plans call tables by their names"
        names.add(other["name"])
        yield from (f"others.{place}.{fault}" for fault in _of_columns(other["columns"], other["rows"]))


def _of_columns(columns: Sequence[Mapping[str, Any]], rows: int) -> Iterator[str]:
    names = set[str]()
    for place, column in enumerate(columns):
        if column["name"] in names:
            yield f"columns.{place}.name: is given twice"
        names.add(column["name"])
        for count in ("nulls", "distinct"):
            if column[count] > rows:
                yield f"columns.{place}.{count}: is more than there are rows"
        least, most = column.get("least"), column.get("most")
        if (least is None) != (most is None):
            yield f"columns.{place}: has one end of a range without the other"
        elif least is not None and column["kind"] != "quantitative":
            yield f"columns.{place}.least: only numbers have a range"
        elif least is not None and most is not None and least > most:
            yield f"columns.{place}.least: is more than most"
