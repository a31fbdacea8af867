"""Which bodies an erasure may have taken: its own signed rows said so before they went.

Nothing that can be changed unseen is asked: neither whose a turn is now, nor which row a missing body names.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from policy.audit_chain import Entry

BEGUN = "user.erasure_begun"
"""Rows that name what goes with a person, their subject: the turns, and rows of others that name the person."""
DONE = "user.erased"
KEPT_KINDS = (BEGUN, DONE)
"""Rows about erasures: they hold ids and counts alone, account for what is gone, and never go themselves."""


@dataclass(frozen=True, slots=True)
class Erasures:
    """What a tenant's erasures have taken. Holds an id for each turn that went, so that no row is looked up twice."""

    _persons: dict[int, str] = field(default_factory=dict)
    _turns: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _rows: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def add(self, audit_id: int, person: str, turns: Collection[str], rows: Collection[int]) -> None:
        """Take up a row of BEGUN whose signature and body are as they were written."""
        self._persons[audit_id] = person
        self._turns[person].update(turns)
        self._rows[person].update(rows)

    @property
    def known(self) -> frozenset[int]:
        """The rows that were taken up."""
        return frozenset(self._persons)

    def account_for(self, audit_id: int, entry: Entry, erased_by: int | None) -> bool:
        """Whether the body of this row went with the person whose erasure it names."""
        person = self._persons.get(erased_by) if erased_by is not None else None
        if person is None or entry.kind in KEPT_KINDS:
            return False
        return (
            person in (entry.actor, entry.subject)
            or entry.turn_id in self._turns.get(person, ())
            or audit_id in self._rows.get(person, ())
        )
