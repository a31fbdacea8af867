"""Text from outside as the pages draw it, and times."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.pages.render import brief, moment, since, until, visible


@pytest.mark.parametrize(("text", "drawn"), [
    ("plain", "plain"),
    ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
    ("a\u202eb", '<bdi>a<span class="unseen"'),
    ("\x1b[2J", "\\u001b</span>[2J"),
    ("zero\u200bwidth", "\\u200b</span>width"),
    ("\u05d0\u05d1", "<bdi>\u05d0\u05d1</bdi>"),
    ("two\nlines", "<bdi>two\nlines</bdi>"),
    ("**bold** [a](javascript:x)", "**bold** [a](javascript:x)"),
    ('" onmouseover="x', "&#34; onmouseover=&#34;x"),
])  # fmt: skip
def test_text_from_outside_is_drawn_inert(text: str, drawn: str) -> None:
    assert drawn in visible(text)


@given(st.text(), st.integers(min_value=2, max_value=50))
def test_whatever_the_text_only_our_own_markup_is_in_it_and_a_brief_one_is_one_line(text: str, most: int) -> None:
    assert "\n" not in brief(text, most)
    drawn = str(visible(text))
    drawn = re.sub(r'<span class="unseen" title="[^"<>]*">|</span>|</?bdi>', "", drawn)
    assert "<" not in drawn and ">" not in drawn and '"' not in drawn


def test_times_are_shown_in_full_and_relative() -> None:
    at = datetime(2026, 3, 1, 9, 5, tzinfo=UTC)
    assert 'datetime="2026-03-01T09:05:00+00:00" title="1 Mar 2026, 09:05 UTC" data-updated=""' in moment(at)
    now = datetime.now(UTC)
    left, gone = until(now + timedelta(hours=2, minutes=30)), since(now - timedelta(minutes=3, seconds=5))
    assert 'data-updated="until"' in left and "2 h" in left and 'data-updated="since"' in gone and "3 min" in gone
    assert re.fullmatch(r"\D+", until(now - timedelta(seconds=1)).partition(">")[2]), "nothing is left to count"
    assert since(None) == moment(None) == until(None) == ""
