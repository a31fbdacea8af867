"""The rules of a scripted model: what is refused when they are read, and by which name."""

from typing import Any

import pytest
import yaml

from perdure.activities.providers.scripted import Rule, Script, read_script
from perdure.contracts.errors import CallerError


def rule(**fields: Any) -> dict[str, Any]:
    return {"rules": [{"name": "book", "when": "^Book (?P<room>.+)", "say": "ok", **fields}]}


@pytest.mark.parametrize(
    ("script", "names"),
    [
        (rule(when="("), "book"),
        (rule(say="{rom}"), "book {rom} room"),
        (rule(say="{room"), "book {room"),
        (rule(say="{}"), "book {}"),
        (rule(say="{room:date}"), "book {room:date}"),
        (rule(say="{room.floor}"), "book {room}"),
        (rule(say="{result.x}"), "book {result} message"),
        (rule(say="{note}"), "book {note} message"),
        (rule(call={"tool": "t", "args": {"a": [{"b": "{nope}"}]}}), "book {nope}"),
        (rule(say=""), "book say call"),
        (rule(when=None), "book when note after"),
        (rule(note="(?P<room>x)"), "book room"),
        (rule(when="(?P<result>x)"), "book result"),
        (rule(wen="x"), "book wen"),
        (rule(say=3), "book say"),
        (rule(call={"args": {}}), "book call.0.tool"),
        (rule(after={"tool": 3}), "book after.tool"),
        ({"rules": [{"when": "x", "say": "y"}]}, "1 name"),
        ({"rules": [{"name": "a", "when": "x", "say": "y"}] * 2}, "'a'"),
        ({"rules": ["x"]}, "1"),
        ({"tokens_per_second": -1}, "tokens_per_second"),
        ({"tokens_per_second": "fast"}, "tokens_per_second"),
        ({"price_per_million": {"input": 1}}, "price_per_million.output"),
        ({"ruels": []}, "ruels"),
    ],
)
def test_a_wrong_script_is_refused_with_the_names_of_its_rule_and_field(script: dict[str, Any], names: str) -> None:
    with pytest.raises(CallerError) as raised:
        read_script(script)
    assert raised.value.code == "bad_script" and all(name in raised.value.message for name in names.split())


def test_every_fault_of_a_script_is_told_at_once() -> None:
    with pytest.raises(CallerError) as raised:
        read_script({"rules": [{"name": "a", "say": "x"}, {"name": "b", "when": "["}], "fallback": ""})
    assert all(part in raised.value.message for part in ("'a'", "'b'", "fallback"))


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
