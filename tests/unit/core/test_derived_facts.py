"""Facts that a text states: short, typed, and never the text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.memory import MOST_FACTS, Fact
from perdure.core.memory.facts import derived_facts, told

CASES = [
    ("My name is Ann.", {"name": "Ann"}),
    ("call me Dr. Who", {"name": "Dr"}),
    ("I live in New York and I like tea", {"place": "New York", "likes": "tea"}),
    ("I prefer short answers, please answer in French!", {"prefers": "short answers", "language": "French"}),
    ("I don't like noise", {"dislikes": "noise"}),
    ("My name is Ann. No, my name is Eva.", {"name": "Eva"}),
    ("what is your name?", {}),
    ("", {}),
    ("I like", {}),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_the_table_of_statements(text: str, expected: dict[str, str]) -> None:
    assert {fact.type: fact.content for fact in derived_facts(text)} == expected


@given(st.text(max_size=400))
def test_whatever_the_text_its_facts_are_few_short_and_valid(text: str) -> None:
    facts = derived_facts(text)
    assert len(facts) <= MOST_FACTS and len({fact.type for fact in facts}) == len(facts)
    for fact in facts:
        assert Fact.model_validate(fact.model_dump()) == fact
        assert len(fact.content) <= 60 and fact.content in text and len(fact.content) < len(text)


def test_a_long_hostile_text_takes_no_time() -> None:
    began = time.process_time()
    derived_facts("i like " * 20_000 + "my name is " * 20_000 + "a" * 100_000)
    assert time.process_time() - began < 2


def test_a_note_says_whose_facts_they_are() -> None:
    note = told("this person", derived_facts("my name is Ann"))
    assert note == "=== Remembered (this person) ===\n- name: Ann"
