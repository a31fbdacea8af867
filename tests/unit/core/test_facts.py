"""Facts: derived, and by which policy of an entity."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.contracts.memory import MAX_FACTS, Fact
from perdure.core.memory.facts import (
    MAX_RECENT_ENTITIES,
    Resolution,
    derived_facts,
    facts_note,
    merge_lists,
    remember_entity,
    resolve_entity,
)


@pytest.mark.parametrize(("text", "expected"), [
    ("My name is Ann.", {"name": "Ann"}),
    ("call me Dr. Who", {"name": "Dr"}),
    ("I live in New York and I like tea", {"place": "New York", "likes": "tea"}),
    ("I prefer short answers, please answer in French!", {"prefers": "short answers", "language": "French"}),
    ("I don't like noise", {"dislikes": "noise"}),
    ("My name is Ann. No, my name is Eva.", {"name": "Eva"}),
    *(("what is your name?", {}), ("", {}), ("I like", {})),
])  # fmt: skip
def test_statements_about_oneself_become_facts_and_questions_do_not(text: str, expected: dict[str, str]) -> None:
    assert {fact.type: fact.content for fact in derived_facts(text)} == expected


@given(st.text(max_size=400))
def test_any_text_yields_few_short_and_valid_facts(text: str) -> None:
    facts = derived_facts(text)
    assert len(facts) <= MAX_FACTS and len({fact.type for fact in facts}) == len(facts)
    for fact in facts:
        assert Fact.model_validate(fact.model_dump()) == fact
        assert len(fact.content) <= 60 and fact.content in text and len(fact.content) < len(text)


def test_a_note_names_whose_facts_it_lists_and_a_hostile_text_takes_no_time() -> None:
    assert resolve_entity([]) is Resolution.NOT_FOUND
    assert resolve_entity([("1", "Ann")]) is Resolution.DECISIVE
    assert resolve_entity([("1", "Ann"), ("2", "Anna")]) is Resolution.AMBIGUOUS
    note = facts_note("this person", derived_facts("my name is Ann"))
    assert "this person" in note and "name: Ann" in note
    began = time.process_time()
    derived_facts("i like " * 20_000 + "my name is " * 20_000 + "a" * 100_000)
    assert time.process_time() - began < 2


@given(st.lists(st.sampled_from([f"e{n}" for n in range(15)]), max_size=40))
def test_the_newest_ten_are_remembered_each_once_newest_last(seen: list[str]) -> None:
    recent: list[JsonValue] = []
    for entity_id in seen:
        recent = remember_entity(recent, entity_id)
    assert recent == list(dict.fromkeys(reversed(seen)))[:MAX_RECENT_ENTITIES][::-1]
    nothings: list[JsonValue] = [None, "text", 7, {}]
    assert all(remember_entity(nothing, "e1") == ["e1"] for nothing in nothings), "what is no list starts anew"


ids = st.lists(st.sampled_from([f"e{n}" for n in range(6)]), unique=True, max_size=5)


@given(ids, st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True, max_size=4))
def test_what_calls_side_by_side_add_is_all_kept_with_the_last_newest(before: list[str], added: list[str]) -> None:
    start: list[JsonValue] = [*before]
    now = start
    for entity_id in added:
        now = merge_lists(start, now, remember_entity(start, entity_id))
    assert now == [*before, *added]
