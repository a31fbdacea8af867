"""A request whose agent has changed since says so and is approved no more; it can be rejected, so no turn hangs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.contracts.agents import ToolCard
from perdure.contracts.approvals import RequestRef, VerdictState
from perdure.contracts.calls import CallState
from perdure.contracts.errors import CallerError
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decision
from perdure.store.approvals import views
from perdure.store.approvals.views import Filters
from tests.desk import Desk
from tests.doubles.desk import desk_agents
from tests.integration.council import Council, convened
from tests.integration.test_approvals_withdrawals import paid, run

V = VerdictState
POLICY = "who decides on such calls has changed since"
TOOL = "the tool has changed since"


@pytest.fixture(scope="module")
async def council(desk: Desk) -> Council:
    return await convened(desk)


@asynccontextmanager
async def changed(council: Council, why: str) -> AsyncIterator[None]:
    """The agent is published otherwise for a while."""
    await council.republish({"plain": {"quorum": 2}}) if why == POLICY else await council.republish({}, newer_pay())
    try:
        yield
    finally:
        await council.republish({})


def newer_pay() -> ToolCard:
    """The tool `pay` of a later version."""
    desk = next(agent for _, agent in desk_agents()[0] if agent.definition.id == "desk")
    card = desk.card("pay")
    assert card is not None
    return card.model_copy(update={"version": digest_of("newer")})


async def shown(council: Council, request: RequestRef) -> tuple[Any, Any]:
    """What the API tells bob of it: why it is outdated, what he may decide; the same alone and in the list."""
    async with council.desk.db.transaction("local") as tx:
        one = await views.get_approval(tx, request.request_id, None, council.who("bob"))
        many, _ = await views.list_approvals(tx, Filters(agent="plain"), 200, None, council.who("bob"))
    same = next(each for each in many if each["id"] == request.request_id)
    assert [same[name] for name in ("outdated", "allowed_decisions")] == [one["outdated"], one["allowed_decisions"]]
    return one["outdated"], one["allowed_decisions"]


@pytest.mark.parametrize("why", [POLICY, TOOL])
async def test_an_outdated_request_says_so_is_not_approved_or_edited_and_can_be_rejected(
    council: Council, why: str
) -> None:
    address, request = await council.asked("plain")
    assert await shown(council, request) == (None, ["approve", "edit", "reject", "respond"])
    async with changed(council, why):
        assert await shown(council, request) == (why, ["reject", "respond"])
        for decision, given in ((Decision.APPROVE, {}), (Decision.EDIT, {"args": {"amount": 3}})):
            with pytest.raises(CallerError, match="reject it with that reason") as refused:
                await council.desk.decide(request.request_id, decision, by="bob", **given)
            assert (refused.value.status, refused.value.code) == (409, "approval_outdated")
            assert refused.value.details == {"outdated": why}
        assert (await council.row(request))["status"] == "pending"
        await council.desk.decide(request.request_id, Decision.REJECT, by="bob", comment="asked by another policy")
        assert await shown(council, request) == (None, [])
        assert (await council.verdict(address, request)).state is V.REJECTED
    assert (await run(council, address)).state is CallState.DENIED
    assert paid(council, address) == 0


async def test_what_is_published_again_as_it_was_can_be_approved_again(council: Council) -> None:
    address, request = await council.asked("plain")
    async with changed(council, POLICY):
        with pytest.raises(CallerError, match="has changed since"):
            await council.desk.decide(request.request_id, by="bob")
    await council.desk.decide(request.request_id, by="bob")
    assert (await run(council, address)).state is CallState.DONE


async def test_an_approval_that_is_not_used_yet_says_that_it_is_outdated_and_one_that_ran_does_not(
    council: Council,
) -> None:
    _, held = await council.asked("plain")
    await council.desk.decide(held.request_id, by="bob")
    address, done = await council.asked("plain")
    await council.desk.decide(done.request_id, by="bob")
    assert (await run(council, address)).state is CallState.DONE
    async with changed(council, TOOL):
        assert (await shown(council, held))[0] == TOOL
        assert (await shown(council, done))[0] is None
