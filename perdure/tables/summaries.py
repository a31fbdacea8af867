"""Columns summed up. A row without a value counts for nothing, and how many those were is told; the sum of nothing is
missing.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import polars as pl

from perdure.tables.plan import Group, Pivot, Step
from perdure.tables.profile import kind_of
from perdure.tables.trouble import TableTrouble
from perdure.tables.values import wide

MOST_NAME = 60
_SUMMARIES: Final[Mapping[str, Callable[[pl.Expr], pl.Expr]]] = {
    "sum": lambda x: pl.when(x.count() > 0).then(x.sum()),
    "mean": lambda x: x.mean(),
    "median": lambda x: x.median(),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "count": lambda x: x.count(),
    "distinct": lambda x: x.drop_nulls().n_unique(),
}
_HELD: Final = {"quantitative": "numbers", "temporal": "times", "nominal": "text", "boolean": "true and false"}
_OF_NUMBERS: Final = frozenset({"sum", "mean", "median"})


def known(table: pl.DataFrame, *names: str) -> None:
    """Raises: TableTrouble where one of these is no column."""
    for name in names:
        if name not in table.columns:
            raise TableTrouble(f"there is no column {name[:80]!r}; the columns are {', '.join(table.columns)[:400]}")


def summed_up(table: pl.DataFrame, column: str, function: str) -> pl.Expr:
    """A column of this table, as one value.

    Raises: TableTrouble.
    """
    known(table, column)
    dtype = table.schema[column]
    if function in _OF_NUMBERS and not dtype.is_numeric():
        held = _HELD[kind_of(dtype)] if table[column].count() else "no value at all"
        raise TableTrouble(f"{function} needs numbers, and {column[:80]!r} holds {held}")
    return _SUMMARIES[function](wide(column, dtype))


def not_summed(table: pl.DataFrame, step: Step) -> Iterator[str]:
    """What a step leaves out of sums and the like, in a sentence for each."""
    found = list[tuple[str, str]]()
    if isinstance(step, Group):
        found = [(one.column, one.function) for one in step.summaries]
    elif isinstance(step, Pivot):
        found = [(step.values, step.function)]
    for column, function in found:
        missing = table[column].null_count() if column in table.columns else 0
        if missing:
            rows = f"{missing} of {table.height} rows {'have' if missing > 1 else 'has'}"
            yield f"{rows} no value in {column[:MOST_NAME]!r}: the {function} is of the others"
