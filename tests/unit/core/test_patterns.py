"""Patterns of JavaScript. What each row says was asked of a browser, with the `u` flag where it allows the pattern."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.patterns import InvalidPattern, compile_pattern


def matches(pattern: str, text: str) -> bool:
    return compile_pattern(pattern).found_in(text, 5)


@pytest.mark.parametrize(("pattern", "matching", "other"), [
    *((r"^\d+$", "12", "\u0663"), (r"^\D$", "\u0663", "3"), (r"^\w$", "_", "é"), (r"^\W$", "é", "a")),
    (r"^\s$", "\ufeff", "\x85"),
    *((r"^\S$", "\x85", "\ufeff"), (r"\bb", "éb", "ab"), (r"\Bb", "ab", "éb"), (r"^\u{61}$", "a", "u")),
    (r"^\u0061$", "a", "u"), *((r"^\ud83d\ude00$", "😀", "x"), (r"^\x61$", "a", "x"), (r"^\cJ$", "\n", "J")),
    *((r"^\0$", "\0", "0"), (r"^a\/b$", "a/b", "ab")),
    *((r"^[\w.+-]+$", "a.b+c-", "é"), (r"^[\d-x]$", "-", "5x"), (r"^[^\D5]$", "4", "5"), ("[^]", "\n", "")),
    (r"^[&&[]$", "[", "]"),
    *((r"^[\b]$", "\b", "b"), (r"^.$", "\x85", "\u2028"), (r"^\p{Lu}$", "É", "é"), (r"^\P{L}$", "1", "a")),
    ("^{}$", "{}", "{"), *(("^a{2}$", "aa", "a"), ("^(?<n>a)\\k<n>$", "aa", "a"), (r"^(a|b)\1$", "bb", "ab")),
    (r"^(?<$n>a)(?<_dn>b)\k<$n>$", "aba", "abb"), *(("^(?!x)", "a", "x"), ("(?<=x)y", "xy", "y")),
    *((r"^[\u{61}-\u{63}]$", "b", "d"), ("^~#-$", "~#-", "~"), (r"^\S+@\S+\.\S+$", "a@b.c", "a@b")),
    ("^[a~~b&&-]$", "&", "+"),
])  # fmt: skip
def test_a_pattern_matches_as_in_javascript(pattern: str, matching: str, other: str) -> None:
    assert matches(pattern, matching) and not matches(pattern, other)


@pytest.mark.parametrize(("pattern", "matching", "other"), [
    *((r"\A[a-z]\Z", "a", "a\n"), ("(?P<n>a)(?P=n)", "aa", "a"), ("(?i)^abc$", "ABC", "abd"), ("(?s)^.$", "\n", "")),
    *(("(?m)^a$", "b\na", "ba"), ("(?i:a)b", "Ab", "AB")),
])  # fmt: skip
def test_patterns_that_only_python_writes_are_understood(pattern: str, matching: str, other: str) -> None:
    assert matches(pattern, matching) and not matches(pattern, other)


@pytest.mark.parametrize(
    "pattern", ["(", "[a", "a\\", "[z-a]", r"\u{110000}", r"\ud83d", r"(a)\2", r"\k<n>", "*", "[a-"]
)
def test_a_text_that_is_no_pattern_is_named_as_such(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        compile_pattern(pattern)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", r"^(\w+\s?)*$", r"(.*a){20}$"])
def test_a_pattern_is_matched_in_linear_time(pattern: str) -> None:
    began = time.process_time()
    assert not matches(pattern, "a" * 50_000 + "!")
    assert time.process_time() - began < 5


@pytest.mark.parametrize("pattern", ["^(?=(a+)+$)", r"((a{1,30}){1,30}){1,30}b$"])
def test_what_no_engine_matches_in_linear_time_ends_at_its_deadline(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    began = time.process_time()
    with pytest.raises(TimeoutError):
        compiled.found_in("a" * 500_000 + "!", 0.3)
    assert time.process_time() - began < 5  # unbounded it takes minutes


TOKENS = [
    *"aé٣_-.*+?|()[]^${},&~#\n", "(?:", "(?=", "(?<n>", "[^", r"\d", r"\W", r"\s", r"\b", r"\B", r"\u{61}", r"\1",
    r"\\",
]  # fmt: skip


@given(st.lists(st.sampled_from(TOKENS), max_size=9).map("".join), st.text(max_size=6))
def test_any_text_is_a_pattern_or_named_as_invalid(pattern: str, text: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except InvalidPattern:
        return
    assert compiled.found_in(text, 5) in (True, False)
