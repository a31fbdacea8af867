"""Values that fit a schema, mistakes in schemas, and their outlines."""

import time
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import JsonValue
from syrupy.assertion import SnapshotAssertion

from perdure.core.calls import defaults
from perdure.core.calls.arguments import parse_arguments
from perdure.core.calls.defaults import with_defaults
from perdure.core.json_schema import (
    PATTERN_SECONDS,
    answer_fault,
    field_type,
    mistakes_in_schema,
    outline_schema,
    schema_fault,
)

SOAK = pytest.mark.soak
Schema = dict[str, JsonValue]
SLOW = "^(?=(a|aa)+$)"
"""Only an engine that backtracks can look ahead."""
HOSTILE = "a" * 60 + "b"


def of(**properties: JsonValue) -> Schema:
    return {"type": "object", "properties": properties}


@pytest.fixture(autouse=True)
def short_pattern_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns get a fifth of their time."""
    monkeypatch.setattr("perdure.core.json_schema.PATTERN_SECONDS", 0.2)


@pytest.mark.timed
@pytest.mark.parametrize(("schema", "args"), [
    (of(s={"type": "string", "pattern": SLOW}), {"s": HOSTILE}),
    pytest.param(of(s={"type": "array", "items": {"pattern": SLOW}}), {"s": [HOSTILE] * 50}, marks=SOAK),
    pytest.param({"type": "object", "patternProperties": {SLOW: {}}}, {HOSTILE: 1}, marks=SOAK),
    ({"type": "object", "patternProperties": {SLOW: {}}, "additionalProperties": False}, {HOSTILE: 1}),
    pytest.param({"type": "object", "propertyNames": {"pattern": SLOW}}, {HOSTILE: 1}, marks=SOAK),
    ({"$defs": {"s": {"pattern": SLOW}}, **of(s={"$ref": "#/$defs/s"})}, {"s": HOSTILE}),
    (of(s={"$schema": "http://json-schema.org/draft-07/schema#", "pattern": SLOW}), {"s": HOSTILE}),
])  # fmt: skip
def test_a_pattern_that_backtracks_for_ever_is_a_fault_within_its_time(schema: Schema, args: Schema) -> None:
    began = time.monotonic()
    assert schema_fault(args, schema) is not None
    assert time.monotonic() - began < PATTERN_SECONDS + 4  # unbounded it takes minutes; other programs may be busy


@pytest.mark.timed
@pytest.mark.parametrize(("schema", "answer", "fits"), [
    (of(n={"type": "integer"}), {"n": 1}, True), (of(n={"type": "integer"}), {"n": "one"}, False),
    ({"type": "object", "required": ["n"]}, {}, False),
    (of(n={"$ref": "https://nowhere.example/n.json"}), {"n": 1}, True),
    (of(n={"$ref": "#/properties/n"}), {"n": 1}, True), (of(s={"pattern": SLOW}), {"s": HOSTILE}, True),
    (of(s={"pattern": "("}), {"s": "x"}, True),
    ({**of(n={"type": "integer"}), "unevaluatedProperties": False}, {"n": 1}, True),
    ({**of(n={"type": "integer"}), "unevaluatedProperties": False}, {"n": "one"}, False),
    ({**of(n={"type": "integer"}), "unevaluatedProperties": False}, {"n": 1, "m": 2}, False),
])  # fmt: skip
def test_an_answer_is_checked_against_a_usable_schema(schema: Schema, answer: Schema, fits: bool) -> None:
    began = time.monotonic()
    assert (answer_fault(answer, schema) is None) is fits
    assert time.monotonic() - began < PATTERN_SECONDS + 4


def test_unique_items_are_checked_in_linear_time() -> None:
    items: list[JsonValue] = [{"n": number} for number in range(20_000)]
    schema = of(s={"type": "array", "uniqueItems": True})
    began = time.process_time()
    assert schema_fault({"s": items}, schema) is None
    assert schema_fault({"s": [*items, {"n": 7}]}, schema) is not None
    assert time.process_time() - began < 2
    rows: list[JsonValue] = [{"n": number, "s": "x"} for number in range(10_000)]
    row: JsonValue = {**of(n={"type": "integer", "minimum": 0}, s={"enum": ["x", "y"]}), "required": ["n", "s"]}
    assert schema_fault({"rows": rows}, of(rows={"type": "array", "items": row})) is None


STARTS, ONLY_A = of(s={"pattern": "^[0-9]{2}-x$"}), {**of(a={}), "additionalProperties": False}


@pytest.mark.parametrize(("schema", "args"), [
    *((STARTS, {"s": "12-x"}), (STARTS, {"s": "1-x"}), (of(s={"pattern": "^[0-9]"}), {"s": 12})),
    *((ONLY_A, {"a": 1, "b": 2}), (ONLY_A, {"a": 1, "b": 2, "c": 3})),
    ({**of(a={}), "additionalProperties": {"type": "string"}}, {"a": 1, "b": 2}),
    ({"type": "object", "patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": "x", "b": "y"}),
    ({"patternProperties": {"^n_": {}}, "additionalProperties": False}, {"n_a": 1}),
])  # fmt: skip
def test_a_value_fits_exactly_if_jsonschema_accepts_it(schema: Schema, args: Schema) -> None:
    assert (schema_fault(args, schema) is None) is Draft202012Validator(schema).is_valid(args)


@pytest.mark.parametrize(("step", "value", "fits"), [
    *((0.01, 19.99, True), (0.01, 4.02, True), (0.01, 19.995, False), (0.1, 0.3, True), (0.01, -1.1, True)),
    *((0.01, 1e300, True), (1e-7, 1.0000001, True), (1e-7, 1.00000001, False), (3, 9.0, True), (3, 9.5, False)),
    *((7, 10**30 * 7, True), (7, 10**30 * 7 + 1, False), (0.5, "x", True), (0.01, True, True)),
])  # fmt: skip
def test_multiples_are_compared_as_decimals(step: float, value: JsonValue, fits: bool) -> None:
    assert (schema_fault({"n": value}, of(n={"multipleOf": step})) is None) is fits


INTEGER: Schema = {"type": "integer"}
DRAFT_3, DRAFT_4, DRAFT_6, DRAFT_7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (3, 4, 6, 7))
DRAFT_2019, DRAFT_2020 = (f"https://json-schema.org/draft/{name}/schema" for name in ("2019-09", "2020-12"))
ITSELF: Schema = of(n={"type": "string", "nullable": True, "pattern": r"^\u{61}$"}, c={"$ref": "#"})
PAIR: Schema = {"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}
OPEN: Schema = of(n={"type": "integer"})
CLOSED: Schema = {"allOf": [OPEN], "unevaluatedProperties": False}
CHOICE: Schema = {
    **of(a={}), "if": {"required": ["a"]}, "then": of(b={}), "else": of(c={}), "unevaluatedProperties": False,
}  # fmt: skip


@pytest.mark.parametrize(("draft", "schema", "fitting", "unfit"), [
    (DRAFT_7, of(n=PAIR), {"n": [1, "a"]}, {"n": ["a", "a"]}), (DRAFT_7, of(n=PAIR), {"n": []}, {"n": [1, "a", 2]}),
    ("https" + DRAFT_7.removeprefix("http").rstrip("#"), of(n=PAIR), {"n": [1]}, {"n": ["a"]}),
    (DRAFT_2019, of(n=PAIR), {"n": [1]}, {"n": ["a"]}),
    (DRAFT_4, of(n={"minimum": 3, "exclusiveMinimum": True}), {"n": 4}, {"n": 3}),
    (DRAFT_6, of(n={"exclusiveMinimum": 3}), {"n": 4}, {"n": 3}),
    (DRAFT_7, {"definitions": {"x": {"$id": "#whole", **INTEGER}}, **of(n={"$ref": "#whole"})}, {"n": 1}, {"n": "a"}),
    ("", {"$defs": {"x": {"$anchor": "whole", **INTEGER}}, **of(n={"$ref": "#whole"})}, {"n": 1}, {"n": "a"}),
    ("", {"$id": "https://a/b", "$defs": {"x": {"$id": "c", **INTEGER}}, **of(n={"$ref": "c"})}, {"n": 1}, {"n": "a"}),
    ("", of(n={"type": "integer", "nullable": True}), {"n": None}, {"n": "a"}),
    ("", of(n={"enum": [1, 2], "nullable": True}), {"n": None}, {"n": 3}),
    ("", of(n={"$ref": "#/properties/m", "nullable": True}, m={"type": "integer"}), {"n": None}, {"n": "a"}),
    ("", of(n={"allOf": [{"type": "integer"}], "nullable": True}), {"n": None}, {"n": "a"}),
    ("", of(n={"type": "integer", "nullable": False}), {"n": 1}, {"n": None}),
    ("", CLOSED, {"n": 1}, {"n": 1, "m": 1}), ("", CLOSED, {}, {"n": "a"}),
    (DRAFT_2019, CLOSED, {"n": 1}, {"n": 1, "m": 1}),
    ("", {**OPEN, "unevaluatedProperties": {"type": "string"}}, {"n": 1, "m": "a"}, {"n": 1, "m": 1}),
    ("", {"anyOf": [OPEN, of(m={"type": "string"})], "unevaluatedProperties": False}, {"n": 1}, {"n": "a", "m": 1}),
    ("", CHOICE, {"a": 1, "b": 1}, {"a": 1, "c": 1}), ("", CHOICE, {"c": 1}, {"b": 1}),
    ("", {"patternProperties": {r"^\d$": {}}, "unevaluatedProperties": False}, {"1": 1}, {"a": 1}),
    ("", {"dependentSchemas": {"n": of(m={})}, **OPEN, "unevaluatedProperties": False}, {"n": 1, "m": 1}, {"m": 1}),
    ("", {"$ref": "#/$defs/x", "$defs": {"x": OPEN}, "unevaluatedProperties": False}, {"n": 1}, {"m": 1}),
    ("", of(n={"prefixItems": [{}], "unevaluatedItems": False}), {"n": [1]}, {"n": [1, 2]}),
    *((draft, of(n={how: [{word: [{"type": "array"}]}], "unevaluatedItems": False}), {"n": [[]]}, {"n": [[], 2]})
      for draft, word in ((DRAFT_2019, "items"), (DRAFT_2020, "prefixItems")) for how in ("allOf", "anyOf", "oneOf")),
    *((draft, ITSELF, {"c": {"n": None, "c": {"n": "a"}}}, {"c": {"n": "b"}})
      for draft in (DRAFT_3, DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020, "https://drafts.example/unknown")),
    ("", of(n={"$schema": DRAFT_7, **PAIR}), {"n": [1, "a"]}, {"n": [1, "a", 2]}),
    ("", of(n={"$schema": DRAFT_4, "multipleOf": 0.01}), {"n": 19.99}, {"n": 19.995}),
    (DRAFT_7, of(n={"$schema": "https://drafts.example/unknown", **PAIR}), {"n": [1]}, {"n": ["a"]}),
    ("https://drafts.example/unknown", of(n={"prefixItems": [{"type": "integer"}]}), {"n": [1]}, {"n": ["a"]}),
])  # fmt: skip
def test_a_schema_is_read_by_the_draft_that_it_names(
    draft: str, schema: Schema, fitting: Schema, unfit: Schema
) -> None:
    named: Schema = {**({"$schema": draft} if draft else {}), **schema}
    assert schema_fault(fitting, named) is None
    assert schema_fault(unfit, named)


SMALL = st.recursive(
    st.sampled_from([
        *(True, {}, {"required": ["a"]}, {"properties": {"b": {}}}, {"properties": {"a": INTEGER}}),
        *({"patternProperties": {"^c": {}}}, {"additionalProperties": INTEGER}, {"$ref": "#/$defs/x"}),
    ]),
    lambda inner: st.fixed_dictionaries({"properties": st.just({"d": {}})}, optional={
        "allOf": st.lists(inner, min_size=1, max_size=2), "anyOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=2), "if": inner, "then": inner, "else": inner,
        "dependentSchemas": st.fixed_dictionaries({"a": inner}), "unevaluatedProperties": inner,
    }), max_leaves=6,
)  # fmt: skip


@given(schema=SMALL, args=st.dictionaries(st.sampled_from("abcd"), st.sampled_from([1, "x"])))
def test_unevaluated_properties_are_those_of_the_library(schema: Any, args: Schema) -> None:
    whole: Any = {"allOf": [schema], "$defs": {"x": {"properties": {"c": {}}}}, "unevaluatedProperties": False}
    assert (schema_fault(args, whole) is None) is Draft202012Validator(whole).is_valid(args)


@pytest.mark.parametrize(("pattern", "text"), [
    *(("^[a-z0-9_]+$", "x\n"), ("^(?:a|x$)", "x\n"), (r"^x\$$", "x$\n"), (r"^[$\]]$", "$\n")),
    *((r"^\(?mx$", "mx\n"), (r"^x\\$", "x\\\n")),
])  # fmt: skip
def test_a_dollar_sign_matches_only_the_very_end(pattern: str, text: str) -> None:
    schema = of(s={"pattern": pattern}, names={"patternProperties": {pattern: False}})
    assert schema_fault({"s": text}, schema) is not None
    assert schema_fault({"s": text[:-1], "names": {text: 1}}, schema) is None
    assert schema_fault({"names": {text[:-1]: 1}}, schema) is not None
    assert schema_fault({"s": text}, of(s={"pattern": f"(?m){pattern}"})) is None


def branching(word: str, leaf: JsonValue) -> Schema:
    """A small schema in which thirty steps lead to a thousand million leaves."""
    steps: Schema = {
        f"d{step}": {word: [{"$ref": f"#/$defs/d{step + 1}"}, {"$ref": f"#/$defs/d{step + 1}"}]} for step in range(30)
    }
    return {"$defs": {**steps, "d30": leaf}, **of(s={"$ref": "#/$defs/d0"})}


@pytest.mark.parametrize("schema", [
    branching("anyOf", {"type": "integer"}), pytest.param(branching("oneOf", {"type": "integer"}), marks=SOAK),
    pytest.param(branching("allOf", {"type": "string"}), marks=SOAK), {"type": "object", "$ref": "#"},
    pytest.param({"type": "object", "$dynamicRef": "#"}, marks=SOAK),
], ids=["any", "one", "all", "itself", "itself, dynamically"])  # fmt: skip
def test_an_endless_schema_is_a_fault_and_no_error(schema: Schema) -> None:
    began = time.process_time()
    assert schema_fault({"s": "x"}, schema) is not None
    assert time.process_time() - began < 10  # unbounded the first three would take for a day
    assert parse_arguments('{"s": "x"}', schema).fault, "nor is it one of the turn whose model made the call"


@pytest.mark.parametrize("schema", [of(s={"pattern": "(?P<"}), {"$ref": "https://schemas.invalid/schema"}])
def test_an_uncheckable_value_does_not_fit_and_nothing_is_fetched(schema: Schema) -> None:
    assert schema_fault({"s": "x"}, schema) is not None


def test_of_several_alternatives_the_one_with_the_values_type_is_reported() -> None:
    cents: JsonValue = {"anyOf": [{"type": "integer", "maximum": 7450}, {"type": "null"}]}
    either: JsonValue = {"anyOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 20}]}
    within: JsonValue = {"oneOf": [cents, {"type": "string"}]}
    told = schema_fault({"s": 999_999}, of(s=cents))
    assert told is not None and "7450" in told and told == schema_fault({"s": 999_999}, of(s=within))
    assert "7450" not in (schema_fault({"s": "x"}, of(s=cents)) or "7450")
    assert schema_fault({"s": 9}, of(s=either)) is not None


def test_a_fields_type_is_described_in_words(snapshot: SnapshotAssertion) -> None:
    place = {"type": "object", "properties": {"street": {}, "town": {}}}
    tree = {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    fields: list[Any] = [
        *({"type": "integer", "minimum": 1, "maximum": 9}, {"enum": ["a", 2, None]}),
        *({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": ["string", "null"]}),
        *({"type": "array", "items": {"type": "number"}, "maxItems": 3}, {"$ref": "#/$defs/Place"}, tree),
        *({"const": 3}, {"$ref": "#/nowhere"}, {}, True),
    ]
    assert [field_type(field, {"$defs": {"Place": place, "Tree": tree}}) for field in fields] == snapshot


def test_each_field_of_any_schema_is_described_in_one_harmless_line() -> None:
    described = {"type": "string", "description": "one\ntwo\x1b[2J" + "x" * 500}
    schema = {"properties": {"a": described, "b\n": {"type": "null"}}, "required": ["a"]}
    first, second = outline_schema(schema)
    assert first.startswith("a: ") and "one two\\u001b[2Jx" in first and len(first) < 200
    assert second.startswith("b : ")
    little: list[Any] = [{}, {"properties": []}, {"properties": {"a": 1}, "required": 3}]
    assert [len(list(outline_schema(schema))) for schema in little] == [0, 0, 1]
    alternatives = {"anyOf": [{"$ref": "#/$defs/n"}] * 1_000}
    assert field_type({"$ref": "#/$defs/n"}, {"$defs": {"n": alternatives}}) == field_type({}, {})


@pytest.mark.parametrize(("schema", "places"), [
    (of(n={"type": "integer", "pattern": r"^\u{61}$"}), []),
    (of(n={"type": "intege"}), [("properties", "n", "type")]),
    (of(n={"anyOf": [{}, {"pattern": "("}]}), [("properties", "n", "anyOf", 1, "pattern")]),
    ({"patternProperties": {"[": {}, "a": {"not": {"pattern": "("}}}},
     [("patternProperties",), ("patternProperties", "a", "not", "pattern")]),
    (of(pattern={"type": "string"}, n={"default": {"pattern": "("}}), []),
    (of(default={"pattern": "("}), [("properties", "default", "pattern")]),
    (of(n=PAIR), [("properties", "n", "items")]),
    ({"$schema": DRAFT_7, **of(n=PAIR)}, []),
    ({"$schema": DRAFT_4, **of(n={"minimum": 1, "exclusiveMinimum": 1})}, [("properties", "n", "exclusiveMinimum")]),
])  # fmt: skip
def test_a_mistake_in_a_schema_is_named_with_its_place(schema: Schema, places: list[tuple[str | int, ...]]) -> None:
    found = mistakes_in_schema(schema)
    assert [place for place, _ in found] == places
    assert ("name its draft" in "".join(text for _, text in found)) is (schema == of(n=PAIR))


NAN = float("nan")
DEFS: dict[str, JsonValue] = {"q": {"default": 2}}
PLACE: Schema = {"type": "object", "properties": {"town": {"default": "Ulm"}, "zip": {"type": "string"}}}
DEFS["p"] = PLACE
CARD = of(kind={"const": "card", "default": "card"}, capture={"default": True})
IBAN = of(kind={"const": "iban", "default": "iban"}, instant={"default": True})
EACH: Schema = {f"d{n}": {"default": n} for n in range(1_000)}
MANY = of(ps={"items": {"type": "object"}}, **EACH)
ROWS: Schema = {"ps": [{}] * 900}


@pytest.mark.parametrize(("schema", "args", "filled"), [
    (of(n={"type": "integer", "default": 3}, m={}), {"m": 1}, {"m": 1, "n": 3}),
    (of(n={"type": "integer", "default": 3}), {"n": 4}, {"n": 4}), (of(n={"default": None}), {}, {}),
    (of(n={"$ref": "#/properties/q/type/x"}, q={"type": "string", "default": "x"}), {}, {"q": "x"}),
    (of(n={"default": False}, m={"default": []}), {}, {"n": False, "m": []}),
    (of(n={"type": "string", "default": 3}, m={"default": 1}), {}, {"m": 1}),
    (of(p=PLACE, ps={"items": PLACE}), {"p": {}, "ps": [{"zip": "1"}]},
     {"p": {"town": "Ulm"}, "ps": [{"zip": "1", "town": "Ulm"}]}),
    ({**of(p={"$ref": "#/$defs/p"}, q={"$ref": "#/$defs/q"}), "$defs": DEFS}, {"p": {}},
     {"p": {"town": "Ulm"}, "q": 2}),
    ({**of(a={"default": 1}, b={}), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": 3}, {"b": 3}),
    ({"$ref": "#", **of(a={"default": 1}), "maxProperties": 0}, {}, {}),
    (of(p={"anyOf": [PLACE, {"type": "null"}]}, q={"oneOf": [PLACE, {"type": "string"}]}), {"p": {}, "q": {}},
     {"p": {"town": "Ulm"}, "q": {"town": "Ulm"}}),
    (of(p={"anyOf": [PLACE, {"type": "null"}]}), {"p": None}, {"p": None}),
    (of(p={"allOf": [PLACE, of(town={"default": "Bonn"}, n={"default": 1})]}), {"p": {}},
     {"p": {"town": "Ulm", "n": 1}}),
    ({**of(p={"additionalProperties": PLACE, "properties": {"q": {}}}), "additionalProperties": {"$ref": "#/$defs/p"},
      "$defs": DEFS}, {"p": {"a": {}, "q": {}}, "r": {}}, {"p": {"a": {"town": "Ulm"}, "q": {}}, "r": {"town": "Ulm"}}),
    (of(p={"prefixItems": [{}, PLACE], "items": of(n={"default": 1})}), {"p": [{}, {}, {}]},
     {"p": [{}, {"town": "Ulm"}, {"n": 1}]}),
    ({"$schema": DRAFT_7, **of(p={"items": [PLACE], "additionalItems": of(n={"default": 1})})}, {"p": [{}, {}]},
     {"p": [{"town": "Ulm"}, {"n": 1}]}),
    (of(p={**PLACE, "default": {}}, ps={"default": [{}], "items": PLACE}), {},
     {"p": {"town": "Ulm"}, "ps": [{"town": "Ulm"}]}),
    (of(n={"default": 1}, a={"$ref": "#"}), {"a": {}}, {"n": 1, "a": {"n": 1}}),
    ({**of(p={"$ref": "#place"}), "$defs": {"x": {"$anchor": "place", **PLACE}}}, {"p": {}}, {"p": {"town": "Ulm"}}),
    ({**of(p={"$ref": "#/%24defs/a~1b"}), "$defs": {"a/b": PLACE}}, {"p": {}}, {"p": {"town": "Ulm"}}),
    ({"$id": "https://e/r", **of(p={"$ref": "r#/$defs/p"}, q={"$ref": "x"}), "$defs": {**DEFS,
      "x": {"$id": "x", **PLACE}}}, {"p": {}, "q": {}}, {"p": {"town": "Ulm"}, "q": {"town": "Ulm"}}),
    *(({"$schema": draft, **of(p={"$ref": "#/$defs/p", **of(n={"default": 1})}), "$defs": DEFS}, {"p": {}},
       {"p": {"town": "Ulm", **beside}}) for draft, beside in ((DRAFT_7, {}), (DRAFT_2019, {"n": 1}))),
    (of(p={"anyOf": [CARD, IBAN]}, q={"oneOf": [CARD, IBAN]}, r={"anyOf": [CARD, IBAN]}),
     {"p": {"kind": "card"}, "q": {"kind": "iban"}, "r": {}},
     {"p": {"kind": "card", "capture": True}, "q": {"kind": "iban", "instant": True}, "r": {}}),
    # a default could make another alternative fit, or one whose type reads "1" as a number:
    (of(p={"items": {"anyOf": [{**IBAN, "required": ["n"]}, of(n={"default": 1})]}}), {"p": [{}]}, {"p": [{}]}),
    (of(p={"anyOf": [of(n={"type": "integer"}), of(n={"type": "string"}, d={"default": 1})]}), {"p": {"n": "1"}},
     {"p": {"n": "1"}}),
    (of(p={"anyOf": [of(n={"enum": [1, 2]}), of(n={"const": "1"}, d={"default": 1})]}), {"p": {"n": "1"}},
     {"p": {"n": "1"}}),
    (of(p={"anyOf": [{"type": "array", "prefixItems": [{}]}, PLACE]}), {"p": {}}, {"p": {}}),
    ({**of(p={"anyOf": [{"allOf": [{"oneOf": [CARD, {"$ref": "#/$defs/c"}]}]}, IBAN, {"type": "array"}]}),
      "$defs": {"c": CARD}}, {"p": {"kind": "iban"}}, {"p": {"kind": "iban", "instant": True}}),
    ({**of(a={"default": 1}, b={"default": 1}), "dependentRequired": {"a": ["b"]}, "not": {"required": ["c"]}}, {},
     {"a": 1, "b": 1}),
    ({**of(a={"default": 1}, b={"default": 1}, c={"default": 1}), "dependentRequired": {"a": ["b"]},
      "not": {"required": ["c"]}}, {}, {"a": 1, "b": 1}),
    (of(a={"default": 1.0}, b={"default": -0.0}, c={"default": "\0"}, d={"default": NAN}, e={"default": 1e300}),
     {}, {"a": 1, "b": 0}),
    (of(ps={"items": of(n={"default": 1})}), {"ps": [{}] * 1_000}, {"ps": [{"n": 1}] * 1_000}),
    (of(ps={"items": of(n={"default": 1})}), {"ps": [{}] * 1_001}, {"ps": [{}] * 1_001}),
    ({**MANY, "not": {"required": ["d0", "d1"]}}, ROWS, {**ROWS, **{f"d{n}": n for n in range(1_000) if n != 1}}),
    (of(ps={"items": of(n={"type": "string", "default": 3}, m={"default": 1})}), ROWS, {"ps": [{"m": 1}] * 900}),
    # too much effort:
    ({**MANY, "maxProperties": 2}, ROWS, ROWS), (of(ps={"items": of(n={"default": [1] * 20_000})}), ROWS, ROWS),
    (of(n={"default": HOSTILE, "pattern": SLOW}, m={"default": 1}), {}, {}),
    (of(ps={"items": {"allOf": [{}] * 1_000, **of(n={"default": 1})}}), ROWS, ROWS),
])  # fmt: skip
def test_defaults_are_filled_in_where_they_fit(
    monkeypatch: pytest.MonkeyPatch, schema: Schema, args: Schema, filled: Schema
) -> None:
    monkeypatch.setattr(defaults, "MAX_SECONDS", 0.9)  # on a busy machine, a thousand took more than 0.25 s
    before, began = deepcopy(args), time.thread_time()
    assert with_defaults(args, schema) == filled and args == before
    assert time.thread_time() - began < 1, "0.3 s on an idle machine"
    assert with_defaults(filled, schema) == filled
