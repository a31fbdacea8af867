"""What a value is here. A number has an end and is exact, a span of time is a number of days; what is none is missing,
and what is missing is never a zero.
"""

from typing import Final

import polars as pl

MISSING: Final = "(missing)"
"""What rows without a value go by where a name is shown."""
_DAY_MILLISECONDS: Final = 86_400_000
_NARROW: Final = (-(2**63), 2**63 - 1)


def plain(table: pl.DataFrame) -> pl.DataFrame:
    """The table with such values alone; whole numbers are of 64 bits where they fit."""
    made = []
    for name, dtype in table.schema.items():
        column = pl.col(name)
        if dtype == pl.Duration:
            made.append(column.dt.total_milliseconds() / _DAY_MILLISECONDS)
        elif dtype.is_float():
            made.append(pl.when(column.is_finite()).then(column).alias(name))
        elif dtype == pl.Int128 and _fits(table[name]):
            made.append(column.cast(pl.Int64))
    return table.with_columns(made) if made else table


def wide(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column to work with: whole numbers have room, where they would start anew from the other end."""
    column = pl.col(name)
    return column.cast(pl.Int128) if dtype.is_integer() else column


def named(table: pl.DataFrame, column: str) -> pl.DataFrame:
    """The table with the column as names, where some are missing."""
    if not table[column].null_count():
        return table
    return table.with_columns(pl.col(column).cast(pl.String).fill_null(MISSING))


def _fits(series: pl.Series) -> bool:
    least, most = series.min(), series.max()
    if not isinstance(least, int) or not isinstance(most, int):
        return True
    return least >= _NARROW[0] and most <= _NARROW[1]
