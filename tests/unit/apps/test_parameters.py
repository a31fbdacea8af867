"""perdure/sdk/parameters.py: which types check more than their schema says, and what they accept."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    RootModel,
    Strict,
    StringConstraints,
    WithJsonSchema,
    create_model,
    field_validator,
)
from pydantic_core import to_jsonable_python

from perdure.core.calls.arguments import freeze_arguments
from perdure.core.json_schema import schema_errors
from perdure.core.patterns import InvalidPattern, compile_pattern
from perdure.sdk.json_reading import ArgumentsRefused
from perdure.sdk.parameters import Parameters, ToolDefinitionError
from tests.scale import sized

_COUNTED: list[int] = []
LETTERS = frozenset("abcdefgh")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Shade(StrEnum):
    DARK = "dark"


class Size(Enum):
    SMALL = (1, 2)


class Mixed(Enum):
    PAIR = (1, 2)
    ONE = 1.0


class Within(BaseModel):
    y: int = Field(validation_alias=AliasPath("a", 0))


class Exactly(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date


class Either(BaseModel):
    y: int = Field(validation_alias=AliasChoices("b", AliasPath("a", 0)))


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


def _counted(value: int) -> int:
    _COUNTED.append(value)
    if value < 0:
        raise ValueError("negative")
    return value


EXACT: list[Any] = [
    int, str, bool, float, JsonValue, Any, Colour, Literal["a", 1], Address, Closed, list[Address], int | str,
    dict[str, JsonValue], str | None, Annotated[str, Field(min_length=2, description="a name")],
    Annotated[str, Field(pattern=r"^p[0-9]{1,4}\d$")], Annotated[int, Field(ge=1, le=5)], Shade, Literal[Shade.DARK],
    Annotated[int, Field(gt=2**53)], Annotated[float, Field(gt=2**53 - 1)], Annotated[float, Field(multiple_of=0.01)],
    *(Annotated[str, Field(pattern=pattern)] for pattern in (
        r"^[\w.+-]+@[\w-]+\.[a-z]{2,}$", r"^(?:a|[^b-d_])*?\d$", r"^[-+]?\d+(\.\d+)?$", r"[ -~]", r"[&~:a]{2}|\[\]\t")),
]  # fmt: skip
MORE: list[Any] = [
    date, date | None, Decimal, UUID, bytes, set[str], tuple[int, str], Picky, list[Picky], Trimmed, dict[int, str],
    Annotated[int, AfterValidator(abs)], Annotated[int, Field(multiple_of=3)],
    Annotated[str, Field(pattern=r"^\S+$")], Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)],
    Annotated[int, WithJsonSchema({"type": "string"})], Annotated[str, AfterValidator(_not_a_number)],
    Annotated[date, Strict()], Annotated[set[int], Strict()], Exactly, Mixed, Literal["a", b"b"], Either,
    *(Annotated[float, Field(gt=bound)] for bound in (2**53, -1e300)),
    *(Annotated[str, Field(pattern=pattern)] for pattern in (
        r"^[^\w]+$", r"^[^\d]+$", r"^[[:alpha:]]+$", r"^[a-z&&[^b]]+$", r"^[a-z--b]+$", r"^[a-c~~b]+$", r"^[a[bc]]+$",
        r"^\a$", r"^\<a$", r"^a}$", r"^[]a]$", r"(?i)a", r"^[^^]$", r"\x61")),
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


@pytest.mark.parametrize(("hint", "advice"), [
    (Literal[Colour.RED], "Literal['red']"), (list[Literal[b"a"]], "write the values themselves"),
    (Size | None, "give the members of Size texts or numbers"), (dict[str, Within], "Within.y is read from a path"),
    (Annotated[str, Field(pattern=r"[\w-a]")], "invalid range boundary"),
])  # fmt: skip
def test_a_type_that_no_call_can_have_is_a_mistake_of_the_definition(hint: Any, advice: str) -> None:
    with pytest.raises(ToolDefinitionError, match=re.escape(advice)):
        parameters_of(value=hint)


@pytest.mark.parametrize(("hint", "value", "named"), [
    (date, "2026-02-30", "value"),
    (UUID, "no", "value"),
    (Annotated[Decimal, Field(decimal_places=2)], "1.234", "value"),
    (list[Picky], [{"number": 1}, {"number": 2}], "value.1.number"),
    *((Annotated[str, AfterValidator(bug)], "x", "") for bug in (_not_a_number, sys.exit)),
])  # fmt: skip
def test_a_refusal_names_the_argument(hint: Any, value: JsonValue, named: str) -> None:
    with pytest.raises(ArgumentsRefused) as refused:
        parameters_of(value=hint).bind({"value": value})
    assert refused.value.field == named


@pytest.mark.parametrize(("hint", "value", "bound"), [
    (Annotated[date, Strict()], "2026-02-03", date(2026, 2, 3)),
    (Annotated[set[str], Strict()], ["a", "b"], {"a", "b"}),
    (Annotated[UUID, Strict()], str(UUID(int=1)), UUID(int=1)), (Annotated[bytes, Strict()], "a", b"a"),
    (list[Exactly], [{"day": "2026-02-03"}], [Exactly(day=date(2026, 2, 3))]),
    (Annotated[date, Strict()], "2026-02-30", "value: Input should be a valid date in the format YYYY-MM-DD"),
    (Annotated[set[int], Strict()], [1, "x"], "value.1: Input should be a valid integer"),
    (date | str, "2026-02-03", "2026-02-03"), (UUID | str, str(UUID(int=1)), str(UUID(int=1))),
    (Decimal | str, "1.50", "1.50"), (set[int] | list[int], [1, 1], [1, 1]), (Decimal, 1.005, Decimal("1.005")),
    (int, 10**40, 10**40), (Any, 1e-320, 1e-320), (dict[str, int], 3, "value: Input should be a valid dictionary"),
    (Address, 3, "value: Input should be a valid dictionary or instance of Address"),
    (Closed, {"n": 1}, "value.n: Extra inputs are not permitted"),
])  # fmt: skip
def test_strict_types_read_json_and_all_others_read_as_before(hint: Any, value: JsonValue, bound: object) -> None:
    try:
        read = parameters_of(value=hint, other=int).bind({"value": value, "other": 1})["value"]
    except ArgumentsRefused as refused:
        assert str(refused).startswith(str(bound))
    else:
        assert (read, type(read)) == (bound, type(bound))


class Checked(BaseModel):
    day: Annotated[date, Strict()]
    number: Annotated[int, AfterValidator(_counted)]


@pytest.mark.parametrize(("hints", "args", "bound"), [
    ({"day": Annotated[date, Strict()], "label": date | str}, {"day": "2026-02-03", "label": "2026-01-03"}, None),
    ({"day": Annotated[date, Strict()], "label": UUID}, {"day": "2026-02-03", "label": "no"}, "label"),
    ({"one": Checked}, {"one": {"day": "2026-02-03", "number": -1}}, "one.number: Value error, negative"),
    ({"one": Checked | None}, {"one": {"day": "2026-02-03", "number": -1}}, "one.number: Value error, negative"),
    ({"one": Annotated[int, AfterValidator(_counted)]}, {"one": -1}, "one: Value error, negative"),
])  # fmt: skip
def test_each_argument_is_read_as_json_for_itself_and_no_validator_refuses_twice(
    hints: dict[str, Any], args: dict[str, JsonValue], bound: str | None
) -> None:
    _COUNTED.clear()
    try:
        read = parameters_of(**hints).bind(args)
    except ArgumentsRefused as refused:
        assert bound is not None and str(refused).startswith(bound)
    else:
        assert bound is None and read == {"day": date(2026, 2, 3), "label": "2026-01-03"}
    assert len(_COUNTED) <= 1


class Node(BaseModel):
    loud: Annotated[str, AfterValidator(str.upper)] = "a"
    word: str | None = None
    wrong: Annotated[str, AfterValidator(_not_a_number)] = "a"
    number: float = 1.0
    next: "Node | None" = None


class Order(BaseModel):
    amount: Annotated[float, Field(multiple_of=0.01)] = 0.0
    tags: list[str] = Field(default_factory=lambda: ["new"])
    lines: list["Order"] = Field(default_factory=list)
    day: date = Field(default_factory=date.today)
    key: str = Field(default_factory=lambda: (lambda: str(uuid4()))())
    loud: Annotated[str, AfterValidator(str.upper)] = Field(default_factory=lambda: "a")


def test_a_step_of_a_float_is_left_to_the_exact_check_of_the_schema() -> None:
    parameters = parameters_of(order=Order)
    lines: JsonValue = [{"amount": 8388955.54}]
    bound = parameters.bind({"order": {"amount": 8388955.54, "lines": lines}})["order"]
    assert isinstance(bound, Order) and (bound.amount, bound.lines[0].amount) == (8388955.54, 8388955.54)


def test_a_factory_that_always_returns_the_same_is_a_default() -> None:
    parameters = parameters_of(order=Order)
    definitions: Any = parameters.schema["$defs"]
    defaults = {name: part.get("default") for name, part in definitions["Order"]["properties"].items()}
    assert {name for name, default in defaults.items() if default is None} == {"day", "key", "loud"}
    assert (defaults["amount"], defaults["tags"], defaults["lines"]) == (0.0, ["new"], [])
    assert not parameters.own_defaults, "they are the factories' own"


class Tagged(BaseModel):
    tags: frozenset[str] = Field(default=LETTERS, alias="t")


@dataclass
class Noted:
    notes: list[frozenset[str]]


@pytest.mark.parametrize(("hint", "default", "shown"), [
    (frozenset[str], LETTERS, [*"abcdefgh"]), (set[int], {8, 1, 10}, [1, 8, 10]),
    (list[set[str]], [set(LETTERS)], [[*"abcdefgh"]]),
    (dict[str, tuple[frozenset[str], int]], {"k": (LETTERS, 1)}, {"k": [[*"abcdefgh"], 1]}),
    (Tagged | None, Tagged(), {"t": [*"abcdefgh"]}), (Noted, Noted([LETTERS]), {"notes": [[*"abcdefgh"]]}),
    (RootModel[frozenset[str]], RootModel[frozenset[str]](LETTERS), [*"abcdefgh"]),
    (frozenset[frozenset[str]], frozenset(map(frozenset, "hgfedcba")), [[letter] for letter in "abcdefgh"]),
    (frozenset[int | str], frozenset({3, *"ab"}), ["a", "b", 3]),
    *((float, each, None) for each in (float("inf"), float("nan"))),
])  # fmt: skip
def test_a_default_in_the_schema_is_json_with_sets_in_order(hint: Any, default: Any, shown: JsonValue) -> None:
    def made(value: Any = default) -> None: ...

    made.__annotations__ = {"value": hint}
    properties: Any = Parameters.of(made).schema["properties"]
    assert properties["value"].get("default") == shown


@pytest.mark.parametrize(("hint", "value"), [(Node, {}), (list[Node | None], [{}, None]), (Node, {"next": {}})])
def test_a_default_that_its_type_would_change_stays_that_of_the_model(hint: Any, value: JsonValue) -> None:
    parameters = parameters_of(value=hint)
    frozen = freeze_arguments({"value": value}, parameters.schema)
    assert "'number': 1" in str(frozen.args) and "loud" not in str(frozen.args) and "wrong" not in str(frozen.args)
    assert parameters.bind(frozen.args) == parameters.bind({"value": value})
    assert parameters.own_defaults and not parameters_of(value=Address).own_defaults


PLAIN: list[JsonValue] = [
    None, True, 0, 1, 3, 6, 2.5, 0.015, "", " ", "a", "red", "p12", "ab", "2026-02-30", "1.005", "\u0663", "x y",
    {}, {"street": "s"}, {"street": "s", "number": 2}, {"number": 2}, {"name": " "}, {"1": "x"},
]  # fmt: skip
Drawn = tuple[Any, list[JsonValue]]
"""A drawn type, and values that may fit its schema."""
CHARACTERS = "abz0-&~[]^<: \n_\x07\x85\xe9\u0663\ufeff"
TEXTS = [*CHARACTERS, *(one + other for one in CHARACTERS for other in CHARACTERS)]
CLASSES = st.builds(
    lambda negated, parts: f"[{negated}{''.join(parts)}]",
    st.sampled_from(["", "^"]),
    st.lists(
        st.sampled_from(["a", "b", "a-z", "a-c", "[b]", "&&[^b]", "[:alpha:]", "&&b", "--b", "~~b", *"&-~^]<"])
        | st.sampled_from([r"\d", r"\w", r"\s", r"\]", r"\-"]),
        min_size=1,
        max_size=4,
    ),
)
ATOMS = CLASSES | st.builds(
    lambda escape, character: escape + character,
    st.sampled_from(["", "\\"]),
    st.sampled_from([*"abdwsSBn<>-.[]}$", "x61", "(a|b)", "(?:a)"]),
)
PATTERNS = st.lists(st.tuples(ATOMS, st.sampled_from(["", "+", "?", "{1,2}"])), min_size=1, max_size=2).map(
    lambda atoms: f"^{''.join(map(''.join, atoms))}$"
)
LEAVES: list[Any] = ["red", "", 1, 2**70, True, None, "\xe9"]
MEMBERS = st.lists(st.sampled_from([*LEAVES, 1.5, 1e23, (1, 2), ("red",), b"a"]), min_size=1, max_size=3)
ALIAS = st.sampled_from(["a", "b", AliasPath("a", 0), AliasPath("b")])
ALIASES = ALIAS | st.builds(AliasChoices, ALIAS, ALIAS)
BOUNDS = st.sampled_from([0, 5, 2**53, 2**53 - 1, -(2**53), 2**60, 0.5, 1e23, -1e290]) | st.integers()


def _pattern(pattern: str) -> Drawn:
    try:
        compiled = compile_pattern(pattern)
    except InvalidPattern:
        return None, []
    matching: list[JsonValue] = [text for text in TEXTS if compiled.found_in(text, 1)]
    return Annotated[str, Field(pattern=pattern)], matching[: len(CHARACTERS)] + matching[len(CHARACTERS) :: 7]


def _json_values(members: list[Any]) -> list[JsonValue]:
    return [*PLAIN, *(to_jsonable_python(each.value if isinstance(each, Enum) else each) for each in members)]


def _literal(members: list[Any], enum: type[Enum]) -> Drawn:
    shown = [each for each in members if isinstance(each, str | int | bytes | None)] + list(enum)[:1]
    return Literal[tuple(shown)], _json_values(shown)


def _aliased(alias: Any, drawn: Drawn) -> Drawn:
    model = create_model("Aliased", y=(drawn[0], Field(validation_alias=alias)))
    return model, [{name: form} for name in "yab" for value in drawn[1][:9] for form in (value, [value])]


def _bounded(kind: Any, bound: str, limit: Any) -> Drawn:
    near = [int(limit) + step for step in range(-3, 4)]
    return Annotated[kind, Field(**{bound: limit})], [*near, float(limit), 0.5]


def _can_be_defined(drawn: Any) -> bool:
    """Whether a tool with this type has a schema that some value fits."""
    try:
        schema = parameters_of(value=drawn[0]).schema
    except (ToolDefinitionError, TypeError):
        return False
    return any(not schema_errors({"value": value}, schema) for value in drawn[1])


ENUMS: st.SearchStrategy[Any] = MEMBERS.map(
    lambda members: Enum("Drawn", {f"M{number}": value for number, value in enumerate(members)})
)
DRAWN: st.SearchStrategy[Drawn] = st.one_of(
    st.sampled_from([*EXACT, *MORE]).map(lambda hint: (hint, PLAIN)),
    *[PATTERNS.map(_pattern)] * 2,
    ENUMS.map(lambda enum: (enum, _json_values(list(enum)))),
    st.builds(_literal, MEMBERS, ENUMS),
    st.builds(_bounded, st.sampled_from([int, float]), st.sampled_from(["gt", "ge", "lt", "le"]), BOUNDS),
).filter(_can_be_defined)
TYPES: st.SearchStrategy[Any] = st.recursive(
    DRAWN,
    lambda inner: (
        st.builds(_aliased, ALIASES, inner)
        | inner.map(lambda drawn: (list.__class_getitem__(drawn[0]), [[value] for value in drawn[1]]))
        | inner.map(lambda drawn: (dict.__class_getitem__((str, drawn[0])), [{"k": value} for value in drawn[1]]))
        | st.builds(lambda one, other: (one[0] | other[0] | None, one[1] + other[1]), inner, inner)
    ),
    max_leaves=3,
)


@pytest.mark.sized
@settings(max_examples=sized(1_000, 100), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(hints=st.dictionaries(st.sampled_from("abc"), TYPES.filter(_can_be_defined), min_size=1, max_size=2))
def test_arguments_of_a_call_that_people_are_asked_about_are_never_refused(hints: dict[str, Drawn]) -> None:
    """A thousand generated tools: a call is frozen by its schema, and checked by its types where those check more."""
    parameters = parameters_of(**{name: hint for name, (hint, _) in hints.items()})
    single = {name: parameters_of(**{name: hint}) for name, (hint, _) in hints.items()}
    fitting = {
        name: [value for value in values if not schema_errors({name: value}, single[name].schema)]
        for name, (_, values) in hints.items()
    }
    for number in range(max(map(len, fitting.values()))):
        frozen = freeze_arguments({name: fit[number % len(fit)] for name, fit in fitting.items()}, parameters.schema)
        assert frozen.fault is None
        try:
            parameters.bind(frozen.args)
        except ArgumentsRefused as refused:
            of_type = single.get(refused.field.partition(".")[0], parameters)
            assert of_type.checks_more and parameters.checks_more, "a person would be asked for a call that cannot run"
