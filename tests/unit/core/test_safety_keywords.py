"""Safety keywords, and the verdicts of a model on a message."""

import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perdure.apps import SHIPPED
from perdure.core.agents import message_verdicts
from perdure.core.agents.message_verdicts import Question, Safety, empathy_of, intent_of
from perdure.core.agents.safety_keywords import is_phrase, safety_keywords_in
from perdure.core.json_schema import schema_fault
from tests.scale import sized

KNOWN = ("Support", "booking")
WORDS = {"self_harm": ["kill myself", "suicid*", "want to die", "dont want to live"], "others": ["hurt somebody"]}
CARE = yaml.safe_load((SHIPPED / "care" / "agents" / "care_navigator.yaml").read_text())["assembly"]["danger"]
PHRASES = [phrase for phrases in CARE.values() for phrase in phrases]
FORMATS = st.sampled_from(["", "\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u0301"])


@pytest.mark.parametrize(("verdict", "found"), [
    *(({"hijacked": False}, Safety(False, "")), ({"hijacked": True, "category": "harm"}, Safety(True, "harm"))),
    *((verdict, Safety(True, "unavailable")) for verdict in (None, {}, {"hijacked": "false"})),
    ({"hijacked": False, "category": "None."}, Safety(False, "None.")),
    ({"hijacked": False, "category": "self_harm"}, Safety(True, "self_harm")),
    ({"hijacked": False, "category": ["self_harm"]}, Safety(True, "unavailable")),
    ({"hijacked": True, "category": "none"}, Safety(True, "none")),
])  # fmt: skip
def test_only_a_plain_no_clears_a_turn(verdict: dict[str, Any] | None, found: Safety) -> None:
    assert message_verdicts.safety_of(verdict) == found


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=10)
json_values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2))
NOTHING = ["", " ", "none", "None", " NONE. ", "no", "null", "n/a", "N/A", "na", "safe", "nothing"]
CATEGORIES = st.sampled_from([*NOTHING, "self_harm", "not none", "unsafe"]) | json_values


@given(
    st.fixed_dictionaries(
        {}, optional={"hijacked": st.just(False) | json_values, "category": CATEGORIES, "x": json_values}
    )
)
def test_only_a_no_that_names_no_danger_clears_a_turn(verdict: dict[str, Any]) -> None:
    category = verdict.get("category")
    is_word = isinstance(category, str) and (category in NOTHING or category.strip(" .").lower() in NOTHING)
    names_nothing = category is None or is_word
    assert message_verdicts.safety_of(verdict).hijacked is not (verdict.get("hijacked") is False and names_nothing)


def test_an_intent_is_a_known_one_and_a_tone_is_the_answer_cut_and_on_one_line() -> None:
    assert intent_of({"intent": " SUPPORT "}, KNOWN, "booking") == "Support"
    for verdict in ({"intent": "booking"}, {"intent": "other"}, {"intent": ["booking"]}, {}, None):
        assert intent_of(verdict, KNOWN, "booking") == "booking"  # type: ignore[arg-type]
    assert empathy_of(None) == {}
    said = empathy_of({"tone": " warm\n\n", "guidance": "x" * 9_999, "more": 1})
    assert said == {"tone": "warm", "guidance": "x" * message_verdicts.MAX_VERDICT_TEXT_CHARACTERS}


@pytest.mark.parametrize(
    ("question", "good"),
    list(zip(Question, [{"hijacked": False}, {"intent": "booking"}, {"tone": "warm"}], strict=True)),
)
def test_a_category_needs_its_first_field(question: Question, good: dict[str, Any]) -> None:
    form = message_verdicts.answer_schema(question, KNOWN)
    assert schema_fault({}, form) is not None and schema_fault(good, form) is None


@pytest.mark.parametrize("text", [
    "I want to kill myself", "KILL  MYSELF", "kill\nmyself", "to\tkill\u00a0\u3000myself", "k1ll myself",
    "ki11 my5elf", "killmyself", "kill-myself", "k.i.l.l. myself", "i k i l l myself", "i k i l l m y s e l f",
    "killllll myseeelf", "kil myself",
    "k\u0456ll m\u0443s\u0435lf",  # Cyrillic
    "\u039a\u0399LL \u039c\u03a5S\u0395LF",  # Greek capitals
    "k\u0131ll mys\u00e9lf",
    "\uff2b\uff29\uff2c\uff2c \uff2d\uff39\uff33\uff25\uff2c\uff26",  # full width
    "\U0001d4c0\U0001d4be\U0001d4c1\U0001d4c1 \U0001d4c2\U0001d4ce\U0001d4c8\U0001d452\U0001d4c1\U0001d4bb",
    "s\u200bu\u200bi\u200bc\u200bi\u200bd\u200be", "sui\u00adcide", "sui\u2014cide", "s\u2060uicidal",
    "\u0455u\u0456c\u0456d\u0430l", "su1c1de", "I don\u2019t want to live", "I do'nt want to live",
])  # fmt: skip
def test_a_phrase_is_found_in_any_spelling(text: str) -> None:
    assert safety_keywords_in(text, "", WORDS) == "self_harm"


@pytest.mark.parametrize("text", [
    "", "I upskill myself", "I want to diet", "the live show", "decided", "book p1 at Monday 10:00", "killing",
    "I cannot sleep and feel alone", "Which therapists are there?", "I am anxious and cannot sleep",
    "I am sad, and tired of my job", "Somebody within 20 kms, please", "My mother died last year",
])  # fmt: skip
def test_an_everyday_text_or_one_that_resembles_a_phrase_has_none(text: str) -> None:
    assert safety_keywords_in(text, "", WORDS) == safety_keywords_in(text, "Thanks", CARE) == ""


@pytest.mark.parametrize(("category", "messages"), [
    ("self_harm", [("I want to kill", "myself"), ("i want...", "...TO DIE!")]),
    ("others", [("could hurt ", "somebody")]),
    ("", [("I want to die", "thanks"), ("kill myself", "kill time"), ("want to", "go"), ("", "myself")]),
])  # fmt: skip
def test_a_phrase_is_found_across_two_messages(category: str, messages: list[tuple[str, str]]) -> None:
    assert [safety_keywords_in(message, before, WORDS) for before, message in messages] == [category] * len(messages)
    assert safety_keywords_in("kill myself", "", {}) == ""
    assert safety_keywords_in("hurt somebody and kill myself", "", WORDS) == "self_harm", "the first that fits"


def test_a_phrase_has_words_and_one_star_at_most() -> None:
    assert is_phrase("kill myself") and is_phrase("suicid*")
    assert not any(map(is_phrase, ("", "*", "a* b")))


@pytest.mark.sized
@pytest.mark.parametrize("piece", ["1", "_", "a ", "a", "@", "\u0301", "\u200b", "k i ", "\u0430", "-", "'", " "])
def test_a_long_text_is_read_once_whatever_it_repeats(piece: str) -> None:
    """A quadratic reading of the longest message would take minutes."""
    began = time.process_time()
    assert safety_keywords_in(piece * (sized(200_000, 50_000) // len(piece)), "", WORDS) == ""
    assert time.process_time() - began < sized(10, 3)


@given(st.data(), st.sampled_from(PHRASES), st.text(max_size=20), st.text(max_size=20))
def test_shipped_phrases_are_found_in_any_disguise(data: st.DataObject, phrase: str, before: str, after: str) -> None:
    disguised = "".join(
        data.draw(st.sampled_from([each, each.upper()])) + (data.draw(FORMATS) if each != " " else "  ")
        for each in phrase.rstrip("*")
    )
    assert safety_keywords_in(f"{before} . {disguised} . {after}", "", CARE) != ""
