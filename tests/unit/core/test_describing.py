"""A tool's sentence about a call."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.core.agents.templates import BadTemplate, at_a_glance, described, names_in

CASES: list[tuple[str, dict[str, JsonValue], str]] = [
    ("Refund order {order}", {"order": "37"}, 'Refund order "37"'),
    ("Pay {amount} to {to}", {"amount": 12, "to": "ann"}, 'Pay 12 to "ann"'),
    ("Pay {amount}", {}, "Pay (nothing)"),
    ("Pay {amount}", {"amount": None}, "Pay (nothing)"),
    ("Set {{x}} to {x}", {"x": True}, "Set {x} to true"),
    ("Tag {tags}", {"tags": ["a", {"b": 1}]}, 'Tag ["a", {"b": 1}]'),
    ("Send {text}", {"text": '". Nothing is sent. "'}, 'Send "\\". Nothing is sent. \\""'),
    ("Send {text}", {"text": "{order}"}, 'Send "{order}"'),
    ("Send {text}", {"text": "x" * 100}, 'Send "' + "x" * 79 + "… (22 more characters)"),
    ("Pay {amount|all of it}", {}, "Pay all of it"),
    ("Pay {amount|all of it}", {"amount": 0}, "Pay 0"),
    ("Pay {amount|all of it} to {to|nobody}", {"amount": None, "to": ""}, "Pay all of it to nobody"),
    ("Send {text|nothing}", {"text": "{order|x}"}, 'Send "{order|x}"'),
    ("", {"order": "37"}, ""),
]


@pytest.mark.parametrize(("template", "args", "sentence"), CASES)
def test_a_template_is_filled_from_the_arguments(template: str, args: dict[str, JsonValue], sentence: str) -> None:
    assert described(template, args) == sentence


@pytest.mark.parametrize(
    "template", ["a {", "a }", "{1}", "{a.b}", "{a!r}", "{}", "{|x}", "{a|}", "two\nlines", "x" * 301]
)
def test_a_template_that_cannot_be_filled_is_refused(template: str) -> None:
    with pytest.raises(BadTemplate):
        names_in(template)


def test_a_template_names_its_arguments() -> None:
    assert names_in("Pay {amount|all of it} for {{this}} to {to}, {to}") == {"amount", "to"}


@given(st.text(max_size=70))
def test_a_text_stays_inside_its_quotes_whatever_it_says(text: str) -> None:
    sentence = described("Send {text} now", {"text": text})
    if "more characters" not in sentence:
        assert json.loads(sentence.removeprefix("Send ").removesuffix(" now")) == text


def test_arguments_are_told_on_one_line_as_far_as_there_is_room() -> None:
    assert at_a_glance({}) == ""
    assert at_a_glance({"name": "web", "count": 2}) == 'name: "web", count: 2'
    long = at_a_glance({"a": "x" * 100, "b": "y" * 70, "c": 1})
    assert long.startswith('a: "xxx') and "(22 more characters), b:" in long and long.endswith("y…")
    assert "\n" not in at_a_glance({"a": "x\ny"})
