"""How many streams are open, and of whom."""

from contextlib import ExitStack

import pytest

from perdure.api.rate_limits import OpenStreams
from perdure.contracts.errors import LimitReached


def test_a_person_is_told_which_limit_was_met_and_what_to_do() -> None:
    streams = OpenStreams(per_person=2, per_tenant=9)
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(streams.one_more("t", "ann"))
        with pytest.raises(LimitReached) as no:
            held.enter_context(streams.one_more("t", "ann"))
        assert no.value.details["limit"] == 2 and no.value.http_status == 429
        held.enter_context(streams.one_more("t", "bob"))
        held.enter_context(streams.one_more("other", "ann"))


def test_a_tenants_people_are_counted_together_as_well() -> None:
    streams = OpenStreams(per_person=2, per_tenant=3)
    with ExitStack() as held:
        for user in ("ann", "ann", "bob"):
            held.enter_context(streams.one_more("t", user))
        with pytest.raises(LimitReached) as no:
            held.enter_context(streams.one_more("t", "eve"))
        assert no.value.details["limit"] == 3
        held.enter_context(streams.one_more("other", "eve"))


def test_who_leaves_makes_room_and_nothing_is_kept_of_them() -> None:
    streams = OpenStreams(per_person=1, per_tenant=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), streams.one_more("t", "ann"):
            raise ZeroDivisionError
    assert not streams._of
