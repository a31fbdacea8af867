"""The decisions taken on one request so far: a person counts once, and so does a seat. What was cast by a credential of
another person's making may be that person's."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vote:
    """A decision that stands; those that an edit has made void are none."""

    user_id: str
    seat_id: str
    counts: bool
    """Whether the seat's owner, and whoever sat in it, still have the role that the vote was given by."""
    is_named: bool = True
    """Whether the seat is one of the named reviewers'; where nobody is named, every one is as good."""
    created_by: tuple[str, ...] = ()
    """The creators of the credential that it was cast by."""

    @property
    def people(self) -> frozenset[str]:
        """Everybody who may have cast it."""
        return frozenset((self.user_id, *self.created_by))


def has_voted(people: Collection[str], votes: Sequence[Vote]) -> bool:
    """Whether one of these people may have decided already, in whichever seat."""
    return any(not vote.people.isdisjoint(people) for vote in votes)


def is_taken(seat_id: str, votes: Sequence[Vote]) -> bool:
    """Whether somebody has decided in this seat already."""
    return any(vote.seat_id == seat_id for vote in votes)
