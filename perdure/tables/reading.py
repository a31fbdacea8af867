"""A CSV as a Polars table: numbers and dates recognised, sizes bounded, faults as a sentence."""

import io

import polars as pl

from perdure.tables.trouble import TableTrouble

MOST_ROWS = 1_000_000
MOST_COLUMNS = 200


def read_csv(content: bytes, separator: str = ",") -> pl.DataFrame:
    """The table in a file.

    Raises: TableTrouble.
    """
    if b"\x00" in content:
        raise TableTrouble("the file holds a NUL, which no text does")
    try:
        table = pl.read_csv(
            io.BytesIO(content.removeprefix(b"\xef\xbb\xbf")),
            separator=separator,
            try_parse_dates=True,
            infer_schema_length=10_000,
            n_rows=MOST_ROWS + 1,
        )
    except pl.exceptions.PolarsError as error:
        raise TableTrouble(f"the table cannot be read: {str(error).splitlines()[0][:200]}") from None
    if table.height > MOST_ROWS:
        raise TableTrouble(f"a table has {MOST_ROWS} rows at most")
    if table.width > MOST_COLUMNS:
        raise TableTrouble(f"a table has {MOST_COLUMNS} columns at most")
    if not table.height:
        raise TableTrouble("the table has no rows")
    return table.rename({name: name.strip() for name in table.columns})
