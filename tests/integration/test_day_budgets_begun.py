"""Day budgets that begin, or change, while calls and turns are under way: what was used before or beside is counted."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.provider import Chunk, ProviderRequest, TextDelta
from perdure.contracts.agents import DayLimits
from perdure.contracts.calls import ModelCall, ModelReply
from perdure.contracts.errors import UpstreamUnavailable
from perdure.contracts.values import digest_of
from perdure.core.budgets import TENANT, TOKENS_MET
from perdure.store import budgets
from perdure.store.database import new_id
from tests.desk import Desk, publish_desk, until
from tests.doubles.desk import desk_agents
from tests.doubles.spoken import Line, SpokenModel
from tests.integration.test_day_budgets import ask, begun, limit_tenant, limited_agent, row, until_asked, used_by
from tests.scale import sized

_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = $1"


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


async def until_waiting(desk: Desk, lock: str, *instead: asyncio.Task[ModelReply], seconds: float = 30) -> None:
    """Until somebody waits for a lock of this kind, or one of these is done."""
    for _ in range(int(seconds / 0.01)):
        if any(each.done() for each in instead) or await desk.value(_WAITING, lock):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"nobody waited for a lock of the kind {lock}")


@asynccontextmanager
async def settling(desk: Desk, call: ModelCall) -> AsyncIterator[asyncio.Task[ModelReply]]:
    """The attempt of a call that has recorded its reply and commits no sooner than this is left."""
    async with desk.db.transaction("local") as other:
        with desk.model.held("late"):
            running = asyncio.create_task(ask(desk, call))
            await until_asked(desk, call)
            await other.execute("SELECT FROM conversations WHERE id = $1 FOR UPDATE", call.address.conversation_id)
        await until_waiting(desk, "transactionid")
        yield running


async def test_a_settle_that_commits_while_the_days_row_is_opened_is_counted_in_it(desk: Desk, uncounted: None) -> None:
    before = await used_by(desk)
    late, first = await begun(desk, "desk", Line("slow", waits="late", tokens=30)), await begun(desk, "desk")
    async with settling(desk, late) as running:
        await limit_tenant(desk, max_tokens=10**9)
        opening = asyncio.create_task(ask(desk, first))
        await until_waiting(desk, "advisory", opening)
    assert (await running).problem is None and (await opening).problem is None
    assert await used_by(desk) == before + 40
    assert (await row(desk, TENANT))[::2] == (before + 40, 0)


async def test_a_settle_that_comes_while_the_days_row_is_opened_waits_and_is_charged(
    desk: Desk, uncounted: None
) -> None:
    before = await used_by(desk)
    late = await begun(desk, "desk", Line("slow", waits="late", tokens=30))
    async with desk.db.transaction("local") as tx:
        with desk.model.held("late"):
            running = asyncio.create_task(ask(desk, late))
            await until_asked(desk, late)
            await budgets.open_day(tx, [TENANT])
        await until_waiting(desk, "advisory", running)
        assert await tx.fetchval("SELECT used_tokens FROM day_usage WHERE agent_id = ''") == before
    assert (await running).problem is None
    assert (await row(desk, TENANT))[::2] == (before + 30, 0)


async def test_who_takes_a_dead_call_over_opens_a_row_before_it_locks_the_one_that_others_want(
    desk: Desk, uncounted: None
) -> None:
    agent_id = await limited_agent(desk, max_tokens=10**9)
    dead = await begun(desk, agent_id, Line("slow", waits="taken over"))
    late = await begun(desk, agent_id, Line("slow", waits="late", tokens=30))
    with desk.model.held("taken over"):
        zombie = asyncio.create_task(ask(desk, dead, 1))
        await until_asked(desk, dead)
        async with settling(desk, late) as running:
            await limit_tenant(desk, max_tokens=10**9)
            over = asyncio.create_task(ask(desk, dead, 2))
            await until_waiting(desk, "advisory", over)
        await until(lambda: desk.model.requests[f"{dead.address.turn_id}.{dead.call_id}"] == 2)
    assert (await running).problem is None and (await over).problem is None
    assert (await zombie).problem is not None
    assert (await row(desk, agent_id))[::2] == (50, 0), "the dead one came back: it was paid too"
    assert (await row(desk, TENANT))[::2] == (await used_by(desk), 0)


@pytest.mark.sized
async def test_many_who_settle_and_open_at_once_lose_nothing(desk: Desk, uncounted: None) -> None:
    for number in range(sized(5, 2)):
        await forget(desk)
        calls = [await begun(desk, "desk", Line("yes", seconds=0.02 * (place % 5))) for place in range(24)]
        limiting = asyncio.create_task(limited_soon(desk, 0.01 * number))
        replies = await asyncio.gather(*(ask(desk, call) for call in calls))
        await limiting
        assert {reply.problem for reply in replies} == {None}
        assert (await ask(desk, await begun(desk, "desk"))).problem is None, "it makes the row, if nobody has"
        assert (await row(desk, TENANT))[::2] == (await used_by(desk), 0)


async def limited_soon(desk: Desk, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await limit_tenant(desk, max_tokens=10**9)
