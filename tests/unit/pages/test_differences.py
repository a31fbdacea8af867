"""Two JSON values line by line."""

import pytest

from perdure.pages.approvals.page import Line, differences


def test_a_line_that_is_not_the_last_any_more_is_no_difference_and_few_lines_are_shown_whole() -> None:
    shown = [(line.sign, line.text) for line in differences({"order": "2002"}, {"order": "2002", "cents": 5})]
    assert shown == [(" ", "{"), (" ", '  "order": "2002"'), ("+", '  "cents": 5'), (" ", "}")]


@pytest.mark.parametrize("count", [1, 5, 200, 5_000])
def test_what_is_the_same_has_no_lines_and_what_is_not_is_among_them(count: int) -> None:
    before = {f"n{number}": number for number in range(count)}
    assert differences(before, {**before}) == []
    lines = differences(before, {**before, "n0": "\u2028"})
    assert Line("-", '  "n0": 0') in lines and Line("+", '  "n0": "\u2028"') in lines
    assert len(lines) <= 2 * count + 6
