"""Templates of an app's texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from syrupy.assertion import SnapshotAssertion

from perdure.core.agents import templates
from perdure.core.agents.templates import VARIABLES, Stage, archive_refusal, fill_variables
from perdure.core.calls.description import BadTemplate, arguments_on_one_line, describe_call, names_in

VALUES = {"user_name": "Ann", "user_role": "clerk"}


@pytest.mark.parametrize(("text", "expected"), [
    ("Dear {{user_name}}, {{ user_role }}", "Dear Ann, clerk"),
    ("{{agent_title}}|{{skill_name}}", "|"),
    *((text, text) for text in ("{user_name} {{ }} {{colour}}", "{{user_name", "")),
])  # fmt: skip
def test_a_variable_is_filled_in_and_other_text_stays(text: str, expected: str) -> None:
    assert fill_variables(text, VALUES) == expected
    assert fill_variables("{{user_name}}", VALUES | {"user_name": "{{user_role}}"}) == "{{user_role}}", "filled in once"


@pytest.mark.parametrize(("text", "found"), [
    ("{{user_name}} {{ skill_name }}", []),
    ("a\n{{colour}} {{user_name}} {{}}", [(2, "colour"), (2, "")]),
    ("{{user_name}} {{", [(1, "")]),
    ("{{user\nname}}", [(1, "")]),
    ("a } b }} {c}", []),
    ("{{user_name.__class__}}", [(1, "user_name.__class__")]),
])  # fmt: skip
def test_a_mark_without_a_variable_is_found_with_its_line(text: str, found: list[tuple[int, str]]) -> None:
    assert list(templates.unknown_marks(text)) == found


pieces = st.sampled_from([*(f"{{{{{name}}}}}" for name in VARIABLES), "{{", "}}", "{{x}}", "\n", "text", " "])


@given(st.lists(pieces, max_size=8).map("".join))
def test_a_text_without_unknown_marks_has_none_left_after_filling(text: str) -> None:
    if not list(templates.unknown_marks(text)):
        assert "{{" not in fill_variables(text, dict.fromkeys(VARIABLES, "value"))


@pytest.mark.parametrize(("template", "args", "sentence"), [
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
])  # fmt: skip
def test_a_template_is_filled_from_the_arguments(template: str, args: dict[str, JsonValue], sentence: str) -> None:
    assert describe_call(template, args) == sentence


def test_an_argument_that_is_missing_is_reported(snapshot: SnapshotAssertion) -> None:
    assert describe_call("Pay {amount}", {}) == describe_call("Pay {amount}", {"amount": None}) == snapshot


@pytest.mark.parametrize(
    "template", ["a {", "a }", "{1}", "{a.b}", "{a!r}", "{}", "{|x}", "{a|}", "two\nlines", "x" * 301]
)
def test_a_template_that_cannot_be_filled_is_refused(template: str) -> None:
    with pytest.raises(BadTemplate):
        names_in(template)
    assert names_in("Pay {amount|all of it} for {{this}} to {to}, {to}") == {"amount", "to"}


@given(st.text(max_size=70))
def test_an_argument_stays_inside_its_quotes_whatever_it_contains(text: str) -> None:
    sentence = describe_call("Send {text} now", {"text": text})
    if sentence.endswith('" now'):
        assert json.loads(sentence.removeprefix("Send ").removesuffix(" now")) == text


def test_arguments_are_shown_on_one_line_as_far_as_there_is_room() -> None:
    assert arguments_on_one_line({}) == ""
    assert arguments_on_one_line({"note": "", "name": "web", "count": 0}) == 'name: "web", count: 0, note: ""'
    long = arguments_on_one_line({"a": "x" * 100, "b": "y" * 70, "c": 1})
    assert long.startswith('a: "xxx') and "22" in long and ", b:" in long and long.endswith("y…")
    assert describe_call("Send {text}", {"text": "x" * 100}).startswith('Send "' + "x" * 79 + "… (22")
    assert "\n" not in arguments_on_one_line({"a": "x\ny"})


BOTH = (Stage.PRE_PRODUCTION, Stage.ACTIVE)


@pytest.mark.parametrize(("stages", "author", "roles", "code"), [
    *((BOTH, False, roles, None) for roles in ({"reviewer"}, {"admin"}, {"requester", "admin"})),
    *((BOTH, False, roles, "role_required") for roles in ({"requester"}, set[str]())),
    # An author sees the own draft, and no other user does.
    *((BOTH[1:], True, roles, "own_draft") for roles in ({"reviewer"}, {"admin", "reviewer"})),
    (BOTH[1:], True, {"requester"}, "role_required"),
    (BOTH[:1], True, {"reviewer"}, None),
])  # fmt: skip
def test_reviewers_promote_drafts(stages: tuple[Stage, ...], author: bool, roles: set[str], code: str | None) -> None:
    for to in stages:
        refused = templates.promotion_refusal(to, author, roles)
        assert (refused and (refused.http, refused.code)) == (code and (403, code))


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("author", [True, False])
def test_authors_archive_their_own_draft_and_reviewers_any_version(stage: Stage, author: bool) -> None:
    assert archive_refusal(stage, author, {"reviewer"}) is None
    assert (archive_refusal(stage, author, {"requester"}) is None) is (author and stage is Stage.DRAFT)


def test_a_mark_without_a_variable_is_reported_with_its_line() -> None:
    refused = templates.text_refusal("You serve {{user_name}}.\nIn {{colour}}, {{ skill_name }}.\n{{")
    assert refused is not None and (refused.http, refused.code) == (422, "template_variable_unknown")
    assert refused.details["unknown"] == [{"line": 2, "name": "colour"}, {"line": 3, "name": ""}]
    assert "user_name" in str(refused.details["known"])
    assert templates.text_refusal("{{user_name}} {{user_role}} {{agent_title}} {{skill_name}} { } }}") is None
