"""A table as a client that keeps it describes it: names, kinds and counts of its columns, never a row."""

from typing import Literal

from pydantic import ConfigDict, Field

from contracts.frozen import Frozen


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
    columns: list[ClientColumn] = Field(min_length=1, max_length=200)
