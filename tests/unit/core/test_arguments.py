"""Arguments of a call, as the model wrote them."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.contracts.values import digest_of
from perdure.core.calls import arguments
from perdure.core.calls.arguments import (
    MAX_REPAIR_CHARACTERS,
    MAX_REPLAYED_CHARACTERS,
    check_arguments,
    extract_groups,
    freeze_arguments,
    parse_arguments,
    read_object,
    replayed_arguments,
)
from perdure.core.calls.jsonb import MAX_DEPTH
from perdure.core.json_schema import schema_fault
from perdure.graph.topologies.skill_pipeline.nodes import SKILL_PATTERN
from tests.json_values import JSON

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {"order": {"type": "string", "pattern": "^[0-9]+$"}, "cents": {"type": "integer"}},
    "required": ["order"],
    "additionalProperties": False,
}
ANYTHING: dict[str, Any] = {"type": "object", "properties": {"x": {}}}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
OPTIONAL = {**ORDER, "required": []}
ONE, ONE_TEXT = {"order": "12"}, json.dumps('{"order": "12"}')
SLIPS = ["{'order': '12'}", '{"order": "12",}', '```json\n{"order": "12"}\n```', '{order: "12"}']
AROUND = ['{"order": "12"}}', 'Here you are: {"order": "12"} as asked']


def test_valid_arguments_are_unchanged() -> None:
    parsed = parse_arguments(' {"order": "12", "cents": 500} ', ORDER)
    assert parsed.fault is None and not parsed.repaired
    assert (parsed.args, parsed.digest) == ({"order": "12", "cents": 500}, digest_of({"cents": 500, "order": "12"}))


@pytest.mark.parametrize(("text", "schema", "args"), [
    *((text, schema, {}) for text in ("", " \n", "null", '""', '"null"') for schema in (NOTHING, OPTIONAL)),
    *((text, ORDER, None) for text in ("", " ", "null", '""', '"{}"')),  # `order` is required
    (ONE_TEXT, ORDER, ONE),
    *((text, ORDER, None) for text in (ONE_TEXT[:-3] + '"', json.dumps(ONE_TEXT), json.dumps("[]"), '"12"')),
])  # fmt: skip
def test_no_arguments_are_an_empty_object_and_an_object_may_be_encoded_twice(text: str, schema: Any, args: Any) -> None:
    parsed = parse_arguments(text, schema)
    assert (parsed.fault is None, parsed.args) == (args is not None, args or {})


def test_no_text_and_null_are_no_answer() -> None:
    for text in ("", "null", "```json\n\n```"):
        assert read_object(text, OPTIONAL).fault is not None and read_object(text, NOTHING).fault is None


@pytest.mark.parametrize("text", [*SLIPS, '{"order": "12" "cents": 5}'])
def test_a_syntax_error_is_repaired_once_and_reported(text: str) -> None:
    parsed = parse_arguments(text, ORDER)
    assert (parsed.fault, parsed.repaired, parsed.args["order"]) == (None, True, "12")
    assert read_object(text, ORDER).args == parsed.args


UNREADABLE = ["hello", "{", "{}{", '"', "nul", '{"order": "12"}{"order": "13"}']
UNREADABLE += ["[" * 50_000, '{"order":' * 9_000]
TWO_OBJECTS = ["{'order': '12'}{'order': '13'}", '{"order": "12"} {"order": "13"', "{} {'order': '12'}"]
CUT_OFF = ['{"order": "12"', '{"order": "12", ', '{"order": "12", "cents": 5', '{"order": "12', '{"order": "12 }']
UNSTORABLE = [
    *("[]", '"order"', '{"x": NaN}', '{"x": -Infinity}', '{"x": 1e400}', '{"x": 1' + "0" * 301 + "}"),
    *('{"x": 1, "x": 2}', '{"x": {"y": 1, "y": 1}}', '{"x": "a\\u0000b"}', '{"x": "\\ud800"}', '{"\\udfff": 1}'),
    '{"x": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}",
]
TOO_LONG = [json.dumps({"x": "a" * arguments.MAX_ARGUMENTS_CHARACTERS}), "{'x': '" + "a" * MAX_REPAIR_CHARACTERS + "'}"]
UNFIT = ["{}", '{"order": "12", "note": 1}', '{"order": 12}', '{"order": "twelve"}', "{'order': '12', 'cents': 'all'}"]


@pytest.mark.parametrize(("text", "schema"), [
    *((text, ANYTHING) for text in [*UNREADABLE, *UNSTORABLE, *TOO_LONG]),
    *((text, ORDER) for text in [*TWO_OBJECTS, *CUT_OFF, *UNFIT]),
])  # fmt: skip
def test_anything_but_one_object_that_fits_the_schema_is_a_fault(text: str, schema: dict[str, Any]) -> None:
    parsed = parse_arguments(text, schema)
    assert parsed.fault is not None and parsed.args == {} and not parsed.repaired
    assert read_object(text, schema).fault is not None and read_object(text, schema).args == {}


@pytest.mark.parametrize("text", [*AROUND, "{'order': '12', 'note': {'text': 'it is {x}'}}"])
def test_text_around_one_whole_object_is_ignored(text: str) -> None:
    assert parse_arguments(text, {**ORDER, "additionalProperties": True}).args["order"] == "12"


def test_a_fault_is_short_whatever_the_arguments_are() -> None:
    text = json.dumps({f"field{number}": "long " * 500 for number in range(50)})
    fault = parse_arguments(text, {"type": "object", "additionalProperties": {"type": "integer"}}).fault
    assert fault is not None and len(fault) < 1_000
    for value in ({"x": {1, 2}}, {1: 2}):  # a reviewer's Python value that is not JSON
        assert check_arguments(value, ANYTHING).fault is not None


# What Postgres' jsonb does to a number: exact decimal, written out in full, without a sign on zero.
def _through_jsonb(value: Any) -> Any:
    def number(text: str) -> Any:
        plain = format(Decimal(text), "f")
        plain = plain.removeprefix("-") if Decimal(text) == 0 else plain
        return json.loads(plain)

    return json.loads(json.dumps(value), parse_float=number, parse_int=number)


@pytest.mark.parametrize("text", [*UNREADABLE, *TWO_OBJECTS, *CUT_OFF, *UNSTORABLE, '{"order": "x"}', '{ "a" : 1.0 }'])
def test_rejected_arguments_are_shown_again_as_an_object_that_can_be_sent(text: str) -> None:
    again = replayed_arguments(text)
    if not text.strip():
        assert again == ""
    elif again != text:
        assert json.loads(again) == {"_invalid_arguments": text[:MAX_REPLAYED_CHARACTERS]}
    else:
        assert check_arguments(json.loads(again), {}).fault is None
    assert (again == text) == (text in {"", '{"order": "x"}', '{ "a" : 1.0 }'})


@given(st.dictionaries(st.text(), JSON, max_size=5))
@example({"x": 1e23})
@example({"x": -0.0})
@example({"x": 1e300})
@example({"x": 5e-324})
@example({"x": 2.0**53 + 2})
def test_accepted_arguments_have_the_same_digest_after_the_database(value: dict[str, Any]) -> None:
    parsed = check_arguments(value, {"type": "object"})
    if parsed.fault is not None:
        return
    stored = _through_jsonb(parsed.args)
    assert check_arguments(stored, {"type": "object"}) == parsed
    assert digest_of(stored) == parsed.digest
    assert parse_arguments(json.dumps(parsed.args), {"type": "object"}) == parsed, "as the canonical text does"


@given(st.text(max_size=300) | st.text(alphabet="{}[]\",:'\\ax1 \n`", max_size=300))
def test_any_text_is_parsed_to_fitting_arguments_or_a_fault(text: str) -> None:
    parsed = parse_arguments(text, ORDER)
    if parsed.fault is None:
        assert schema_fault(parsed.args, ORDER) is None
        assert parsed.digest == digest_of(parsed.args)
    else:
        assert parsed.args == {} and not parsed.repaired


@pytest.mark.parametrize(("pattern", "text", "found"), [
    ("", "SKILL_SELECT:a", ()), (SKILL_PATTERN, "nothing here", ()),
    (SKILL_PATTERN, "SKILL_SELECT:one and SKILL_SELECT:two", ("one", "two")),
    (SKILL_PATTERN, "SKILL_SELECT:two SKILL_SELECT:one SKILL_SELECT:two", ("two", "one")),
    (SKILL_PATTERN, "SKILL_SELECT:a_1.", ("a_1",)),
    (SKILL_PATTERN, "SKILL_SELECT:Upper SKILL_SELECT: spaced skill_select:lower", ()),
    (SKILL_PATTERN, "SKILL_SELECT:" + "x" * 500, ("x" * 64,)), (r"<(.*?)>", "<" + "y" * 500 + ">", ("y" * 200,)),
])  # fmt: skip
def test_marks_are_found_in_order_each_once(pattern: str, text: str, found: tuple[str, ...]) -> None:
    assert extract_groups(pattern, text) == found


@given(st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), max_size=60))
def test_however_many_marks_there_are_a_history_stays_small(marks: list[str]) -> None:
    found = extract_groups(SKILL_PATTERN, " ".join(f"SKILL_SELECT:{mark}" for mark in marks))
    assert found == tuple(dict.fromkeys(marks))[: arguments.MAX_GROUPS]


DEFAULTS = JSON | st.floats() | st.text(max_size=3) | st.sampled_from([{}, [{}], 1.0, -0.0, 1e23, "\0", 10**400])
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.fixed_dictionaries({}, optional={"default": DEFAULTS, "type": st.sampled_from(["string", "number", "object"])}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "default": DEFAULTS, "properties": st.dictionaries(st.sampled_from("xyz\0"), inner, max_size=3),
            "anyOf": inner.map(lambda each: [each, {"type": "null"}]),
            "allOf": st.lists(inner, min_size=1, max_size=2), "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2), "additionalProperties": inner,
            "maxProperties": st.integers(0, 2), "dependentRequired": st.just({"x": ["y"]}),
            "$ref": st.just("#/properties/x"),
        },
    ),
    max_leaves=8,
)  # fmt: skip
VALUES = st.recursive(
    st.sampled_from([1, "s", None]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
)


@given(schema=SCHEMAS, args=st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3))
def test_what_is_frozen_stays_the_same_when_it_is_frozen_again(schema: dict[str, Any], args: dict[str, Any]) -> None:
    frozen = freeze_arguments(args, schema)
    if frozen.fault is None:
        assert frozen.digest == digest_of(frozen.args) and schema_fault(frozen.args, schema) is None
        again = freeze_arguments(json.loads(json.dumps(frozen.args)), schema)
        assert (again.fault, again.args, again.digest) == (None, frozen.args, frozen.digest)
