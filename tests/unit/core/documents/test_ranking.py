"""The ranking: the requirement's formula, its bounds, and what each part does to an order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.memory import DocumentRef, Trust
from perdure.core.memory.documents import DOCUMENT_TYPES, TYPE_BOOSTS, type_fault
from perdure.core.memory.search import TRUST_LEVELS, Candidate, Signals, best, entity_share, recency, score

SHARES = st.floats(0, 1)
SIGNALS = st.builds(
    Signals,
    text=SHARES,
    trust=st.sampled_from(Trust),
    document_type=st.sampled_from(DOCUMENT_TYPES),
    matched_entities=st.integers(0, 5),
    asked_entities=st.integers(0, 5),
    age_days=st.none() | st.floats(0, 3650),
)


def candidate(name: str, signals: Signals) -> Candidate:
    ref = DocumentRef(document_id=name, version_id="v", store="s", path="p", trust=signals.trust)
    return Candidate(ref, name, signals)


def test_trust_levels_and_type_boosts_are_the_requirements() -> None:
    assert {trust.value: level for trust, level in TRUST_LEVELS.items()} == {
        "admin_approved": 1.0,
        "system_seeded": 0.95,
        "user_authored": 0.85,
        "agent_draft": 0.45,
    }
    assert dict(TYPE_BOOSTS) == {
        "runbook": 0.9,
        "verification_checklist": 0.85,
        "incident_lesson": 0.8,
        "workspace_convention": 0.75,
        "service_context": 0.7,
        "tool_usage_lesson": 0.65,
        "user_preference": 0.5,
        "dream_summary": 0.4,
        "conversation_note": 0.3,
    }
    assert type_fault("runbook") is None
    assert "runbook" in (type_fault("poem") or "")


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (Signals(1, Trust.ADMIN_APPROVED, "runbook", 2, 2, 0), 0.45 + 0.20 + 0.15 + 0.09 + 0.10),
        (Signals(0, Trust.AGENT_DRAFT, "conversation_note", 0, 0, None), 0.09 + 0.03 + 0.03),
        (Signals(0.5, Trust.USER_AUTHORED, "user_preference", 1, 4, 30), 0.225 + 0.17 + 0.0375 + 0.05 + 0.05),
        (Signals(0.2, Trust.SYSTEM_SEEDED, "dream_summary", 3, 3, 90), 0.09 + 0.19 + 0.15 + 0.04 + 0.0125),
    ],
)
def test_a_score_is_the_weighted_sum(signals: Signals, expected: float) -> None:
    assert score(signals) == pytest.approx(expected)


def test_recency_halves_every_thirty_days_and_is_three_tenths_without_a_date() -> None:
    assert [recency(days) for days in (0, 30, 60, 300)] == pytest.approx([1, 0.5, 0.25, 0.5**10])
    assert recency(None) == recency(math.nan) == 0.3
    assert recency(-5) == 1


def test_entities_count_by_their_share_and_not_at_all_where_none_is_asked_for() -> None:
    assert [entity_share(0, 0), entity_share(3, 0), entity_share(1, 4), entity_share(9, 4)] == [0, 0, 0.25, 1]


@given(SIGNALS)
def test_every_score_is_between_nothing_and_one(signals: Signals) -> None:
    assert 0.0 <= score(signals) <= 1.0


@given(SIGNALS, SHARES, st.floats(0, 3650))
def test_more_text_and_less_age_never_lower_a_score(signals: Signals, text: float, age: float) -> None:
    by_text = [score(_with(signals, text=each)) for each in sorted([text, signals.text])]
    assert by_text == sorted(by_text)
    by_age = [score(_with(signals, age_days=each)) for each in sorted([age, signals.age_days or 0.0], reverse=True)]
    assert by_age == sorted(by_age)


@given(st.lists(SIGNALS, max_size=12), st.integers(0, 12), st.randoms())
def test_the_best_are_in_falling_order_whatever_order_they_come_in(several: list[Signals], most: int, chance) -> None:  # type: ignore[no-untyped-def]
    found = [candidate(f"{number:02}", signals) for number, signals in enumerate(several)]
    kept = best(found, most)
    assert [each.score for each in kept] == sorted((each.score for each in found), reverse=True)[:most]
    chance.shuffle(found)
    assert best(found, most) == kept


def _with(signals: Signals, *, text: float | None = None, age_days: float | None = None) -> Signals:
    return Signals(
        signals.text if text is None else text,
        signals.trust,
        signals.document_type,
        signals.matched_entities,
        signals.asked_entities,
        signals.age_days if age_days is None else age_days,
    )
