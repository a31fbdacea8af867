"""perdure/sdk/parameters.py: which types check more than their schema says, and what they accept."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    WithJsonSchema,
    field_validator,
)

from perdure.core.calls.arguments import freeze_arguments
from perdure.core.json_schema import schema_errors
from perdure.sdk.parameters import ArgumentsRefused, Parameters
from tests.scale import sized


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    number: int = 1


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str | None = None
    inner: list[Address] = []


class Picky(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _odd(cls, number: int) -> int:
        if number % 2 == 0:
            raise ValueError("must be odd")
        return number


class Trimmed(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    name: Annotated[str, Field(min_length=1)]


def _not_a_number(value: str) -> str:
    raise TypeError("a bug of the author's")


EXACT = [
    int, str, bool, float, JsonValue, Any, Colour, Literal["a", 1], Address, Closed, list[Address], int | str,
    dict[str, JsonValue], str | None, Annotated[str, Field(min_length=2, description="a name")],
    Annotated[str, Field(pattern=r"^p[0-9]{1,4}\d$")], Annotated[int, Field(ge=1, le=5)],
]  # fmt: skip
MORE = [
    date, date | None, Decimal, UUID, bytes, set[str], tuple[int, str], Picky, list[Picky], Trimmed, dict[int, str],
    Annotated[int, AfterValidator(abs)], Annotated[float, Field(multiple_of=0.01)],
    Annotated[str, Field(pattern=r"^\S+$")], Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)],
    Annotated[int, WithJsonSchema({"type": "string"})], Annotated[str, AfterValidator(_not_a_number)],
]  # fmt: skip


def parameters_of(**hints: Any) -> Parameters:
    """The parameters of a function with these."""
    names = ", ".join(hints)
    namespace: dict[str, Callable[..., Any]] = {}
    exec(f"def made({names}): ...", namespace)  # a signature whose names and types are drawn
    namespace["made"].__annotations__ = dict(hints)
    return Parameters.of(namespace["made"])


@pytest.mark.parametrize(("hint", "more"), [*((hint, False) for hint in EXACT), *((hint, True) for hint in MORE)])
def test_types_that_may_refuse_what_fits_their_schema_are_known(hint: Any, more: bool) -> None:
    assert parameters_of(value=hint).checks_more is more


@pytest.mark.parametrize(
    ("hint", "value", "named"),
    [
        (date, "2026-02-30", "value"),
        (UUID, "no", "value"),
        (Annotated[Decimal, Field(decimal_places=2)], "1.234", "value"),
        (list[Picky], [{"number": 1}, {"number": 2}], "value.1.number"),
        (Annotated[str, AfterValidator(_not_a_number)], "x", ""),
    ],
)
def test_a_refusal_names_the_argument(hint: Any, value: JsonValue, named: str) -> None:
    with pytest.raises(ArgumentsRefused) as refused:
        parameters_of(value=hint).bind({"value": value})
    assert refused.value.field == named


PLAIN: list[JsonValue] = [
    None, True, 0, 1, 3, 6, 2.5, 0.015, "", " ", "a", "red", "p12", "ab", "2026-02-30", "1.005", "\u0663", "x y",
    {}, {"street": "s"}, {"street": "s", "number": 2}, {"number": 2}, {"name": " "}, {"1": "x"},
]  # fmt: skip
VALUES: list[JsonValue] = [*PLAIN, *([value] for value in PLAIN), [[1], [" "]], *({"k": value} for value in PLAIN)]
HINTS = st.recursive(
    st.sampled_from([*EXACT, *MORE]),
    lambda inner: (
        st.builds(lambda hint: list[hint], inner)  # type: ignore[valid-type]
        | st.builds(lambda hint: dict[str, hint], inner)  # type: ignore[valid-type]
        | st.builds(
            lambda one, other: one | other | None, st.sampled_from([int, str, Address]), st.sampled_from([bool, Closed])
        )
    ),
    max_leaves=3,
)


@pytest.mark.sized
@settings(max_examples=sized(1_000, 100))
@given(hints=st.dictionaries(st.sampled_from("abc"), HINTS, min_size=1, max_size=3), data=st.data())
def test_arguments_of_a_call_that_people_are_asked_about_are_never_refused(hints: dict[str, Any], data: Any) -> None:
    """A thousand generated tools: a call is frozen by its schema, and checked by its types where those check more."""
    parameters = parameters_of(**hints)
    args: dict[str, JsonValue] = {}
    for name, hint in hints.items():
        schema = parameters_of(value=hint).schema
        fitting = [value for value in VALUES if not schema_errors({"value": value}, schema)]
        assume(fitting)
        args[name] = data.draw(st.sampled_from(fitting))
    frozen = freeze_arguments(args, parameters.schema)
    assert frozen.fault is None
    try:
        parameters.bind(frozen.args)
    except ArgumentsRefused:
        assert parameters.checks_more, "a person would be asked, and the call would be refused"
