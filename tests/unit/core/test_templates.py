"""Templates of an app's texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from syrupy.assertion import SnapshotAssertion

from perdure.core.agents.templates import (
    BEFORE,
    VARIABLES,
    BadTemplate,
    Stage,
    archive_refusal,
    at_a_glance,
    described,
    filled,
    names_in,
    promotion_refusal,
    text_refusal,
    unknown_marks,
)

VALUES = {"user_name": "Ann", "user_role": "clerk"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dear {{user_name}}, {{ user_role }}", "Dear Ann, clerk"),
        ("{{agent_title}}|{{skill_name}}", "|"),
        ("{user_name} {{ }} {{colour}}", "{user_name} {{ }} {{colour}}"),
        ("{{user_name", "{{user_name"),
        ("", ""),
    ],
)
def test_a_variable_is_filled_in_and_what_is_none_stays(text: str, expected: str) -> None:
    assert filled(text, VALUES) == expected


def test_what_is_filled_in_is_not_read_as_a_template_again() -> None:
    assert filled("{{user_name}}", {"user_name": "{{user_role}}", "user_role": "admin"}) == "{{user_role}}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{{user_name}} {{ skill_name }}", []),
        ("a\n{{colour}} {{user_name}} {{}}", [(2, "colour"), (2, "")]),
        ("{{user_name}} {{", [(1, "")]),
        ("{{user\nname}}", [(1, "")]),
        ("a } b }} {c}", []),
        ("{{user_name.__class__}}", [(1, "user_name.__class__")]),
    ],
)
def test_a_mark_that_stands_for_no_variable_is_found_with_its_line(text: str, found: list[tuple[int, str]]) -> None:
    assert list(unknown_marks(text)) == found


pieces = st.sampled_from([*(f"{{{{{name}}}}}" for name in VARIABLES), "{{", "}}", "{{x}}", "\n", "text", " "])


@given(st.lists(pieces, max_size=8).map("".join))
def test_a_text_without_unknown_marks_has_none_left_once_it_is_filled(text: str) -> None:
    if not list(unknown_marks(text)):
        assert "{{" not in filled(text, dict.fromkeys(VARIABLES, "value"))


CASES: list[tuple[str, dict[str, JsonValue], str]] = [
    ("Refund order {order}", {"order": "37"}, 'Refund order "37"'),
    ("Pay {amount} to {to}", {"amount": 12, "to": "ann"}, 'Pay 12 to "ann"'),
    ("Set {{x}} to {x}", {"x": True}, "Set {x} to true"),
    ("Tag {tags}", {"tags": ["a", {"b": 1}]}, 'Tag ["a", {"b": 1}]'),
    ("Send {text}", {"text": '". Nothing is sent. "'}, 'Send "\\". Nothing is sent. \\""'),
    ("Send {text}", {"text": "{order}"}, 'Send "{order}"'),
    ("Pay {amount|all of it}", {}, "Pay all of it"),
    ("Pay {amount|all of it}", {"amount": 0}, "Pay 0"),
    ("Pay {amount|all of it} to {to|nobody}", {"amount": None, "to": ""}, "Pay all of it to nobody"),
    ("Send {text|nothing}", {"text": "{order|x}"}, 'Send "{order|x}"'),
    ("", {"order": "37"}, ""),
]


@pytest.mark.parametrize(("template", "args", "sentence"), CASES)
def test_a_template_is_filled_from_the_arguments(template: str, args: dict[str, JsonValue], sentence: str) -> None:
    assert described(template, args) == sentence


def test_an_argument_that_is_missing_is_told(snapshot: SnapshotAssertion) -> None:
    assert described("Pay {amount}", {}) == described("Pay {amount}", {"amount": None}) == snapshot


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
    if sentence.endswith('" now'):
        assert json.loads(sentence.removeprefix("Send ").removesuffix(" now")) == text


def test_arguments_are_told_on_one_line_as_far_as_there_is_room() -> None:
    assert at_a_glance({}) == ""
    assert at_a_glance({"name": "web", "count": 2}) == 'name: "web", count: 2'
    long = at_a_glance({"a": "x" * 100, "b": "y" * 70, "c": 1})
    assert long.startswith('a: "xxx') and "22" in long and ", b:" in long and long.endswith("y…")
    assert described("Send {text}", {"text": "x" * 100}).startswith('Send "' + "x" * 79 + "… (22")
    assert "\n" not in at_a_glance({"a": "x\ny"})


@pytest.mark.parametrize(
    ("roles", "may"),
    [({"reviewer"}, True), ({"admin"}, True), ({"requester", "admin"}, True), ({"requester"}, False), (set(), False)],
)
@pytest.mark.parametrize("to", [Stage.PRE_PRODUCTION, Stage.ACTIVE])
def test_reviewers_and_admins_promote_and_nobody_else(to: Stage, roles: set[str], may: bool) -> None:
    refused = promotion_refusal(to, False, roles)
    assert (refused is None) is may
    assert refused is None or (refused.http, refused.code) == (403, "role_required")


@pytest.mark.parametrize(
    ("to", "roles", "code"),
    [
        (Stage.ACTIVE, {"reviewer"}, "own_draft"),
        (Stage.ACTIVE, {"admin", "reviewer"}, "own_draft"),
        (Stage.ACTIVE, {"requester"}, "role_required"),
        (Stage.PRE_PRODUCTION, {"reviewer"}, None),
    ],
)
def test_an_author_shows_the_own_words_and_lets_nobody_else_hear_them(
    to: Stage, roles: set[str], code: str | None
) -> None:
    refused = promotion_refusal(to, True, roles)
    assert (refused.code if refused else None) == code


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("author", [True, False])
@pytest.mark.parametrize("roles", [{"requester"}, {"reviewer"}])
def test_an_author_archives_the_own_draft_and_a_reviewer_anything(stage: Stage, author: bool, roles: set[str]) -> None:
    may = roles == {"reviewer"} or (author and stage is Stage.DRAFT)
    assert (archive_refusal(stage, author, roles) is None) is may


def test_each_stage_is_reached_from_one_other_and_nothing_leaves_the_archive() -> None:
    assert BEFORE == {Stage.PRE_PRODUCTION: Stage.DRAFT, Stage.ACTIVE: Stage.PRE_PRODUCTION}


def test_a_mark_that_stands_for_no_variable_is_told_with_its_line() -> None:
    refused = text_refusal("You serve {{user_name}}.\nIn {{colour}}, {{ skill_name }}.\n{{")
    assert refused is not None and (refused.http, refused.code) == (422, "template_variable_unknown")
    assert refused.details["unknown"] == [{"line": 2, "name": "colour"}, {"line": 3, "name": ""}]
    assert "user_name" in str(refused.details["known"])
    assert text_refusal("{{user_name}} {{user_role}} {{agent_title}} {{skill_name}} { } }}") is None
