"""The summary of a turn is made of its own texts, short and the same every time."""

import pytest

from perdure.core.turns import ANSWERED_CHARACTERS, ASKED_CHARACTERS, summary_of


@pytest.mark.parametrize(
    ("asked", "answered", "summary"),
    [
        ("What is open?", "Two tickets.", "Asked: What is open?\nAnswered: Two tickets."),
        ("  in\n\nlines\t", "so\nis  this", "Asked: in lines\nAnswered: so is this"),
        ("only asked", " \n", "Asked: only asked"),
        ("a\x00b", "", "Asked: a\ufffdb"),
    ],
)
def test_a_summary_says_what_was_asked_and_what_was_answered(asked: str, answered: str, summary: str) -> None:
    assert summary_of(asked, answered) == summary == summary_of(asked, answered)


def test_long_texts_are_cut_at_a_word_and_say_so() -> None:
    asked, answered = summary_of("word " * 1_000, "answer " * 1_000).splitlines()
    assert asked.endswith("word …") and len(asked) <= ASKED_CHARACTERS + len("Asked:  …")
    assert answered.endswith("answer …") and len(answered) <= ANSWERED_CHARACTERS + len("Answered:  …")
    assert summary_of("x" * 1_000, "").endswith("x …"), "a text without a word's end is cut anywhere"
