"""A CSV as a Polars table: numbers and dates recognised, sizes bounded, faults as a sentence.

An empty cell and NaN are missing values; a line without any is no row. A column with leading zeros holds codes, which
are text.
"""

import csv
import io
import re
from typing import Any, Final

import polars as pl

from contracts.tables import MOST_COLUMNS, MOST_ROWS
from perdure.tables.trouble import TableTrouble
from perdure.tables.values import plain
from policy.file_content import separator_of

_MISSING: Final = ("", "NaN", "nan")
_LONE_RETURN: Final = re.compile(rb"\r(?!\n)")
_ODD: Final = re.compile(rb"(?:^|[,;\t\n\"])[ ]*[+-]?0\d|\d{19}")
"""Where Polars reads a number otherwise than a person would, or not at all: worth a look at each column."""
_CODE: Final = r"^[+-]?0\d+(\.\d*)?$"
_LONG: Final = r"^[+-]?\d{19,}$"
_WHOLE: Final = r"^[+-]?\d{1,38}$"


def read_csv(content: bytes, media_type: str = "text/csv") -> pl.DataFrame:
    """The table in a file; where semicolons part its cells, a comma may part a number.

    Raises: TableTrouble.
    """
    if b"\x00" in content:
        raise TableTrouble("the file holds a NUL, which no text does")
    content = content.removeprefix(b"\xef\xbb\xbf")
    separator = separator_of(media_type, content)
    try:
        if _LONE_RETURN.search(content):
            content = _with_line_feeds(content, separator)
        kinds = _own_kinds(_read(content, separator, infer_schema=False)) if _ODD.search(content) else {}
        table = _typed(content, separator, kinds)
    except (pl.exceptions.PolarsError, csv.Error) as error:
        raise TableTrouble(f"the table cannot be read: {str(error).splitlines()[0][:200]}") from None
    if table.height > MOST_ROWS:
        raise TableTrouble(f"a table has {MOST_ROWS} rows at most")
    if table.width > MOST_COLUMNS:
        raise TableTrouble(f"a table has {MOST_COLUMNS} columns at most")
    table = table.filter(~pl.all_horizontal(pl.all().is_null()))
    if not table.height:
        raise TableTrouble("the table has no rows")
    return plain(table.rename({name: name.strip() for name in table.columns}))


def _read(content: bytes, separator: str, **how: Any) -> pl.DataFrame:
    return pl.read_csv(
        io.BytesIO(content),
        separator=separator,
        decimal_comma=separator == ";",
        null_values=list(_MISSING),
        n_rows=MOST_ROWS + 1,
        **how,
    )


def _typed(content: bytes, separator: str, kinds: dict[str, Any]) -> pl.DataFrame:
    """What a column holds is told by its first rows, and by all of them where those mislead."""
    try:
        return _read(content, separator, try_parse_dates=True, infer_schema_length=10_000, schema_overrides=kinds)
    except pl.exceptions.PolarsError:
        return _read(content, separator, try_parse_dates=True, infer_schema_length=None, schema_overrides=kinds)


def _own_kinds(cells: pl.DataFrame) -> dict[str, Any]:
    """Of columns whose numbers would lose digits: what they are read as."""
    kinds = dict[str, Any]()
    for column in cells:
        held = column.drop_nulls().str.strip_chars()
        if held.str.contains(_CODE).any():
            kinds[column.name] = pl.String
        elif held.str.contains(_LONG).any():
            whole, numbers = held.str.contains(_WHOLE).all(), held.cast(pl.Float64, strict=False)
            kinds[column.name] = pl.Int128 if whole else pl.String if numbers.null_count() else pl.Float64
    return kinds


def _with_line_feeds(content: bytes, separator: str) -> bytes:
    """The same rows, where some end in a carriage return alone."""
    text = content.decode("utf-8", "surrogateescape")
    made = io.StringIO(newline="")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    csv.writer(made, delimiter=separator, lineterminator="\n").writerows(rows)
    return made.getvalue().encode("utf-8", "surrogateescape")
