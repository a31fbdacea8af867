"""Who may say what became of an effect: whoever could decide on its approval now, by what the database says now."""

import pytest

from perdure.activities.tools import ToolActivities
from perdure.contracts.calls import CallState
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.decisions import Decider
from perdure.core.identity import OWN, Credential, How
from perdure.store.approvals import assignments
from perdure.store.calls.effects import settle_by_person
from tests.desk import Desk
from tests.integration.council import Council, convened
from tests.integration.test_approvals_seats import TOMORROW

SETTLED = "SELECT data FROM audit_trail WHERE kind = 'effect.settled' AND turn_id = $1"


@pytest.fixture(scope="module")
async def council(desk: Desk) -> Council:
    return await convened(desk)


async def unknown(council: Council, policy: dict[str, object], decider: str) -> TurnAddress:
    """An approved call of which nobody knows what became."""
    await council.republish({"plain": policy})
    try:
        address = await council.desk.plan(("post", {"mode": "break"}), agent_id="plain")
        (request,) = await council.desk.open(address, "t1.0", agent_id="plain")
        await council.desk.decide(request.request_id, by=decider)
        call = await council.desk.tool_call(address, "t1.0", agent_id="plain")
        outcome = await council.desk.activity(ToolActivities(council.desk.deps).run, call)
        assert outcome.state is CallState.OUTCOME_UNKNOWN
    finally:
        await council.republish({})
    return address


async def settles(
    council: Council, address: TurnAddress, by: str, comment: str = "I looked", credential: Credential = OWN
) -> str:
    """As a token that was looked up before says, with every role: `done`, or the refusal's code."""
    person = council.desk.people[by]
    settler = Decider(person.user_id, frozenset({"requester", "reviewer", "admin"}), by, credential=credential)
    key = effect_key(address.turn_id, "t1.0")
    try:
        async with council.desk.db.transaction("local") as tx:
            await settle_by_person(tx, key, settler, "happened", comment)
    except CallerError as refused:
        return refused.code
    return "done"


async def state(council: Council, address: TurnAddress) -> str:
    return str((await council.desk.call_row(address))["state"])


async def test_only_whoever_could_decide_on_the_call_settles_it_once(council: Council) -> None:
    address = await unknown(council, {"reviewers": ["ann"]}, "ann")
    for by, code in (("carl", "not_a_reviewer"), ("dora", "role_required"), ("requester", "role_required")):
        assert await settles(council, address, by) == code
    assert await state(council, address) == "outcome_unknown"
    assert [await settles(council, address, "ann") for _ in range(2)] == ["done", "already_settled"]
    assert await state(council, address) == "done"


async def test_the_role_of_the_policy_is_asked_for_as_it_is_now_and_an_admin_may_in_any_case(council: Council) -> None:
    await council.roles("admin", "admin")
    address = await unknown(council, {"reviewer_role": "admin"}, "admin")
    assert [await settles(council, address, by) for by in ("ann", "admin")] == ["role_required", "done"]
    assert await settles(council, await unknown(council, {"reviewers": ["ann"]}, "ann"), "admin") == "done"
    address = await unknown(council, {}, "ann")
    await council.roles("carl")
    try:
        assert await settles(council, address, "carl") == "role_required", "lost since the request came in"
        assert await state(council, address) == "outcome_unknown"
    finally:
        await council.roles("carl", "reviewer")
    assert await settles(council, address, "carl") == "done"


async def test_nobody_settles_an_own_request_not_even_an_admin_nor_by_a_credential_made_for_another(
    council: Council,
) -> None:
    address = await unknown(council, {}, "ann")
    for roles in (("requester", "reviewer"), ("requester", "reviewer", "admin")):
        await council.roles("requester", *roles)
        try:
            assert await settles(council, address, "requester") == "own_request"
        finally:
            await council.roles("requester", "requester")
    requester, admin = (council.desk.people[name].user_id for name in ("requester", "admin"))
    for by in ("carl", "admin"):
        for created_by in ((requester,), (admin, requester)):
            credential = Credential(How.TOKEN, created_by)
            assert await settles(council, address, by, credential=credential) == "own_request", (by, created_by)
    assert await settles(council, address, "carl", credential=Credential(How.TOKEN, (admin,))) == "done"
    said = await council.desk.value(SETTLED, address.turn_id)
    assert said["signed_in"] == {"how": "token", "created_by": "admin"}


async def test_a_stand_in_settles_and_the_record_says_for_whom(council: Council) -> None:
    address = await unknown(council, {"reviewers": ["ann"]}, "ann")
    ann = council.desk.people["ann"].user_id
    async with council.desk.db.transaction("local") as tx:
        made = await assignments.add_delegation(tx, ann, "ann", "carl", TOMORROW, OWN)
    assert await settles(council, address, "carl", "\u200b") == "outcome_invalid"
    assert await settles(council, address, "carl") == "done"
    async with council.desk.db.transaction("local") as tx:
        await assignments.remove_delegation(tx, ann, str(made["id"]))
    said = await council.desk.value(SETTLED, address.turn_id)
    assert (said["settled_by"], said["for"]) == ("carl", "ann")
