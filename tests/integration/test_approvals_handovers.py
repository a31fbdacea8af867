"""Nothing is left with somebody who is not there: claims lapse, requests are handed on, go to others, go up."""

import asyncio
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
from tests.integration.test_cold_load import BLOCKED
from tests.scale import sized

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


async def test_while_a_claim_lasts_only_its_holder_acts_and_others_are_told_whose_it_is(
    council: Council,
) -> None:
    _, request = await council.asked("plain")
    assert await does(council, assignments.claim, request, "ann", 900) == "done"
    with pytest.raises(CallerError) as refused:
        await council.desk.decide(request.request_id, by="bob")
    first = (await council.row(request))["claimed_until"]
    assert (refused.value.http, refused.value.code) == (409, "claimed")
    assert refused.value.details == {"claimed_by": "ann", "claimed_until": first}
    assert await does(council, assignments.claim, request, "bob", 900) == "claimed"
    assert await does(council, assignments.reassign, request, "bob", "carl", "") == "claimed"
    assert await does(council, assignments.escalate, request, "bob", "") == "claimed"
    assert await does(council, assignments.claim, request, "ann", 1800) == "done", "renewed"
    assert (await council.row(request))["claimed_until"] > first
    assert await decides(council, request, "ann") == "approved"
    assert (await council.row(request))["claimed_by"] is None
    assert await council.audited(request) == ["opened", "claimed", "claimed", "decided"]


async def test_one_of_many_claims_and_gives_it_back_or_an_admin_breaks_it(council: Council) -> None:
    _, request = await council.asked("plain")
    people = ["ann", "bob", "carl", "reviewer", "admin"]
    answers = await gathered(*(does(council, assignments.claim, request, name, 900) for name in people))
    assert sorted(map(str, answers)) == ["claimed"] * 4 + ["done"]
    assert await does(council, assignments.release, request, "admin") == "done"
    for breaker in ("ann", "admin"):
        assert await does(council, assignments.claim, request, "ann", 900) == "done"
        assert await does(council, assignments.release, request, "bob") == "claimed"
        assert await does(council, assignments.release, request, "requester") == "role_required"
        assert await does(council, assignments.release, request, breaker) == "done"
    assert await does(council, assignments.release, request, "ann") == "not_claimed"
    assert await decides(council, request, "bob") == "approved"


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


@pytest.mark.sized
async def test_reconcilers_and_deciders_at_once_never_wait_crosswise_and_each_row_is_handed_on_once(
    council: Council, relay: Database
) -> None:
    asked = [(await council.asked("watched"))[1] for _ in range(sized(20, 6))]
    climbing = [(await council.asked("climbing"))[1] for _ in range(sized(10, 4))]
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
        *(decides(council, request, "ann") for request in asked[::2]),
        *(decides(council, request, "admin") for request in climbing[::2]),
    )
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    await passes(fall_back)
    await passes(escalate_all_overdue)
    for request in (*asked, *climbing):
        kinds = await council.audited(request)
        assert kinds.count("fell_back") + kinds.count("escalated") <= 1
        status = (await council.row(request))["status"]
        assert status == "approved" or len(kinds) == 2, "handed on exactly once"


async def later(council: Council, request: RequestRef, seconds: int) -> None:
    """Time passes."""
    back = f"interval '{seconds} seconds'"
    await council.set(request, f"claimed_until = claimed_until - {back}, claimed_since = claimed_since - {back}")


async def test_renewals_keep_others_away_for_an_hour_and_no_longer(council: Council, relay: Database) -> None:
    _, request = await council.asked("watched")
    await council.set(request, "fallback_at = clock_timestamp()")
    for _ in range(4):
        assert await does(council, assignments.claim, request, "ann", 900) == "done"
        await later(council, request, 880)
    assert await does(council, assignments.claim, request, "ann", 900) == "done"
    row = await council.row(request)
    assert (row["claimed_until"] - row["claimed_since"]).total_seconds() == 3_600
    await later(council, request, 100)
    assert await does(council, assignments.claim, request, "ann", 900) == "claimed_too_long"
    async with relay.transaction("local") as tx:
        assert await fall_back(tx) == 1
    assert str((await council.row(request))["assignee"]) == council.desk.people["carl"].user_id


async def test_a_role_that_is_lost_while_an_act_waits_for_the_turn_counts_no_more(council: Council) -> None:
    address, request = await council.asked("plain")
    try:
        async with council.desk.db.transaction("local", address.turn_id):
            waiting = asyncio.create_task(does(council, assignments.claim, request, "ann", 900))
            for _ in range(1_000):
                if await council.desk.value(BLOCKED):
                    break
                await asyncio.sleep(0.01)
            await council.roles("ann", "requester")
        assert await waiting == "role_required"
    finally:
        await council.roles("ann", "reviewer")
