"""The rows of a table as a picture takes them: a bounded number, in JSON, with moments that all machines read alike."""

import json
from typing import Any, Final

import polars as pl

from perdure.tables.profile import kind_of
from perdure.tables.values import named

MOST_DRAWN: Final = 5_000
"""Rows of a picture; of more, so many evenly spread."""
MOST_EXACT: Final = 2**53
"""Whole numbers up to here are told apart in a picture."""
MOST_NAMED: Final = 3


def drawn_rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows that are drawn. A date is its midnight in UTC, a moment without a zone is taken for one of UTC: a
    drawing in another zone would else show another day. A name that is missing is a name of its own."""
    drawn = table.gather_every(_every(table))
    moments = [_moment(name, dtype) for name, dtype in drawn.schema.items() if dtype == pl.Datetime]
    drawn = drawn.with_columns(moments).with_columns(pl.col(_too_long(table)).cast(pl.Float64))
    for name, dtype in table.schema.items():
        if kind_of(dtype) in ("nominal", "boolean"):
            drawn = named(drawn, name)
    rows: list[dict[str, Any]] = json.loads(drawn.write_json())
    return rows


def left_out(table: pl.DataFrame) -> list[str]:
    """What has to be said of a picture of this table."""
    told, long = [], _too_long(table)
    if table.height > MOST_DRAWN:
        drawn = -(-table.height // _every(table))
        spread = f"{table.height} rows are left; the picture shows {drawn} of them, evenly spread"
        told.append(f"{spread}, and what it adds up or counts is of those alone")
    if long:
        names = ", ".join(repr(name[:40]) for name in long[:MOST_NAMED])
        more = f" and {len(long) - MOST_NAMED} more" if len(long) > MOST_NAMED else ""
        told.append(f"whole numbers in {names}{more} are too long for a picture, which rounds them")
    return told


def _too_long(table: pl.DataFrame) -> list[str]:
    """The columns of whole numbers that a drawing would round, or not take at all."""
    found = []
    for name, dtype in table.schema.items():
        ends = (table[name].min(), table[name].max()) if dtype.is_integer() else ()
        if any(isinstance(end, int) and abs(end) > MOST_EXACT for end in ends):
            found.append(name)
    return found


def _every(table: pl.DataFrame) -> int:
    return max(1, -(-table.height // MOST_DRAWN))


def _moment(name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if getattr(dtype, "time_zone", None):
        column = column.dt.convert_time_zone("UTC")
    return column.dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
