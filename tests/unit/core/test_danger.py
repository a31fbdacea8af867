"""Words of danger are found however they are written, across two messages too, and nothing else is found."""

import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perdure.apps import SHIPPED
from perdure.core.agents.safety_keywords import danger_in, is_phrase

WORDS = {"self_harm": ["kill myself", "suicid*", "want to die", "dont want to live"], "others": ["hurt somebody"]}
CARE = yaml.safe_load((SHIPPED / "care" / "agents" / "care_navigator.yaml").read_text())["assembly"]["danger"]


@pytest.mark.parametrize(
    "text",
    [
        "I want to kill myself",
        "KILL  MYSELF",
        "kill\nmyself",
        "to\tkill\u00a0\u3000myself",
        "k1ll myself",
        "ki11 my5elf",
        "killmyself",
        "kill-myself",
        "k.i.l.l. myself",
        "i k i l l myself",
        "i k i l l m y s e l f",
        "killllll myseeelf",
        "kil myself",
        "k\u0456ll m\u0443s\u0435lf",  # Cyrillic
        "\u039a\u0399LL \u039c\u03a5S\u0395LF",  # Greek capitals
        "k\u0131ll mys\u00e9lf",
        "\uff2b\uff29\uff2c\uff2c \uff2d\uff39\uff33\uff25\uff2c\uff26",  # full width
        "\U0001d4c0\U0001d4be\U0001d4c1\U0001d4c1 \U0001d4c2\U0001d4ce\U0001d4c8\U0001d452\U0001d4c1\U0001d4bb",
        "s\u200bu\u200bi\u200bc\u200bi\u200bd\u200be",
        "sui\u00adcide",
        "sui\u2014cide",
        "s\u2060uicidal",
        "\u0455u\u0456c\u0456d\u0430l",
        "su1c1de",
        "I don\u2019t want to live",
        "I do'nt want to live",
    ],
)
def test_a_phrase_is_found_however_it_is_written(text: str) -> None:
    assert danger_in(text, "", WORDS) == "self_harm"


@pytest.mark.parametrize(
    "text", ["", "I upskill myself", "I want to diet", "the live show", "decided", "book p1 at Monday 10:00", "killing"]
)
def test_what_only_looks_like_one_is_not(text: str) -> None:
    assert danger_in(text, "", WORDS) == ""


@pytest.mark.parametrize(
    ("before", "message", "category"),
    [
        ("I want to kill", "myself", "self_harm"),
        ("i want...", "...TO DIE!", "self_harm"),
        ("could hurt ", "somebody", "others"),
        ("I want to die", "thanks", ""),
        ("kill myself", "kill time", ""),
        ("want to", "go", ""),
        ("", "myself", ""),
    ],
)
def test_a_phrase_may_begin_in_one_message_and_end_in_the_next(before: str, message: str, category: str) -> None:
    assert danger_in(message, before, WORDS) == category


def test_an_agent_without_words_finds_none_and_the_first_category_that_fits_is_told() -> None:
    assert danger_in("kill myself", "", {}) == ""
    assert danger_in("hurt somebody and kill myself", "", WORDS) == "self_harm"


@pytest.mark.parametrize(
    ("phrase", "is_one"), [("kill myself", True), ("suicid*", True), ("", False), ("*", False), ("a* b", False)]
)
def test_a_phrase_has_words_and_one_star_at_most(phrase: str, is_one: bool) -> None:
    assert is_phrase(phrase) is is_one


@pytest.mark.parametrize("piece", ["1", "_", "a ", "a", "@", "\u0301", "\u200b", "k i ", "\u0430", "-", "'", " "])
def test_a_long_text_is_read_once_whatever_it_repeats(piece: str) -> None:
    """A quadratic reading of the longest message would take minutes."""
    began = time.process_time()
    assert danger_in(piece * (200_000 // len(piece)), "", WORDS) == ""
    assert time.process_time() - began < 10


PHRASES = [(category, phrase) for category, phrases in CARE.items() for phrase in phrases]
FORMATS = st.sampled_from(["", "\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u0301"])


@given(st.data(), st.sampled_from(PHRASES), st.text(max_size=20), st.text(max_size=20))
def test_every_phrase_that_ships_is_found_between_any_words_however_it_is_disguised(
    data: st.DataObject, found: tuple[str, str], before: str, after: str
) -> None:
    _, phrase = found
    plain = phrase.rstrip("*")
    disguised = "".join(
        data.draw(st.sampled_from([each, each.upper()])) + (data.draw(FORMATS) if each != " " else "  ")
        for each in plain
    )
    assert danger_in(f"{before} . {disguised} . {after}", "", CARE) != ""


def test_what_the_shipped_agent_is_asked_every_day_is_no_danger() -> None:
    for text in (
        "I cannot sleep and feel alone",
        "Which therapists are there?",
        "I am anxious and cannot sleep",
        "Book p1 at Monday 10:00",
        "I am sad, and tired of my job",
        "Somebody within 20 kms, please",
        "My mother died last year",
    ):
        assert danger_in(text, "Thanks", CARE) == "", text
