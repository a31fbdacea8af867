"""What may be told of a table without telling its rows: for each column its kind, its counts, its range in numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Literal

import polars as pl
from pydantic import JsonValue

Kind = Literal["quantitative", "temporal", "nominal", "boolean"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column, summed up. No cell of a text column is in it."""

    name: str
    kind: Kind
    distinct: int
    nulls: int
    least: float | None = None
    """Of numbers, rounded to four digits: a range and no cell, though a short number is its own rounding."""
    most: float | None = None

    def as_json(self) -> dict[str, JsonValue]:
        """For the wire."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def profile_of(table: pl.DataFrame) -> list[Column]:
    """Every column, in order."""
    return [_column(table[name]) for name in table.columns]


def kind_of(dtype: pl.DataType) -> Kind:
    """How a column of this type is to be read. A time of day is a name: no axis of days has a place for it."""
    if dtype.is_numeric():
        return "quantitative"
    if dtype in (pl.Date, pl.Datetime):
        return "temporal"
    return "boolean" if dtype == pl.Boolean else "nominal"


def _column(series: pl.Series) -> Column:
    kind = kind_of(series.dtype)
    least, most = (_rounded(series.min()), _rounded(series.max())) if kind == "quantitative" else (None, None)
    return Column(series.name, kind, series.n_unique(), series.null_count(), least, most)


def _rounded(value: object) -> float | None:
    if not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(f"{value:.4g}")


def as_json(columns: Sequence[Column]) -> list[JsonValue]:
    """All of them, for the wire."""
    return [column.as_json() for column in columns]
