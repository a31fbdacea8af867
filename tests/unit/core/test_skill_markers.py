"""Markers of skills in a model's text: what they select, and that no reader sees a part of one, however it is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.agents.skill_markers import MarkerFilter, selected_skills, without_markers

KNOWN = frozenset({"plan", "more_1"})
PLAN, NONE = ("plan",), ()
TABLE: list[tuple[str, tuple[str, ...], str]] = [
    ("", NONE, ""), ("hello", NONE, "hello"), ("a < b [", NONE, "a < b ["), ("```py\nx\n```", NONE, "```py\nx\n```"),
    ("SKILL_SELECT:plan", PLAN, ""), ("LOAD_SKILL: plan", PLAN, ""), ("skill_select : Plan", PLAN, ""),
    ("LOAD SKILL = plan", PLAN, ""), ("load-skill: plan", PLAN, ""), ("SKILL_SELECT:more-1.", ("more_1",), "."),
    ("I take it. SKILL_SELECT:plan", PLAN, "I take it."), ("Now SKILL_SELECT:plan go", PLAN, "Now go"),
    ("a SKILL_SELECT:plan SKILL_SELECT:more_1 b", ("plan", "more_1"), "a b"),
    ("[SKILL_SELECT: plan]", PLAN, ""), ("Use (`SKILL_SELECT:plan`).", PLAN, "Use."), ("SKILL_SELECT:<plan>", PLAN, ""),
    ("(I use LOAD_SKILL: plan)", PLAN, "(I use)"), ("(LOAD_SKILL: plan and go)", PLAN, "( and go)"),
    ("**Load_Skill:** plan", PLAN, ""), ('{"load_skill": "plan"}', PLAN, ""), ('load_skill(skill="plan")', PLAN, ""),
    ("```\nSKILL_SELECT:plan\n```", PLAN, ""), ("```text\nLOAD_SKILL: plan\n```\nThanks", PLAN, "Thanks"),
    ("one\nSKILL_SELECT:plan\ntwo", PLAN, "one\ntwo"), ("one\nSKILL_SELECT:plan two", PLAN, "one\ntwo"),
    ("SKILL_SELECT:gone", ("gone",), ""), ("`LOAD_SKILL:gone`", ("gone",), ""),
    ("First load_skill: it helps", NONE, "First load_skill: it helps"),
    ("do not load_skill", NONE, "do not load_skill"),
    ("I will not LOAD_SKILL: plan", NONE, "I will not"), ("Never [LOAD_SKILL: plan].", NONE, "Never."),
    ("I don't need SKILL_SELECT:plan here", NONE, "I don't need here"), ("No need for `SKILL_SELECT:plan`", NONE,
        "No need for"), ("SKILL_SELECT:plan is not needed", NONE, "is not needed"),
    ("Instead of LOAD_SKILL: plan I answer", NONE, "Instead of I answer"),
    ("I do not know. SKILL_SELECT:plan", PLAN, "I do not know."),
    ("Not yet, so SKILL_SELECT:plan", PLAN, "Not yet, so"),
    ("I cannot answer that, SKILL_SELECT:plan", PLAN, "I cannot answer that,"),
    ("I don't have that yet \u2014 SKILL_SELECT:plan", PLAN, "I don't have that yet \u2014"),
    ("I do not have that - SKILL_SELECT:plan", PLAN, "I do not have that -"),
    ("I do not know this (SKILL_SELECT:plan)", PLAN, "I do not know this"),
    ("I could not find it, loading SKILL_SELECT:plan", PLAN, "I could not find it, loading"),
    ("I cannot answer without SKILL_SELECT:plan", PLAN, "I cannot answer without"),
    ("SKILL_SELECT:plan\n\nNot all are listed", PLAN, "Not all are listed"),
    ("SKILL_SELECT:plan is not loaded yet", PLAN, "is not loaded yet"),
    *[(prose, NONE, prose) for prose in (
        "Set `skill_select: true` in it", "LOAD_SKILL = enum.auto()", "PRELOAD_SKILL=fast", "upload skill: plan",
        "A_LOAD_SKILL: plan", "LOAD_SKILL: str = 'x'", "LOAD_SKILL(name)", "SKILL_SELECT=on", "skill_select:gone",
        "the setting `skill_select:`", "UPLOAD_SKILL:",
    )],
    ("SKILL_SELECT:", NONE, ""), ("go SKILL_SELECT: ", NONE, "go"), ("SKILL_SEL", NONE, "SKILL_SEL"),
    ("go LOAD_SKILL: pl", NONE, "go"), ("go LOAD_SKILL: pa", NONE, "go LOAD_SKILL: pa"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "selected", "shown"), TABLE)
def test_a_marker_selects_unless_it_is_negated_and_is_never_shown(
    text: str, selected: tuple[str, ...], shown: str
) -> None:
    assert (selected_skills(text, KNOWN), without_markers(text, KNOWN)) == (selected, shown)
    for cut in range(len(text) + 1):
        assert pieces(text[:cut], text[cut:]) == shown
    assert pieces(*text) == shown


def pieces(*texts: str) -> str:
    markers = MarkerFilter(KNOWN)
    return "".join([markers.feed(text) for text in texts]) + markers.rest()


parts = st.sampled_from([
    "SKILL_SELECT", "LOAD_SKILL", "load skill", "SKILL_", "SELECT", "LO", "S", ":", " : ", "=", "plan", "gone",
    "more_1",    " ", "\n", "```", "```\n", "[", "]", "(", ")", "`", "**", '"', "not", "word.", ".", ",",
])  # fmt: skip


@given(st.lists(parts, max_size=14).map("".join), st.lists(st.integers(0, 150), max_size=6))
def test_a_text_is_the_same_however_it_is_cut_and_has_no_marker(text: str, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = pieces(*(text[start:end] for start, end in pairwise(bounds)))
    assert shown == without_markers(text, KNOWN) == pieces(*text)
    assert not selected_skills(shown, KNOWN)
    assert without_markers(f"{shown}\n.", KNOWN).split() == f"{shown}\n.".split()


def test_a_long_answer_ends_quickly_and_selects_a_bounded_number() -> None:
    assert len(selected_skills(" ".join(f"SKILL_SELECT:s{number}" for number in range(99)), KNOWN)) == 20
    assert pieces(*["load skill "] * 5_000).count("load skill") == 5_000
    assert len(pieces(" [" * 50_000 + "`" * 50_000)) == 150_000
