"""The rows of a table as a picture takes them: a bounded number, in JSON, with moments that all machines read alike."""

import json
from typing import Any, Final

import polars as pl

MOST_DRAWN: Final = 5_000
"""Rows of a picture; of more, so many evenly spread."""


def drawn_rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows that are drawn. A date is its midnight in UTC, a moment without a zone is taken for one of UTC: a
    drawing in another zone would else show another day."""
    drawn = table.gather_every(_every(table))
    moments = [_moment(name, dtype) for name, dtype in drawn.schema.items() if dtype == pl.Datetime]
    drawn = drawn.with_columns(moments)
    rows: list[dict[str, Any]] = json.loads(drawn.write_json())
    return rows


def left_out(table: pl.DataFrame) -> list[str]:
    """What has to be said of a picture of this table."""
    if table.height <= MOST_DRAWN:
        return []
    drawn = -(-table.height // _every(table))
    told = f"{table.height} rows are left; the picture shows {drawn} of them, evenly spread"
    return [f"{told}, and what it adds up or counts is of those alone"]


def _every(table: pl.DataFrame) -> int:
    return max(1, -(-table.height // MOST_DRAWN))


def _moment(name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if getattr(dtype, "time_zone", None):
        column = column.dt.convert_time_zone("UTC")
    return column.dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
