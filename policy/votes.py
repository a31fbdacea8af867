"""The decisions taken on one request so far: a person counts once, and so does a seat."""

from collections.abc import Sequence
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


def has_voted(user_id: str, votes: Sequence[Vote]) -> bool:
    """Whether this person has decided already, in whichever seat."""
    return any(vote.user_id == user_id for vote in votes)


def is_taken(seat_id: str, votes: Sequence[Vote]) -> bool:
    """Whether somebody has decided in this seat already."""
    return any(vote.seat_id == seat_id for vote in votes)
