"""Context templates: what may be filled in, and with what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.agents.templates import VARIABLES, filled, unknown_marks

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
