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
from tests.harness import Harness
from tests.integration.policies import Policies, publish_policies
from tests.integration.test_approvals_seats import TOMORROW

SETTLED = "SELECT data FROM audit_trail WHERE kind = 'effect.settled' AND turn_id = $1"


@pytest.fixture(scope="module")
async def policies(harness: Harness) -> Policies:
    return await publish_policies(harness)


async def unknown(policies: Policies, policy: dict[str, object], decider: str) -> TurnAddress:
    """An approved call of which nobody knows what became."""
    await policies.republish({"plain": policy})
    try:
        address = await policies.harness.plan(("post", {"mode": "break"}), agent_id="plain")
        (request,) = await policies.harness.open(address, "t1.0", agent_id="plain")
        await policies.harness.decide(request.request_id, by=decider)
        call = await policies.harness.tool_call(address, "t1.0", agent_id="plain")
        outcome = await policies.harness.activity(ToolActivities(policies.harness.deps).run, call)
        assert outcome.state is CallState.OUTCOME_UNKNOWN
    finally:
        await policies.republish({})
    return address


async def settles(
    policies: Policies, address: TurnAddress, by: str, comment: str = "I looked", credential: Credential = OWN
) -> str:
    """As a token that was looked up before says, with every role: `done`, or the refusal's code."""
    person = policies.harness.people[by]
    settler = Decider(person.user_id, frozenset({"requester", "reviewer", "admin"}), by, credential=credential)
    key = effect_key(address.turn_id, "t1.0")
    try:
        async with policies.harness.db.transaction("local") as tx:
            await settle_by_person(tx, key, settler, "happened", comment)
    except CallerError as refused:
        return refused.code
    return "done"


async def state(policies: Policies, address: TurnAddress) -> str:
    return str((await policies.harness.call_row(address))["state"])


async def test_only_whoever_could_decide_on_the_call_settles_it_once(policies: Policies) -> None:
    address = await unknown(policies, {"reviewers": ["ann"]}, "ann")
    for by, code in (("carl", "not_a_reviewer"), ("dora", "role_required"), ("requester", "role_required")):
        assert await settles(policies, address, by) == code
    assert await state(policies, address) == "outcome_unknown"
    assert [await settles(policies, address, "ann") for _ in range(2)] == ["done", "already_settled"]
    assert await state(policies, address) == "done"


async def test_the_role_of_the_policy_is_asked_for_as_it_is_now_and_an_admin_may_in_any_case(
    policies: Policies,
) -> None:
    await policies.roles("admin", "admin")
    address = await unknown(policies, {"reviewer_role": "admin"}, "admin")
    assert [await settles(policies, address, by) for by in ("ann", "admin")] == ["role_required", "done"]
    assert await settles(policies, await unknown(policies, {"reviewers": ["ann"]}, "ann"), "admin") == "done"
    address = await unknown(policies, {}, "ann")
    await policies.roles("carl")
    try:
        assert await settles(policies, address, "carl") == "role_required", "lost since the request came in"
        assert await state(policies, address) == "outcome_unknown"
    finally:
        await policies.roles("carl", "reviewer")
    assert await settles(policies, address, "carl") == "done"


async def test_nobody_settles_an_own_request_not_even_an_admin_nor_by_a_credential_made_for_another(
    policies: Policies,
) -> None:
    address = await unknown(policies, {}, "ann")
    for roles in (("requester", "reviewer"), ("requester", "reviewer", "admin")):
        await policies.roles("requester", *roles)
        try:
            assert await settles(policies, address, "requester") == "own_request"
        finally:
            await policies.roles("requester", "requester")
    requester, admin = (policies.harness.people[name].user_id for name in ("requester", "admin"))
    for by in ("carl", "admin"):
        for created_by in ((requester,), (admin, requester)):
            credential = Credential(How.TOKEN, created_by)
            assert await settles(policies, address, by, credential=credential) == "own_request", (by, created_by)
    assert await settles(policies, address, "carl", credential=Credential(How.TOKEN, (admin,))) == "done"
    said = await policies.harness.value(SETTLED, address.turn_id)
    assert said["signed_in"] == {"how": "token", "created_by": "admin"}


async def test_a_stand_in_settles_and_the_record_says_for_whom(policies: Policies) -> None:
    address = await unknown(policies, {"reviewers": ["ann"]}, "ann")
    ann = policies.harness.people["ann"].user_id
    async with policies.harness.db.transaction("local") as tx:
        made = await assignments.add_delegation(tx, ann, "ann", "carl", TOMORROW, OWN)
    assert await settles(policies, address, "carl", "\u200b") == "outcome_invalid"
    assert await settles(policies, address, "carl") == "done"
    async with policies.harness.db.transaction("local") as tx:
        await assignments.remove_delegation(tx, ann, str(made["id"]))
    said = await policies.harness.value(SETTLED, address.turn_id)
    assert (said["settled_by"], said["for"]) == ("carl", "ann")
