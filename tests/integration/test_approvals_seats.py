"""A seat is used once and by nobody but those it was lent to: handing on makes no second one of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.contracts.approvals import RequestRef
from perdure.contracts.errors import CallerError
from perdure.core.approvals.decisions import Decision
from perdure.core.identity import OWN, Credential, How
from perdure.store.approvals import assignments, views
from perdure.store.approvals.decisions import Raise, raise_limits
from perdure.store.approvals.review import fall_back
from perdure.store.database import Database
from tests.desk import Desk
from tests.integration.council import Council, convened

TOMORROW = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture(scope="module")
async def council(desk: Desk) -> Council:
    return await convened(desk)


async def hands_on(council: Council, request: RequestRef, by: str, to: str) -> str:
    """`done`, or the refusal's code."""
    try:
        async with council.desk.db.transaction("local") as tx:
            await assignments.reassign(tx, request.request_id, council.who(by), to, "yours")
    except CallerError as refused:
        return refused.code
    return "done"


async def decides(council: Council, request: RequestRef, by: str, decision: Decision = Decision.APPROVE) -> str:
    try:
        return (await council.desk.decide(request.request_id, decision, by=by, comment="so"))[0].status
    except CallerError as refused:
        return refused.code


class StandsIn:
    """While it lasts `to` sits in the owners' seats, too."""

    def __init__(self, council: Council, to: str, *owners: str) -> None:
        self._council = council
        self._to = to
        self._owners = owners
        self._made: list[tuple[str, str]] = []

    async def __aenter__(self) -> None:
        for owner in self._owners:
            user_id = self._council.desk.people[owner].user_id
            async with self._council.desk.db.transaction("local") as tx:
                made = await assignments.add_delegation(tx, user_id, owner, self._to, TOMORROW, OWN)
            self._made.append((user_id, str(made["id"])))

    async def __aexit__(self, *_: object) -> None:
        for user_id, made in self._made:
            async with self._council.desk.db.transaction("local") as tx:
                await assignments.remove_delegation(tx, user_id, made)


async def shown_votes(council: Council, request: RequestRef) -> list[tuple[Any, Any]]:
    async with council.desk.db.transaction("local") as tx:
        votes: Any = (await views.get_approval(tx, request.request_id, None))["votes"]
    return [(vote["by"], vote["counts"]) for vote in votes]


async def test_an_assigned_person_votes_or_hands_it_on_and_not_both(council: Council) -> None:
    _, request = await council.asked("named")
    assert await hands_on(council, request, "admin", "carl") == "done"
    assert await decides(council, request, "carl") == "pending"
    assert await hands_on(council, request, "carl", "reviewer") == "already_voted"
    assert await decides(council, request, "reviewer") == "not_a_reviewer"
    assert await decides(council, request, "ann") == "approved", "one of the two who are named, and the assigned one"


async def test_a_fallback_reviewer_votes_or_hands_it_on_and_not_both(council: Council, relay: Database) -> None:
    policy = {"reviewers": ["ann", "bob"], "quorum": 2, "fallback_reviewer": "carl", "fallback_after_seconds": 60}
    await council.republish({"plain": policy})
    try:
        _, request = await council.asked("plain")
        await council.set(request, "fallback_at = clock_timestamp()")
        async with relay.transaction("local") as tx:
            await fall_back(tx)
        assert await decides(council, request, "carl") == "pending"
        assert await hands_on(council, request, "carl", "reviewer") == "already_voted"
    finally:
        await council.republish({})


async def test_however_often_it_is_assigned_one_who_is_not_named_counts(council: Council) -> None:
    _, request = await council.asked("named")
    for name in ("carl", "reviewer"):
        assert await hands_on(council, request, "admin", name) == "done"
        assert await decides(council, request, name) == "pending"
    assert await shown_votes(council, request) == [("carl", True), ("reviewer", False)]
    assert await decides(council, request, "bob") == "approved"


async def test_a_stand_in_gives_no_place_away(council: Council) -> None:
    async with StandsIn(council, "carl", "bob"):
        _, request = await council.asked("named")
        assert await hands_on(council, request, "carl", "reviewer") == "only_stands_in"
        with pytest.raises(CallerError) as refused:
            async with council.desk.db.transaction("local") as tx:
                await assignments.escalate(tx, request.request_id, council.who("carl"), "above him")
        assert (refused.value.code, refused.value.http) == ("only_stands_in", 403)
        assert refused.value.details == {"in_place_of": ["bob"]}
    assert await decides(council, request, "bob") == "pending"
    assert await decides(council, request, "ann") == "approved"


async def test_whoever_hands_on_the_own_place_leaves_those_that_are_lent_where_they_are(council: Council) -> None:
    async with StandsIn(council, "bob", "ann"):
        _, request = await council.asked("named")
        assert await hands_on(council, request, "bob", "carl") == "done"
    assert (await council.row(request))["reviewers"] == ["ann", "carl"]
    assert await council.audited(request) == ["opened", "reassigned"]


async def test_one_person_with_both_seats_is_still_one_of_two(council: Council) -> None:
    async with StandsIn(council, "carl", "ann", "bob"):
        _, request = await council.asked("named")
        assert await hands_on(council, request, "carl", "reviewer") == "only_stands_in"
        assert await decides(council, request, "carl") == "pending"
        assert await decides(council, request, "carl") == "already_voted"
        assert await decides(council, request, "reviewer") == "not_a_reviewer"
    assert (await council.row(request))["status"] == "pending"


async def test_a_raised_limit_says_in_whose_place_it_was_raised(council: Council) -> None:
    address, request = await council.asked("named")
    await council.set(request, "kind = 'limit', quorum = 1")
    async with StandsIn(council, "carl", "ann"), council.desk.db.transaction("local") as tx:
        await raise_limits(tx, address.turn_id, council.who("carl"), "carl", Raise(max_tokens=2**50))
    vote = (await council.desk.rows("SELECT record FROM approval_votes WHERE approval_id = $1", request.request_id))[0]
    assert (vote["record"]["by"], vote["record"]["for"]) == ("carl", "ann")
    assert vote["record"]["limits"]["max_tokens"] == 2**50


async def test_a_seat_that_the_requester_lent_in_another_name_is_no_seat(council: Council) -> None:
    _, request = await council.asked("named")
    ann, requester = council.desk.people["ann"].user_id, council.desk.people["requester"].user_id
    lent = Credential(How.TOKEN, (council.desk.people["admin"].user_id, requester))
    async with council.desk.db.transaction("local") as tx:
        made = await assignments.add_delegation(tx, ann, "ann", "carl", TOMORROW, lent)
    assert await decides(council, request, "carl") == "own_request"
    async with council.desk.db.transaction("local") as tx:
        await assignments.add_delegation(tx, ann, "ann", "carl", TOMORROW, OWN)
    assert await decides(council, request, "carl") == "pending", "she lent it herself, too"
    async with council.desk.db.transaction("local") as tx:
        await assignments.remove_delegation(tx, ann, str(made["id"]))


async def test_a_limit_is_not_raised_by_a_credential_of_the_requesters_making(council: Council) -> None:
    address, request = await council.asked("plain")
    await council.set(request, "kind = 'limit', quorum = 1")
    minted = Credential(How.TOKEN, (council.desk.people["requester"].user_id,))
    with pytest.raises(CallerError, match="own_request"):
        async with council.desk.db.transaction("local") as tx:
            who = replace(council.who("carl"), credential=minted)
            await raise_limits(tx, address.turn_id, who, "carl", Raise(max_tokens=2**50))


@pytest.mark.parametrize("said", ["\u200b\u2060", " \u00a0\u3000", "\u3164", "\u2800\u00ad"])
async def test_a_reason_that_nobody_can_see_is_none(council: Council, said: str) -> None:
    _, request = await council.asked("plain")
    for decision, code in ((Decision.REJECT, "reason_required"), (Decision.RESPOND, "comment_required")):
        with pytest.raises(CallerError) as refused:
            await council.desk.decide(request.request_id, decision, by="ann", comment=said)
        assert refused.value.code == code
