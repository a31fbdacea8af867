"""Day budgets that begin, or change, while calls and turns are under way: what was used before or beside is counted."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.provider import Chunk, ProviderRequest, TextDelta
from perdure.contracts.agents import DayLimits
from perdure.contracts.errors import UpstreamUnavailable
from perdure.contracts.values import digest_of
from perdure.core.budgets import TENANT, TOKENS_MET
from perdure.store.database import new_id
from tests.desk import Desk, publish_desk
from tests.doubles.desk import desk_agents
from tests.doubles.spoken import Line, SpokenModel
from tests.integration.test_day_budgets import ask, begun, limit_tenant, row, until_asked, used_by


@pytest.fixture
async def uncounted(desk: Desk) -> AsyncIterator[None]:
    """Nobody has counted today yet; and nothing is limited afterwards."""
    await forget(desk)
    yield
    await forget(desk)


async def forget(desk: Desk) -> None:
    """As before the tenant's first limit."""
    await desk.write("DELETE FROM day_limits")
    await desk.write("DELETE FROM day_usage")


async def publish(desk: Desk, agent_id: str, limits: DayLimits | None) -> None:
    """Publish the desk's agent under this name, with these limits of a day."""
    agent = next(agent for _, agent in desk_agents()[0] if agent.definition.id == "desk")
    definition = agent.definition.model_copy(update={"id": agent_id, "day_limits": limits})
    version = digest_of(definition.model_dump(mode="json"))
    changed = agent.model_copy(update={"definition": definition, "version": version})
    await publish_desk(desk.owner_url, [*desk_agents()[0], ("desk", changed)])


async def test_calls_under_way_when_a_budget_begins_count_in_it_once_they_settle(desk: Desk, uncounted: None) -> None:
    before = await used_by(desk)
    calls = [await begun(desk, "desk", Line("slow", waits="begun", tokens=30)) for _ in range(4)]
    with desk.model.held("begun"):
        running = [asyncio.create_task(ask(desk, call)) for call in calls]
        for call in calls:
            await until_asked(desk, call)
        await limit_tenant(desk, max_tokens=before + 100)
        assert (await ask(desk, await begun(desk, "desk"))).problem is None, "it makes the day's row"
        assert (await row(desk, TENANT))[0] == before + 10
    for reply in await asyncio.gather(*running):
        assert reply.problem is None
    assert await row(desk, TENANT) == (await used_by(desk), (await row(desk, TENANT))[1], 0, 0)
    assert await used_by(desk) == before + 130
    refused = await ask(desk, await begun(desk, "desk"))
    assert refused.problem is not None and refused.problem.code == TOKENS_MET


async def test_a_call_that_the_tenants_budget_reserved_for_counts_in_its_agents_later_one(
    desk: Desk, uncounted: None
) -> None:
    agent_id = f"a{new_id()[-8:]}"
    await publish(desk, agent_id, None)
    await limit_tenant(desk, max_tokens=10**9)
    call = await begun(desk, agent_id, Line("slow", waits="published", tokens=30))
    with desk.model.held("published"):
        running = asyncio.create_task(ask(desk, call))
        await until_asked(desk, call)
        await publish(desk, agent_id, DayLimits(max_tokens=1_000))
        assert (await ask(desk, await begun(desk, agent_id))).problem is None
    assert (await running).problem is None
    assert (await row(desk, agent_id))[::2] == (40, 0)
    assert (await row(desk, TENANT))[::2] == (await used_by(desk), 0), "counted once in each"


async def test_attempts_that_broke_off_before_a_budget_began_are_counted_in_it(desk: Desk, uncounted: None) -> None:
    call = await begun(desk, "desk", Line("half an answer", fails=1))
    with pytest.raises(ApplicationError):
        await ask(desk, call)
    turn = await desk.value("SELECT input_tokens + output_tokens FROM turns WHERE id = $1", call.address.turn_id)
    assert turn > 0, "the provider was paid for it"
    await limit_tenant(desk, max_tokens=10**9)
    assert (await ask(desk, await begun(desk, "desk"))).problem is None
    assert (await row(desk, TENANT))[0] == await used_by(desk)


async def test_an_attempt_that_breaks_off_counts_in_a_budget_that_began_beside_it(
    desk: Desk, uncounted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, breaks = await begun(desk, "desk"), asyncio.Event()

    async def stalls(model: SpokenModel, request: ProviderRequest) -> AsyncGenerator[Chunk, None]:
        model.requests[request.idempotency_key] += 1
        yield TextDelta("half")
        await breaks.wait()
        raise UpstreamUnavailable("model_unavailable", "The model broke off.", retry_after_seconds=0.05)

    with monkeypatch.context() as patch:
        patch.setattr(SpokenModel, "stream", stalls)
        running = asyncio.create_task(ask(desk, call))
        await until_asked(desk, call)
    await limit_tenant(desk, max_tokens=10**9)
    assert (await ask(desk, await begun(desk, "desk"))).problem is None
    counted = (await row(desk, TENANT))[0]
    breaks.set()
    with pytest.raises(ApplicationError):
        await running
    assert (await row(desk, TENANT))[0] == await used_by(desk) > counted


async def test_a_limit_that_was_lowered_binds_the_turns_that_began_before(desk: Desk, uncounted: None) -> None:
    agent_id = f"a{new_id()[-8:]}"
    await publish(desk, agent_id, None)
    old = [await begun(desk, agent_id, Line("yes", tokens=30)) for _ in range(3)]
    await publish(desk, agent_id, DayLimits(max_tokens=20))
    assert (await ask(desk, old[0])).problem is None, "nothing was used yet"
    refused = await ask(desk, old[1])
    assert refused.problem is not None and refused.problem.code == TOKENS_MET
    assert (await row(desk, agent_id))[::2] == (30, 0)
    await publish(desk, agent_id, None)
    assert (await ask(desk, old[2])).problem is None, "and one that was lifted binds nobody"
    assert (await row(desk, agent_id))[::2] == (60, 0), "what its day has come to is counted on"
