"""Several must approve the very same call: votes, seats, edits in between, roles that are lost, races of them all."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.activities.tools import ToolActivities
from perdure.contracts.approvals import RequestRef, VerdictState
from perdure.contracts.calls import CallState
from perdure.contracts.errors import CallerError
from perdure.core.identity import OWN, UNKNOWN, Credential, How
from perdure.store.approvals import assignments, views
from perdure.store.approvals.decisions import DecisionAsk, Raise, decide, raise_limits
from tests.desk import Desk, gathered
from tests.integration.council import Council, convened
from tests.scale import sized

V = VerdictState
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


async def decides(council: Council, request: RequestRef, by: str, decision: str = "approve", **given: Any) -> str:
    """The status after that person's decision on what the record shows now, or the refusal's code."""
    who = replace(council.who(by), credential=given.pop("credential", OWN))
    most = given.pop("per_minute", None)
    async with council.desk.db.transaction("local") as tx:
        shown = await views.get_approval(tx, request.request_id, None)
    try:
        async with council.desk.db.transaction("local") as tx:
            ask = DecisionAsk.model_validate({"decision": decision, "digest": shown["digest"], **given})
            decided, note = await decide(tx, request.request_id, who, who.name, ask, most)
    except CallerError as refused:
        return refused.code
    assert (note is None) is (decided.status == "pending")
    return decided.status


@asynccontextmanager
async def stands_in(council: Council, to: str, *owners: str) -> AsyncIterator[None]:
    """While it lasts `to` sits in the owners' seats, too."""
    made = []
    for owner in owners:
        user_id = council.desk.people[owner].user_id
        async with council.desk.db.transaction("local") as tx:
            lent = await assignments.add_delegation(tx, user_id, owner, to, TOMORROW, OWN)
        made.append((user_id, str(lent["id"])))
    try:
        yield
    finally:
        for user_id, delegation_id in made:
            async with council.desk.db.transaction("local") as tx:
                await assignments.remove_delegation(tx, user_id, delegation_id)


async def test_an_assigned_person_votes_or_hands_it_on_and_not_both(council: Council) -> None:
    _, request = await council.asked("named")
    assert await hands_on(council, request, "admin", "carl") == "done"
    assert await decides(council, request, "carl") == "pending"
    assert await hands_on(council, request, "carl", "reviewer") == "already_voted"
    assert await decides(council, request, "reviewer") == "not_a_reviewer"
    assert await decides(council, request, "ann") == "approved", "one of the two who are named, and the assigned one"


async def test_a_stand_in_gives_no_place_away(council: Council) -> None:
    async with stands_in(council, "carl", "bob"):
        _, request = await council.asked("named")
        assert await hands_on(council, request, "carl", "reviewer") == "only_stands_in"
        with pytest.raises(CallerError) as refused:
            async with council.desk.db.transaction("local") as tx:
                await assignments.escalate(tx, request.request_id, council.who("carl"), "above him")
        assert (refused.value.code, refused.value.http) == ("only_stands_in", 403)
        assert refused.value.details == {"in_place_of": ["bob"]}
    assert await decides(council, request, "bob") == "pending"
    assert await decides(council, request, "ann") == "approved"


async def test_a_raised_limit_says_in_whose_place_it_was_raised(council: Council) -> None:
    address, request = await council.asked("named")
    await council.set(request, "kind = 'limit', quorum = 1")
    async with stands_in(council, "carl", "ann"), council.desk.db.transaction("local") as tx:
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
    async with stands_in(council, "carl", "ann"):
        assert await decides(council, request, "carl") == "pending", "she lent it herself, too"
    async with council.desk.db.transaction("local") as tx:
        await assignments.remove_delegation(tx, ann, str(made["id"]))


async def test_a_limit_is_not_raised_by_a_credential_of_the_requesters_making(council: Council) -> None:
    address, request = await council.asked("plain")
    await council.set(request, "kind = 'limit', quorum = 1")
    minted = Credential(How.TOKEN, (council.desk.people["requester"].user_id,))
    with pytest.raises(CallerError) as refused:
        async with council.desk.db.transaction("local") as tx:
            who = replace(council.who("carl"), credential=minted)
            await raise_limits(tx, address.turn_id, who, "carl", Raise(max_tokens=2**50))
    assert refused.value.code == "own_request"


async def run(council: Council, address: Any, agent_id: str) -> Any:
    """The call, run as the agent's."""
    call = await council.desk.tool_call(address, "t1.0", agent_id=agent_id)
    return await council.desk.activity(ToolActivities(council.desk.deps).run, call)


async def test_two_credentials_that_one_person_created_are_one_vote(council: Council) -> None:
    _, request = await council.asked("pair")
    admin = council.desk.people["admin"].user_id
    minted, through = Credential(How.TOKEN, (admin,)), Credential(How.TOKEN, (council.who("dora").user_id, admin))
    assert await decides(council, request, "ann", credential=minted) == "pending"
    assert await decides(council, request, "bob", credential=minted) == "already_voted"
    assert await decides(council, request, "bob", credential=through) == "already_voted"
    assert await decides(council, request, "admin") == "already_voted", "the creator's own"
    assert await decides(council, request, "bob", credential=Credential(How.TOKEN, (UNKNOWN,))) == "already_voted"
    async with council.desk.db.transaction("local") as tx:
        bob = replace(council.who("bob"), credential=minted)
        shown: Any = await views.get_approval(tx, request.request_id, None, bob)
    assert shown["allowed_decisions"] == []
    (vote,) = shown["votes"]
    assert vote["signed_in"] == {"how": "token", "created_by": "admin"}
    assert await decides(council, request, "bob") == "approved", "a person of its own"


async def test_the_creator_of_a_credential_that_has_voted_votes_no_second_time(council: Council) -> None:
    _, request = await council.asked("pair")
    admin = council.desk.people["admin"].user_id
    assert await decides(council, request, "admin") == "pending"
    assert await decides(council, request, "ann", credential=Credential(How.TOKEN, (admin,))) == "already_voted"
    assert await decides(council, request, "carl") == "approved"


async def test_the_first_of_two_leaves_it_pending_and_the_second_lets_it_run(council: Council) -> None:
    address, request = await council.asked("pair")
    await council.desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    assert await decides(council, request, "ann", comment="fine") == "pending"
    assert (await council.verdict(address, request)).state is V.PENDING
    assert (await council.row(request))["decision"] is None
    assert await council.desk.value("SELECT count(*) FROM outbox WHERE turn_id = $1", address.turn_id) == 0
    assert await decides(council, request, "ann") == "already_voted"
    assert await decides(council, request, "bob") == "approved"
    assert await decides(council, request, "carl") == "already_decided"
    assert (await run(council, address, "pair")).state is CallState.DONE
    assert (await council.audited(request))[:3] == ["opened", "voted", "decided"]
    async with council.desk.db.transaction("local") as tx:
        shown = await views.get_approval(tx, request.request_id, None)
    votes = shown["votes"]
    assert isinstance(votes, list)
    assert [(vote["by"], vote["for"], vote["comment"]) for vote in votes] == [("ann", None, "fine"), ("bob", None, "")]


async def test_a_call_that_only_one_of_two_has_approved_does_not_run(council: Council) -> None:
    address, request = await council.asked("pair")
    assert await decides(council, request, "ann") == "pending"
    assert (await run(council, address, "pair")).state is CallState.DENIED


@pytest.mark.parametrize(("decision", "status"), [("reject", "rejected"), ("respond", "responded")])
async def test_one_who_does_not_agree_decides_at_once(council: Council, decision: str, status: str) -> None:
    address, request = await council.asked("pair")
    assert await decides(council, request, "ann") == "pending"
    assert await decides(council, request, "bob", decision, comment="no") == status
    assert (await council.verdict(address, request)).state is V(status)


async def test_an_edit_voids_what_was_approved_before_and_is_approved_anew(council: Council) -> None:
    address, request = await council.asked("pair", amount=100)
    before = (await council.row(request))["digest"]
    assert await decides(council, request, "ann") == "pending"
    assert await decides(council, request, "bob", "edit", args={"amount": 5}) == "pending"
    async with council.desk.db.transaction("local") as tx:
        shown = await views.get_approval(tx, request.request_id, None)
    assert (shown["args"], shown["digest"] != before) == ({"amount": 5}, True)
    assert isinstance(shown["votes"], list) and [vote["by"] for vote in shown["votes"]] == ["bob"]
    assert await decides(council, request, "carl", digest=before) == "digest_differs"
    assert await decides(council, request, "bob") == "already_voted"
    assert await decides(council, request, "ann") == "edited", "her first vote was for another call"
    row = await council.row(request)
    assert (row["args"], row["decision"]["args"], row["decision"]["args_before"]) == (
        {"amount": 100},
        {"amount": 5},
        {"amount": 100},
    )
    assert (row["decision"]["edited_by"], row["decision"]["by"]) == ("bob", "ann")
    outcome = await run(council, address, "pair")
    assert outcome.state is CallState.DONE and outcome.message is not None
    assert '"amount":5' in outcome.message.text.replace(" ", "")


async def test_an_edit_back_to_what_it_was_does_not_bring_void_votes_back(council: Council) -> None:
    _, request = await council.asked("pair", amount=100)
    assert await decides(council, request, "ann") == "pending"
    assert await decides(council, request, "bob", "edit", args={"amount": 5}) == "pending"
    assert await decides(council, request, "carl", "edit", args={"amount": 100}) == "pending"
    assert await decides(council, request, "ann") == "edited"


@pytest.mark.sized
async def test_of_many_who_approve_at_once_exactly_as_many_count_as_are_needed(council: Council) -> None:
    asked = [(await council.asked("pair"))[1] for _ in range(sized(12, 3))]
    people = ["ann", "bob", "carl", "reviewer"]
    work = [(request, name) for request in asked for name in people for _ in range(2)]
    answers = await gathered(*(decides(council, request, name) for request, name in work))
    for request in asked:
        mine = Counter(str(answer) for (each, _), answer in zip(work, answers, strict=True) if each is request)
        assert (mine["pending"], mine["approved"]) == (1, 1), mine
        assert set(mine) <= {"pending", "approved", "already_voted", "already_decided"}
        voters = await council.desk.rows(
            "SELECT user_id, seat_id FROM approval_votes WHERE approval_id = $1 AND voided_at IS NULL",
            request.request_id,
        )
        assert len({row["user_id"] for row in voters}) == len({row["seat_id"] for row in voters}) == 2
        assert (await council.audited(request))[-1] == "decided"


async def test_a_stand_in_is_the_second_seat_and_its_owner_is_not_asked_again(council: Council) -> None:
    _, request = await council.asked("named")
    async with stands_in(council, "carl", "ann"):
        assert await decides(council, request, "carl") == "pending"
        assert await decides(council, request, "ann") == "already_voted"
        assert await decides(council, request, "bob") == "approved"
    vote = (await council.desk.rows("SELECT record FROM approval_votes WHERE approval_id = $1", request.request_id))[0]
    assert (vote["record"]["by"], vote["record"]["for"]) == ("carl", "ann")
    _, other = await council.asked("named")
    assert await decides(council, other, "carl") == "not_a_reviewer"
    _, pair = await council.asked("pair")
    async with stands_in(council, "bob", "carl"):
        assert [await decides(council, pair, "bob") for _ in range(2)] == ["pending", "already_voted"]
        assert await decides(council, pair, "carl") == "approved", "bob sat in his own seat, carl's is free"


async def test_a_delegation_hands_the_role_to_nobody(council: Council) -> None:
    for by, to, refusal in (("ann", "dora", "cannot_decide"), ("dora", "ann", "nothing_to_delegate")):
        with pytest.raises(CallerError) as refused:
            async with council.desk.db.transaction("local") as tx:
                await assignments.add_delegation(tx, council.desk.people[by].user_id, by, to, TOMORROW, OWN)
        assert (refused.value.code, refused.value.http) == (refusal, 422)
    _, request = await council.asked("named")
    async with stands_in(council, "carl", "ann"):
        await council.roles("carl", "requester")
        assert await decides(council, request, "carl") == "role_required", "whatever it was when the place was lent"
        await council.roles("carl", "reviewer")
        assert await decides(council, request, "carl") == "pending"
        await council.roles("carl", "requester")
        assert await decides(council, request, "bob") == "pending", (
            "who sat for ann has lost the role: it counts no more"
        )
        await council.roles("carl", "reviewer")


async def test_nobody_decides_on_the_request_of_the_person_in_whose_seat_they_sit(council: Council) -> None:
    _, request = await council.asked("pair", by="ann")
    async with stands_in(council, "carl", "ann"):
        assert await decides(council, request, "ann") == "own_request"
        assert await decides(council, request, "carl") == "pending", "in the own seat, not in hers"
    async with stands_in(council, "ann", "bob"):
        assert await decides(council, request, "ann") == "own_request", "in no seat"


async def test_a_reviewer_who_has_lost_the_role_decides_nothing_and_counts_no_more(council: Council) -> None:
    _, request = await council.asked("pair")
    assert await decides(council, request, "ann") == "pending"
    await council.roles("ann", "requester")
    await council.roles("carl")
    try:
        assert await decides(council, request, "carl") == "role_required", "though the token said otherwise"
        assert await decides(council, request, "bob") == "pending", "ann's vote counts no more"
        await council.roles("ann", "reviewer")
        assert await decides(council, request, "reviewer") == "approved"
    finally:
        await council.roles("ann", "reviewer")
        await council.roles("carl", "reviewer")


async def test_a_limit_of_decisions_a_minute_holds_for_each_person_also_at_once(council: Council) -> None:
    asked = [(await council.asked("plain"))[1] for _ in range(8)]
    await council.desk.write("UPDATE approval_votes SET at = at - interval '2 minutes'")
    answers = await gathered(*(decides(council, request, "ann", per_minute=5) for request in asked))
    assert Counter(map(str, answers)) == {"approved": 5, "too_many_decisions": 3}
    left = next(request for request, answer in zip(asked, answers, strict=True) if answer != "approved")
    assert await decides(council, left, "ann", "reject", per_minute=5) == "reason_required", "the form comes first"
    assert await decides(council, left, "bob", per_minute=5) == "approved", "others have a limit of their own"
