"""A table as a client that keeps it describes it: names, kinds and counts of its columns, never a row."""

from typing import Final, Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from contracts.frozen import Frozen

CLIENT_TABLE: Final = "client_table"
"""The turn's metadata that says: the data stays with the client; here is what it holds."""
MOST_OTHERS: Final = 3
MOST_ROWS: Final = 1_000_000
MOST_COLUMNS: Final = 200


class _Strict(Frozen):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ClientColumn(_Strict):
    """One column."""

    name: str = Field(min_length=1, max_length=200)
    kind: Literal["quantitative", "temporal", "nominal", "boolean"]
    distinct: int = Field(ge=0)
    nulls: int = Field(ge=0)
    least: int | float | None = None
    most: int | float | None = None


class ClientTable(_Strict):
    """The whole."""

    name: str = Field(min_length=1, max_length=120)
    rows: int = Field(ge=1)
    columns: list[ClientColumn] = Field(min_length=1, max_length=MOST_COLUMNS)


class ClientTables(ClientTable):
    """A table, and those beside it that plans may join."""

    others: list[ClientTable] = Field(default=[], max_length=MOST_OTHERS)


def why_no_tables(given: JsonValue) -> str:
    """What is wrong with a description, in a sentence that quotes nothing of it; empty where it is one."""
    try:
        ClientTables.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part)[:40] for part in first["loc"])
        return f"the metadata {CLIENT_TABLE}: {place}: {first['msg']}"[:300]
    return ""
