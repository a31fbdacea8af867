"""Nothing is left with somebody who is not there: claims lapse, requests are handed on, go to others, go up."""

from datetime import datetime
from typing import Any

import pytest

from perdure.contracts.approvals import RequestRef, VerdictState
from perdure.contracts.errors import CallerError
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.decisions import Decision
from perdure.store.approvals import assignments
from perdure.store.approvals.review import escalate_all_overdue, fall_back
from perdure.store.database import Database
from perdure.store.turns import views
from perdure.worker.reconcile import Reconciler
from tests.desk import Desk, gathered
from tests.integration.council import Council, convened

V = VerdictState


@pytest.fixture(scope="module")
async def council(desk: Desk) -> Council:
    return await convened(desk)


async def does(council: Council, verb: Any, request: RequestRef, by: str, *given: object) -> str:
    """What came of it: `done`, or the refusal's code."""
    try:
        async with council.desk.db.transaction("local") as tx:
            await verb(tx, request.request_id, council.who(by), *given)
    except CallerError as refused:
        return refused.code
    return "done"


async def decides(council: Council, request: RequestRef, by: str, decision: Decision = Decision.APPROVE) -> str:
    try:
        return (await council.desk.decide(request.request_id, decision, by=by, comment="so"))[0].status
    except CallerError as refused:
        return refused.code


async def test_while_a_claim_lasts_only_its_holder_decides_or_hands_on(council: Council) -> None:
    _, request = await council.asked("plain")
    assert await does(council, assignments.claim, request, "ann", 900) == "done"
    assert await decides(council, request, "bob") == "claimed"
    assert await does(council, assignments.claim, request, "bob", 900) == "claimed"
    assert await does(council, assignments.reassign, request, "bob", "carl", "") == "claimed"
    assert await does(council, assignments.escalate, request, "bob", "") == "claimed"
    first = (await council.row(request))["claimed_until"]
    assert await does(council, assignments.claim, request, "ann", 1800) == "done", "renewed"
    assert (await council.row(request))["claimed_until"] > first
    assert await decides(council, request, "ann") == "approved"
    assert (await council.row(request))["claimed_by"] is None
    assert await council.audited(request) == ["opened", "claimed", "claimed", "decided"]


async def test_whoever_is_told_of_a_claim_is_told_whose_and_until_when(council: Council) -> None:
    _, request = await council.asked("plain")
    assert await does(council, assignments.claim, request, "ann", 60) == "done"
    with pytest.raises(CallerError) as refused:
        await council.desk.decide(request.request_id, by="bob")
    until = (await council.row(request))["claimed_until"]
    assert refused.value.http == 409
    assert refused.value.details == {"claimed_by": "ann", "claimed_until": until}


async def test_a_claim_lapses_by_itself(council: Council) -> None:
    _, request = await council.asked("plain")
    assert await does(council, assignments.claim, request, "ann", 60) == "done"
    await council.set(request, "claimed_until = clock_timestamp()")
    assert await does(council, assignments.release, request, "ann") == "not_claimed"
    assert await does(council, assignments.claim, request, "bob", 60) == "done"
    assert await decides(council, request, "ann") == "claimed"


async def test_a_claim_is_given_back_by_its_holder_or_broken_by_an_admin(council: Council) -> None:
    _, request = await council.asked("plain")
    for breaker in ("ann", "admin"):
        assert await does(council, assignments.claim, request, "ann", 900) == "done"
        assert await does(council, assignments.release, request, "bob") == "claimed"
        assert await does(council, assignments.release, request, "requester") == "role_required"
        assert await does(council, assignments.release, request, breaker) == "done"
    assert await does(council, assignments.release, request, "ann") == "not_claimed"
    assert await decides(council, request, "bob") == "approved"


async def test_who_may_not_decide_may_not_claim(council: Council) -> None:
    _, request = await council.asked("plain", by="ann")
    assert await does(council, assignments.claim, request, "dora", 60) == "approval_not_found", (
        "a requester sees own ones only"
    )
    assert await does(council, assignments.claim, request, "ann", 60) == "own_request"
    _, pair = await council.asked("pair")
    assert await decides(council, pair, "ann") == "pending"
    assert await does(council, assignments.claim, pair, "ann", 60) == "already_voted", "it would only keep others away"


async def test_of_many_who_claim_at_once_one_does(council: Council) -> None:
    _, request = await council.asked("plain")
    people = ["ann", "bob", "carl", "reviewer", "admin"]
    answers = await gathered(*(does(council, assignments.claim, request, name, 900) for name in people))
    assert sorted(map(str, answers)) == ["claimed"] * 4 + ["done"]


async def test_a_request_is_put_on_the_list_of_somebody_who_can_decide(council: Council) -> None:
    _, request = await council.asked("plain", by="bob")
    assert await does(council, assignments.reassign, request, "ann", "dora", "") == "cannot_decide"
    assert await does(council, assignments.reassign, request, "ann", "bob", "") == "cannot_decide", "the requester"
    assert await does(council, assignments.reassign, request, "ann", "nobody", "") == "cannot_decide"
    assert await does(council, assignments.reassign, request, "dora", "carl", "") == "approval_not_found"
    assert await does(council, assignments.reassign, request, "bob", "carl", "") == "own_request"
    assert await does(council, assignments.reassign, request, "admin", "carl", "you know her") == "done"
    assert str((await council.row(request))["assignee"]) == council.desk.people["carl"].user_id
    assert await decides(council, request, "ann") == "approved", "it is on carl's list, others may still decide"


async def test_a_named_reviewer_gives_the_place_away(council: Council) -> None:
    _, request = await council.asked("named")
    assert await does(council, assignments.reassign, request, "carl", "ann", "") == "not_a_reviewer"
    assert await does(council, assignments.reassign, request, "ann", "carl", "on holiday") == "done"
    assert (await council.row(request))["reviewers"] == ["carl", "bob"]
    assert await decides(council, request, "ann") == "not_a_reviewer"
    assert await decides(council, request, "carl") == "pending"
    assert await does(council, assignments.reassign, request, "carl", "reviewer", "") == "already_voted"
    assert await decides(council, request, "bob") == "approved"


async def test_an_escalation_gives_it_to_another_role_once(council: Council) -> None:
    _, request = await council.asked("named")
    before = (await council.row(request))["expires_at"]
    assert await does(council, assignments.escalate, request, "ann", "above me") == "done"
    row = await council.row(request)
    assert (row["reviewer_role"], row["reviewers"], row["assignee"], row["expires_at"]) == ("admin", [], None, before)
    assert await does(council, assignments.escalate, request, "admin", "") == "already_escalated"
    assert await does(council, assignments.escalate, request, "ann", "") == "role_required"
    assert await decides(council, request, "bob") == "role_required"
    assert await decides(council, request, "admin") == "pending", "two are needed all the same"
    assert await council.audited(request) == ["opened", "escalated", "voted"]


async def told_deadline(council: Council, address: TurnAddress) -> datetime:
    """Until when the turn waits, as its client sees it."""
    async with council.desk.db.transaction("local") as tx:
        waiting_for = (await views.get_turn(tx, address.turn_id, None))["waiting_for"]
    assert isinstance(waiting_for, dict)
    return datetime.fromisoformat(waiting_for["expires_at"])


async def passed(council: Council, request: RequestRef) -> None:
    """The deadline passes."""
    await council.set(request, "expires_at = clock_timestamp() - interval '1 second'")


async def test_at_the_first_deadline_it_goes_up_and_at_the_second_it_is_denied(
    council: Council, reconciler: Reconciler
) -> None:
    address, request = await council.asked("climbing")
    await passed(council, request)
    await council.desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    row = await council.row(request)
    assert (row["status"], row["reviewer_role"], row["escalated_at"] is not None) == ("pending", "admin", True)
    bells = "SELECT count(*) FROM outbox WHERE turn_id = $1"
    assert await council.desk.value(bells, address.turn_id) == 0, "a paused turn is not woken for it"
    assert await told_deadline(council, address) == row["expires_at"], "the new one"
    read = await council.verdict(address, request)
    assert (read.state, read.look_at) == (V.PENDING, row["expires_at"])
    await passed(council, request)
    await reconciler.once()
    assert await council.desk.value(bells, address.turn_id) == 1
    assert (await council.verdict(address, request)).state is V.EXPIRED
    assert await council.audited(request) == ["opened", "escalated", "expired"]


async def test_a_turn_that_looks_first_writes_the_escalation_down_itself(council: Council) -> None:
    address, request = await council.asked("climbing")
    await passed(council, request)
    read = await council.verdict(address, request)
    row = await council.row(request)
    assert (read.state, read.look_at, row["reviewer_role"]) == (V.PENDING, row["expires_at"], "admin")
    assert (await council.verdict(address, request)).look_at == row["expires_at"], "once"
    assert await council.audited(request) == ["opened", "escalated"]


async def test_between_the_deadline_and_the_reconciler_the_other_role_decides_already(council: Council) -> None:
    _, request = await council.asked("climbing")
    await passed(council, request)
    assert await decides(council, request, "ann") == "role_required"
    assert (await council.row(request))["escalated_at"] is None, "a refusal writes nothing"
    assert await decides(council, request, "admin") == "approved"
    assert await council.audited(request) == ["opened", "escalated", "decided"]


async def waited(council: Council, request: RequestRef) -> None:
    """It has waited as long as the policy lets it."""
    await council.set(request, "fallback_at = clock_timestamp()")


async def test_what_nobody_decides_on_falls_to_the_fallback_reviewer(council: Council, reconciler: Reconciler) -> None:
    _, request = await council.asked("watched")
    await reconciler.once()
    assert (await council.row(request))["assignee"] is None, "not before its time"
    await waited(council, request)
    assert await does(council, assignments.claim, request, "ann", 60) == "done"
    await reconciler.once()
    assert (await council.row(request))["assignee"] is None, "somebody is at it"
    await council.set(request, "claimed_until = clock_timestamp()")
    await reconciler.once()
    await reconciler.once()
    row = await council.row(request)
    assert str(row["assignee"]) == council.desk.people["carl"].user_id and row["fell_back_at"] is not None
    assert await council.audited(request) == ["opened", "claimed", "fell_back"]


async def test_where_the_fallback_reviewer_may_not_decide_it_goes_up(council: Council, reconciler: Reconciler) -> None:
    _, without_role = await council.asked("orphaned")
    _, own = await council.asked("watched", by="carl")
    for request in (without_role, own):
        await waited(council, request)
    await reconciler.once()
    for request in (without_role, own):
        row = await council.row(request)
        assert (row["assignee"], row["reviewer_role"]) == (None, "admin")
        assert await council.audited(request) == ["opened", "escalated"]


async def test_what_has_gone_up_already_stays_there(council: Council, reconciler: Reconciler) -> None:
    _, request = await council.asked("watched")
    assert await does(council, assignments.escalate, request, "ann", "") == "done"
    await waited(council, request)
    await reconciler.once()
    row = await council.row(request)
    assert (row["assignee"], row["reviewer_role"], row["fell_back_at"] is not None) == (None, "admin", True)
    assert await council.audited(request) == ["opened", "escalated", "fell_back"]


async def test_reconcilers_and_deciders_at_once_never_wait_crosswise_and_each_row_is_handed_on_once(
    council: Council, relay: Database
) -> None:
    asked = [(await council.asked("watched"))[1] for _ in range(20)]
    climbing = [(await council.asked("climbing"))[1] for _ in range(10)]
    for request in asked:
        await waited(council, request)
    for request in climbing:
        await passed(council, request)

    async def passes(step: Any) -> int:
        async with relay.transaction("local") as tx:
            done: int = await step(tx)
            return done

    answers = await gathered(
        *(passes(step) for step in (fall_back, escalate_all_overdue) for _ in range(4)),
        *(decides(council, request, "ann") for request in asked[:10]),
        *(decides(council, request, "admin") for request in climbing[:5]),
    )
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    await passes(fall_back)
    await passes(escalate_all_overdue)
    for request in (*asked, *climbing):
        kinds = await council.audited(request)
        assert kinds.count("fell_back") + kinds.count("escalated") <= 1
        status = (await council.row(request))["status"]
        assert status == "approved" or len(kinds) == 2, "handed on exactly once"


async def test_a_policy_that_has_changed_meanwhile_is_the_one_a_new_request_is_opened_under(council: Council) -> None:
    address = await council.desk.plan(("pay", {"amount": 7}), agent_id="plain")
    version = await council.desk.version("plain")
    await council.republish({"plain": {"quorum": 2}})
    try:
        call = await council.desk.open(address, "t1.0", agent_id="plain")
        assert (await council.row(call[0]))["quorum"] == 2
    finally:
        await council.republish({})
    assert await council.desk.version("plain") == version
