"""Reads a CSV file as a Polars table: recognizes numbers and dates, limits sizes, and reports errors as sentences.

An empty cell and NaN are missing values. A line without any value is not a row. A column with leading zeros contains
codes, which are text.
"""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Final, Literal

import polars as pl
from pydantic import JsonValue

from perdure.contracts.memory import MAX_COLUMNS, MAX_ROWS
from perdure.core.memory.file_content import separator_of
from perdure.sdk.tables.plan import TableError

_MISSING: Final = ("", "NaN", "nan")
_LONE_RETURN: Final = re.compile(rb"\r(?!\n)")
_SPECIAL_NUMBERS: Final = re.compile(rb"(?:^|[,;\t\n\"])[ ]*[+-]?0\d|\d{19}")
"""Numbers that Polars reads differently from people, or not at all. If one is found, each column is checked."""
_CODE_PATTERN: Final = r"^[+-]?0\d+(\.\d*)?$"
_LONG_PATTERN: Final = r"^[+-]?\d{19,}$"
_INTEGER_PATTERN: Final = r"^[+-]?\d{1,38}$"
MISSING: Final = "(missing)"
"""Name of rows without a value, if a name is shown."""
_DAY_MILLISECONDS: Final = 86_400_000
_INT64_RANGE: Final = (-(2**63), 2**63 - 1)
MAX_ROWS_TO_SHOW: Final = 5_000
"""Maximum rows of a chart. A longer table is sampled evenly."""
MAX_EXACT_INTEGER: Final = 2**53
"""Largest integer up to which integers stay distinct in a chart."""
MAX_NAMED_COLUMNS: Final = 3


def read_csv(content: bytes, media_type: str = "text/csv") -> pl.DataFrame:
    """Returns the table in a file. If semicolons separate its cells, a comma is the decimal separator.

    Raises: TableError if the file is not a valid table.
    """
    if b"\x00" in content:
        raise TableError("the file contains a NUL byte and is not text")
    content = content.removeprefix(b"\xef\xbb\xbf")
    separator = separator_of(media_type, content)
    try:
        if _LONE_RETURN.search(content):
            content = _with_line_feeds(content, separator)
        kinds = _exact_types(_read(content, separator, infer_schema=False)) if _SPECIAL_NUMBERS.search(content) else {}
        table = _typed(content, separator, kinds)
    except (pl.exceptions.PolarsError, csv.Error) as error:
        raise TableError(f"the table cannot be read: {str(error).splitlines()[0][:200]}") from None
    if table.height > MAX_ROWS:
        raise TableError(f"the table has more than {MAX_ROWS} rows")
    if table.width > MAX_COLUMNS:
        raise TableError(f"the table has more than {MAX_COLUMNS} columns")
    table = table.filter(~pl.all_horizontal(pl.all().is_null()))
    if not table.height:
        raise TableError("the table has no rows")
    return normalized(table.rename({name: name.strip() for name in table.columns}))


def _read(content: bytes, separator: str, **options: Any) -> pl.DataFrame:
    return pl.read_csv(
        io.BytesIO(content),
        separator=separator,
        decimal_comma=separator == ";",
        null_values=list(_MISSING),
        n_rows=MAX_ROWS + 1,
        **options,
    )


def _typed(content: bytes, separator: str, kinds: dict[str, Any]) -> pl.DataFrame:
    """Infers the types of columns from the first 10,000 rows, or from all rows if those do not fit."""
    try:
        return _read(content, separator, try_parse_dates=True, infer_schema_length=10_000, schema_overrides=kinds)
    except pl.exceptions.PolarsError:
        return _read(content, separator, try_parse_dates=True, infer_schema_length=None, schema_overrides=kinds)


def _exact_types(cells: pl.DataFrame) -> dict[str, Any]:
    """Returns the types of columns whose numbers would otherwise lose digits."""
    kinds = dict[str, Any]()
    for column in cells:
        values = column.drop_nulls().str.strip_chars()
        if values.str.contains(_CODE_PATTERN).any():
            kinds[column.name] = pl.String
        elif values.str.contains(_LONG_PATTERN).any():
            integral, numbers = values.str.contains(_INTEGER_PATTERN).all(), values.cast(pl.Float64, strict=False)
            kinds[column.name] = pl.Int128 if integral else pl.String if numbers.null_count() else pl.Float64
    return kinds


def _with_line_feeds(content: bytes, separator: str) -> bytes:
    """Returns the same rows with line feeds as line ends, if some end in a lone carriage return."""
    text = content.decode("utf-8", "surrogateescape")
    output = io.StringIO(newline="")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    csv.writer(output, delimiter=separator, lineterminator="\n").writerows(rows)
    return output.getvalue().encode("utf-8", "surrogateescape")


def normalized(table: pl.DataFrame) -> pl.DataFrame:
    """Returns the table with normalized values only. Integers have 64 bits if they fit. Numbers are finite and exact. A
    duration is a number of days. Other values count as missing, and a missing value is never a zero."""
    columns = []
    for name, dtype in table.schema.items():
        column = pl.col(name)
        if dtype == pl.Duration:
            columns.append(column.dt.total_milliseconds() / _DAY_MILLISECONDS)
        elif dtype.is_float():
            columns.append(pl.when(column.is_finite()).then(column).alias(name))
        elif dtype == pl.Int128 and _fits_int64(table[name]):
            columns.append(column.cast(pl.Int64))
    return table.with_columns(columns) if columns else table


def widened_column(name: str, dtype: pl.DataType) -> pl.Expr:
    """Returns a column for calculations. Integers are widened to 128 bits, so that they do not overflow."""
    column = pl.col(name)
    return column.cast(pl.Int128) if dtype.is_integer() else column


def with_missing_named(table: pl.DataFrame, column: str) -> pl.DataFrame:
    """Returns the table with the column as text and its missing values as "(missing)"; the same table if no value is
    missing."""
    if not table[column].null_count():
        return table
    return table.with_columns(pl.col(column).cast(pl.String).fill_null(MISSING))


def _fits_int64(series: pl.Series) -> bool:
    minimum, maximum = series.min(), series.max()
    if not isinstance(minimum, int) or not isinstance(maximum, int):
        return True
    return minimum >= _INT64_RANGE[0] and maximum <= _INT64_RANGE[1]


Kind = Literal["quantitative", "temporal", "nominal", "boolean"]


@dataclass(frozen=True, slots=True)
class Column:
    """The profile of one column. It contains no cell of a text column."""

    name: str
    kind: Kind
    distinct: int
    nulls: int
    least: float | None = None
    """Minimum of a numeric column, rounded to four digits, so that it is a range and not a cell. A short number rounds
    to itself."""
    most: float | None = None

    def as_json(self) -> dict[str, JsonValue]:
        """Returns the profile as JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def profile_of(table: pl.DataFrame) -> list[Column]:
    """Returns the profile of every column, in order."""
    return [_column(table[name]) for name in table.columns]


def kind_of(dtype: pl.DataType) -> Kind:
    """Returns how a column of this type is shown. A time of day is a name, because an axis of dates cannot show
    it."""
    if dtype.is_numeric():
        return "quantitative"
    if dtype in (pl.Date, pl.Datetime):
        return "temporal"
    return "boolean" if dtype == pl.Boolean else "nominal"


def _column(series: pl.Series) -> Column:
    kind = kind_of(series.dtype)
    minimum, maximum = (_rounded(series.min()), _rounded(series.max())) if kind == "quantitative" else (None, None)
    return Column(series.name, kind, series.n_unique(), series.null_count(), minimum, maximum)


def _rounded(value: object) -> float | None:
    if not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(f"{value:.4g}")


def as_json(columns: Sequence[Column]) -> list[JsonValue]:
    """Returns the profiles as JSON."""
    return [column.as_json() for column in columns]


def rows_to_show(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Returns the rows of a chart.

    A date is its midnight in UTC, and a time without a zone counts as UTC. Otherwise a renderer in another zone would
    show another day. Missing names are shown as `MISSING`.

    Their number is limited. They are JSON, with times that all machines read alike.
    """
    sample = table.gather_every(_sampling_interval(table))
    times = [_time_column(name, dtype) for name, dtype in sample.schema.items() if dtype == pl.Datetime]
    sample = sample.with_columns(times).with_columns(pl.col(_inexact_columns(table)).cast(pl.Float64))
    for name, dtype in table.schema.items():
        if kind_of(dtype) in ("nominal", "boolean"):
            sample = with_missing_named(sample, name)
    rows: list[dict[str, Any]] = json.loads(sample.write_json())
    return rows


def warnings_to_show(table: pl.DataFrame) -> list[str]:
    """Returns sentences about what a chart of this table leaves out or rounds."""
    warnings, inexact = [], _inexact_columns(table)
    if table.height > MAX_ROWS_TO_SHOW:
        shown_rows = -(-table.height // _sampling_interval(table))
        sampling = f"{table.height} rows remain; the chart shows {shown_rows} of them, evenly spaced"
        warnings.append(f"{sampling}, and its sums and counts cover only those rows")
    if inexact:
        names = ", ".join(repr(name[:40]) for name in inexact[:MAX_NAMED_COLUMNS])
        further = f" and {len(inexact) - MAX_NAMED_COLUMNS} more" if len(inexact) > MAX_NAMED_COLUMNS else ""
        warnings.append(f"whole numbers in {names}{further} exceed the precision of the chart and are rounded")
    return warnings


def _inexact_columns(table: pl.DataFrame) -> list[str]:
    """Returns the integer columns that a chart would round or could not show."""
    columns = []
    for name, dtype in table.schema.items():
        limits = (table[name].min(), table[name].max()) if dtype.is_integer() else ()
        if any(isinstance(limit, int) and abs(limit) > MAX_EXACT_INTEGER for limit in limits):
            columns.append(name)
    return columns


def _sampling_interval(table: pl.DataFrame) -> int:
    return max(1, -(-table.height // MAX_ROWS_TO_SHOW))


def _time_column(name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if getattr(dtype, "time_zone", None):
        column = column.dt.convert_time_zone("UTC")
    return column.dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
