"""The rules of a scripted model: what is refused when they are read, and by which name."""

from typing import Any

import pytest
import yaml

from perdure.activities.providers.scripted import Rule, Script, read_script
from perdure.contracts.errors import CallerError


def rule(**fields: Any) -> dict[str, Any]:
    return {"rules": [{"name": "book", "when": "^Book (?P<room>.+)", "say": "ok", **fields}]}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (rule(when="("), "rule 'book': '(' is no regular expression: missing ), unterminated subpattern at position 0"),
        (rule(say="{rom}"), "rule 'book': {rom} is no group of this rule; known: message, room"),
        (rule(say="{room"), "rule 'book': a lone { in '{room'; write it twice to mean itself"),
        (rule(say="{}"), "rule 'book': cannot read {} in '{}'"),
        (rule(say="{room:date}"), "rule 'book': cannot read {room:date} in '{room:date}'"),
        (rule(say="{room.floor}"), "rule 'book': {room} is a text and has no fields"),
        (rule(say="{result.x}"), "rule 'book': {result} is no group of this rule; known: message, room"),
        (rule(say="{note}"), "rule 'book': {note} is no group of this rule; known: message, room"),
        (rule(call={"tool": "t", "args": {"a": [{"b": "{nope}"}]}}), "rule 'book': {nope} is no group of this rule"),
        (rule(say=""), "rule 'book': needs `say` or `call`"),
        (rule(when=None), "rule 'book': needs `when`, `note` or `after`"),
        (rule(note="(?P<room>x)"), "rule 'book': the name 'room' is taken"),
        (rule(when="(?P<result>x)"), "rule 'book': the name 'result' is taken"),
        (rule(wen="x"), "rule 'book': wen: Extra inputs are not permitted"),
        (rule(say=3), "rule 'book': say: Input should be a valid string"),
        (rule(call={"args": {}}), "rule 'book': call.0.tool: Field required"),
        (rule(after={"tool": 3}), "rule 'book': after.tool: Input should be a valid string"),
        ({"rules": [{"when": "x", "say": "y"}]}, "rule 1: name: Field required"),
        ({"rules": [{"name": "a", "when": "x", "say": "y"}] * 2}, "script: two rules are called 'a'"),
        ({"rules": ["x"]}, "rule 1: Input should be a valid dictionary or instance of Rule"),
        ({"tokens_per_second": -1}, "script: tokens_per_second: Input should be greater than or equal to 0"),
        ({"tokens_per_second": "fast"}, "script: tokens_per_second: Input should be a valid number"),
        ({"price_per_million": {"input": 1}}, "script: price_per_million.output: Field required"),
        ({"ruels": []}, "script: ruels: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_script_is_refused_with_the_name_of_its_rule(script: dict[str, Any], told: str) -> None:
    with pytest.raises(CallerError) as raised:
        read_script(script)
    assert raised.value.code == "bad_script" and raised.value.message.startswith(told)


def test_every_fault_of_a_script_is_told_at_once() -> None:
    with pytest.raises(CallerError) as raised:
        read_script({"rules": [{"name": "a", "say": "x"}, {"name": "b", "when": "["}], "fallback": ""})
    assert all(part in raised.value.message for part in ("rule 'a'", "rule 'b'", "fallback"))


def test_no_script_is_a_script_without_rules() -> None:
    assert read_script(None) == read_script({}) == Script()
    assert Script().tokens_per_second == 50


def test_short_forms_mean_the_long_ones() -> None:
    short = yaml.safe_load("{name: r, after: book, offers: pay, call: {tool: pay}}")
    long = yaml.safe_load("{name: r, after: {tool: book}, offers: [pay], call: [{tool: pay, args: {}}]}")
    assert read_script({"rules": [short]}) == read_script({"rules": [long]})
    assert isinstance(read_script({"rules": [short]}).rules[0], Rule)


def test_the_example_in_the_module_is_a_script() -> None:
    import perdure.activities.providers.scripted as module

    assert module.__doc__ is not None
    example = "\n".join(line for line in module.__doc__.splitlines() if line.startswith("    "))
    assert [each.name for each in read_script(yaml.safe_load(example)).rules] == [
        "refused",
        "book",
        "booked as changed",
        "booked",
    ]
