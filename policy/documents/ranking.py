"""How near a document comes to a question: one number from 0 to 1 (S2-08 to S2-12).

0.45 text + 0.20 trust + 0.15 entity + 0.10 type + 0.10 recency, each part from 0 to 1.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from contracts.documents import DocumentRef, Trust
from policy.documents.kinds import TYPE_BOOSTS

TEXT, TRUST, ENTITY, TYPE, RECENCY = 0.45, 0.20, 0.15, 0.10, 0.10
TRUST_LEVELS: Mapping[Trust, float] = MappingProxyType(
    {Trust.ADMIN_APPROVED: 1.00, Trust.SYSTEM_SEEDED: 0.95, Trust.USER_AUTHORED: 0.85, Trust.AGENT_DRAFT: 0.45}
)
HALF_LIFE_DAYS = 30.0
UNDATED = 0.3
"""The recency of a document without a date."""
OVER_FETCH = 3
"""So many times what is wanted is read by text and entities, and ranked by all five parts."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What is known of a document beside a question."""

    text: float
    """How well its words fit, 0 to 1."""
    trust: Trust
    document_type: str
    matched_entities: int
    asked_entities: int
    """Entities of the question."""
    age_days: float | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document that a search found."""

    ref: DocumentRef
    title: str
    signals: Signals

    @property
    def score(self) -> float:
        """How near it comes."""
        return score(self.signals)


def score(signals: Signals) -> float:
    """The weighted sum."""
    return (
        TEXT * _share(signals.text)
        + TRUST * TRUST_LEVELS[signals.trust]
        + ENTITY * entity_share(signals.matched_entities, signals.asked_entities)
        + TYPE * TYPE_BOOSTS.get(signals.document_type, 0.0)
        + RECENCY * recency(signals.age_days)
    )


def entity_share(matched: int, asked: int) -> float:
    """How many of the question's entities a document has; 0 where the question names none."""
    return _share(matched / asked) if asked > 0 else 0.0


def recency(age_days: float | None) -> float:
    """1 for now, half of it for each 30 days; what is dated ahead of the clock is as of now."""
    if age_days is None or math.isnan(age_days):
        return UNDATED
    return float(0.5 ** (max(age_days, 0.0) / HALF_LIFE_DAYS))


def best(candidates: Iterable[Candidate], most: int) -> tuple[Candidate, ...]:
    """The nearest `most`, best first; equals in the order of their ids, so that a search repeats itself."""
    return tuple(sorted(candidates, key=lambda each: (-each.score, each.ref.document_id))[:most])


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0) if not math.isnan(value) else 0.0
