"""Day budgets on the real ledger: reserved by the claim, replaced by the settle, given back by whatever ends a call."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.model import ModelActivities
from perdure.contracts.agents import DayLimits
from perdure.contracts.calls import ModelCall, ModelReply
from perdure.contracts.turns import FinishAsk, TurnAddress, TurnStatus
from perdure.contracts.values import digest_of
from perdure.core.budgets import RESERVED_TRIES, TENANT
from perdure.core.turns import Caps
from perdure.store.budgets import day_limits_shown, set_day_limits
from perdure.store.database import new_id
from perdure.store.turns.finish import finish
from perdure.store.turns.start import request_stop
from tests.desk import Desk, gathered, publish_desk, until
from tests.doubles.desk import desk_agents
from tests.doubles.spoken import HOLDS_TOKENS, Line
from tests.scale import sized

MANY = Caps(turns_a_user=100_000)
TURNS = sized(200, 40)


async def limited_agents(desk: Desk, *limits: DayLimits) -> list[str]:
    """New agents with these day limits, beside the desk's."""
    agent = next(agent for _, agent in desk_agents()[0] if agent.definition.id == "desk")
    ours = []
    for each in limits:
        changed: dict[str, Any] = {"id": f"a{new_id()[-8:]}", "day_limits": each}
        definition = agent.definition.model_copy(update=changed)
        version = digest_of(definition.model_dump(mode="json"))
        ours.append(agent.model_copy(update={"definition": definition, "version": version}))
    await publish_desk(desk.owner_url, [*desk_agents()[0], *(("desk", each) for each in ours)])
    return [each.definition.id for each in ours]


async def limited_agent(desk: Desk, **limits: int) -> str:
    """A new agent with these day limits."""
    return (await limited_agents(desk, DayLimits(**limits)))[0]


async def begun(desk: Desk, agent_id: str, *lines: Line) -> ModelCall:
    """The first model call of a new turn."""
    address, _ = await desk.start(*(lines or (Line("yes"),)), agent_id=agent_id, caps=MANY)
    return await desk.model_call(address, agent_id=agent_id)


async def ask(desk: Desk, call: ModelCall, attempt: int = 1, run_id: str = "run-1") -> ModelReply:
    """One attempt of a model call."""
    return await desk.activity(ModelActivities(desk.deps).complete, call, attempt=attempt, run_id=run_id)


async def row(desk: Desk, agent_id: str) -> tuple[int, int, int, int]:
    """Used tokens and cost, held tokens and cost, of today."""
    rows = await desk.rows(
        "SELECT used_tokens, used_cost_microusd, held_tokens, held_cost_microusd FROM day_usage "
        "WHERE agent_id = $1 AND day = (now() AT TIME ZONE 'UTC')::date",
        agent_id,
    )
    return tuple(rows[0]) if rows else (0, 0, 0, 0)


async def assumed(desk: Desk, agent_id: str) -> tuple[int, int]:
    """How much of today's used tokens and cost nobody knows for sure."""
    rows = await desk.rows(
        "SELECT assumed_tokens, assumed_cost_microusd FROM day_usage WHERE agent_id = $1 ORDER BY day DESC", agent_id
    )
    return tuple(rows[0]) if rows else (0, 0)


async def used_by(desk: Desk, agent_id: str = "") -> int:
    """The tokens of all turns, or of an agent's."""
    used = "SELECT coalesce(sum(input_tokens + output_tokens), 0)::int FROM turns WHERE $1 IN ('', agent_id)"
    return int(await desk.value(used, agent_id))


async def limit_tenant(desk: Desk, **limits: int) -> None:
    """What an operator does."""
    async with desk.db.transaction("local") as tx:
        await set_day_limits(tx, DayLimits(**limits), desk.people["admin"].user_id)


@pytest.fixture
async def unlimited_again(desk: Desk) -> AsyncIterator[None]:
    """The tenant has no limit afterwards."""
    yield
    await limit_tenant(desk)


async def until_asked(desk: Desk, call: ModelCall) -> None:
    """Wait until the provider has been asked."""
    await until(lambda: desk.model.requests[f"{call.address.turn_id}.{call.call_id}"] > 0)


async def test_a_call_holds_its_most_while_it_runs_and_counts_what_it_used_after(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_tokens=1_000, max_cost_microusd=1_000)
    call = await begun(desk, agent_id, Line("yes", waits="looked", tokens=30))
    with desk.model.held("looked"):
        running = asyncio.create_task(ask(desk, call))
        await until_asked(desk, call)
        assert await row(desk, agent_id) == (0, 0, HOLDS_TOKENS, 20)
    assert (await running).problem is None
    assert await row(desk, agent_id) == (30, 10, 0, 0)
    assert (await ask(desk, call, 2)).problem is None, "settled: answers again"
    assert await row(desk, agent_id) == (30, 10, 0, 0), "and counts no more"


async def test_an_agent_and_a_tenant_without_day_limits_leave_no_row(desk: Desk) -> None:
    assert (await ask(desk, await begun(desk, "desk"))).problem is None
    assert await desk.value("SELECT count(*) FROM day_usage WHERE agent_id = 'desk'") == 0


async def test_a_met_budget_refuses_the_call_and_nothing_of_its_claim_stands(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_tokens=10)
    assert (await ask(desk, await begun(desk, agent_id))).problem is None
    call = await begun(desk, agent_id)
    reply = await ask(desk, call)
    assert reply.problem is not None and reply.problem.code == "day_token_budget_spent"
    assert agent_id in reply.problem.message
    assert desk.model.requests[f"{call.address.turn_id}.m1"] == 0
    assert await desk.kinds(call.address.turn_id) == ["ready"]
    assert await desk.value("SELECT count(*) FROM model_calls WHERE turn_id = $1", call.address.turn_id) == 0


async def test_the_tenants_budget_counts_what_was_used_before_it_was_set(desk: Desk, unlimited_again: None) -> None:
    await ask(desk, await begun(desk, "desk", Line("before", tokens=500)))
    counted = await used_by(desk)
    await limit_tenant(desk, max_tokens=counted + 5)
    assert (await ask(desk, await begun(desk, "desk"))).problem is None
    assert (await row(desk, TENANT))[0] == counted + 10
    refused = await ask(desk, await begun(desk, "desk"))
    assert refused.problem is not None and refused.problem.code == "day_token_budget_spent"
    await limit_tenant(desk)
    assert (await ask(desk, await begun(desk, "desk"))).problem is None, "no limit, from the next call on"
    assert (await row(desk, TENANT))[0] == counted + 20, "counted on, so that a new limit knows the whole day"


@pytest.mark.sized
async def test_many_turns_at_once_overspend_by_less_than_one_calls_hold(desk: Desk, unlimited_again: None) -> None:
    before = await used_by(desk)
    limit = before + 5 * TURNS
    await limit_tenant(desk, max_tokens=limit)
    calls = [await begun(desk, "desk", Line("yes", seconds=0.02)) for _ in range(TURNS)]
    replies = await asyncio.gather(*(asked_until_decided(desk, call) for call in calls))
    answered = sum(1 for reply in replies if reply.problem is None)
    assert {reply.problem.code for reply in replies if reply.problem} == {"day_token_budget_spent"}
    used, _, held, _ = await row(desk, TENANT)
    assert held == 0
    assert used == before + 10 * answered < limit + HOLDS_TOKENS
    assert answered >= 0.375 * TURNS, "most of the budget was used, and not refused for reservations"


async def asked_until_decided(desk: Desk, call: ModelCall) -> ModelReply:
    """As Temporal tries a call again that others' reservations keep back, without its waits."""
    for attempt in range(1, RESERVED_TRIES):
        try:
            return await ask(desk, call, attempt)
        except ApplicationError as error:
            assert error.type == "day_budget_reserved" and error.next_retry_delay == timedelta(seconds=3)
            await asyncio.sleep(0.2)
    return await ask(desk, call, RESERVED_TRIES)


async def test_a_dead_attempts_hold_is_taken_over_by_the_next_one(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_tokens=1_000)
    call = await begun(desk, agent_id, Line("slow", waits="looked"))
    with desk.model.held("looked"):
        zombie = asyncio.create_task(ask(desk, call, 1))
        await until_asked(desk, call)
        assert (await row(desk, agent_id))[2] == HOLDS_TOKENS
        second = asyncio.create_task(ask(desk, call, 2))
        await until(lambda: desk.model.requests[f"{call.address.turn_id}.m1"] == 2)
        assert await row(desk, agent_id) == (HOLDS_TOKENS, 20, HOLDS_TOKENS, 20), "it may have used all that it held"
        assert await assumed(desk, agent_id) == (HOLDS_TOKENS, 20)
    late = await zombie
    assert late.problem is not None and late.problem.code == "stale_attempt"
    assert (await second).problem is None
    assert await row(desk, agent_id) == (20, 20, 0, 0), "both were paid"
    assert await assumed(desk, agent_id) == (0, 0)
    assert await used_by(desk, agent_id) == 20


async def test_a_turn_that_ends_counts_its_lost_call_whole_until_that_says_what_it_used(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_tokens=1_000)
    call = await begun(desk, agent_id, Line("slow", waits="looked"))
    with desk.model.held("looked"):
        running = asyncio.create_task(ask(desk, call))
        await until_asked(desk, call)
        async with desk.db.transaction("local") as tx:
            await finish(tx, FinishAsk(address=call.address, status=TurnStatus.FAILED))
        assert await row(desk, agent_id) == (HOLDS_TOKENS, 20, 0, 0)
        assert await used_by(desk, agent_id) == HOLDS_TOKENS
        async with desk.db.transaction("local") as tx:
            seen: Any = await day_limits_shown(
                tx, [await desk.deps.shelf.at(tx, agent_id, await desk.version(agent_id))]
            )
        assert (seen["agents"][0]["assumed_tokens"], seen["agents"][0]["assumed_cost_usd"]) == (HOLDS_TOKENS, 0.00002)
    await running
    assert await used_by(desk, agent_id) == 10
    assert await row(desk, agent_id) == (10, 10, 0, 0), "the provider was paid"
    assert await assumed(desk, agent_id) == (0, 0)


async def test_a_provider_that_fails_and_is_asked_again_holds_nothing_in_between(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_tokens=100_000)
    call = await begun(desk, agent_id, Line("yes", fails=1))
    with pytest.raises(ApplicationError):
        await ask(desk, call)
    used, cost, held, held_cost = await row(desk, agent_id)
    turn = await desk.value("SELECT input_tokens + output_tokens FROM turns WHERE id = $1", call.address.turn_id)
    assert (held, held_cost, used) == (0, 0, turn) and used > 0, "what broke off was begun, and is counted"
    assert cost == used, "a micro-dollar a token, of what broke off too"
    for _ in ("settled", "asked for again"):
        reply = await ask(desk, call, 2)
        assert reply.problem is None and reply.turn_used is not None
        assert (reply.usage.tokens, reply.turn_used.tokens, reply.turn_used.cost_microusd) == (10, used + 10, cost + 10)
    assert (await row(desk, agent_id))[:2] == (used + 10, cost + 10)


async def test_a_stop_gives_back_what_the_call_held(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_tokens=1_000)
    call = await begun(desk, agent_id)
    async with desk.db.transaction("local") as tx:
        await request_stop(tx, call.address.turn_id, desk.people["requester"].user_id)
    assert (await ask(desk, call)).problem is not None
    assert await row(desk, agent_id) == (0, 0, 0, 0)


async def test_a_new_day_begins_at_nothing_and_a_call_counts_in_the_day_of_its_claim(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_tokens=10)
    call = await begun(desk, agent_id, Line("late", waits="midnight"))
    with desk.model.held("midnight"):
        running = asyncio.create_task(ask(desk, call))
        await until_asked(desk, call)
        await midnight(desk, agent_id, call.address)
    assert (await running).problem is None
    assert await row(desk, agent_id) == (0, 0, 0, 0), "nothing of it is today's"
    yesterday = await desk.rows("SELECT used_tokens, held_tokens FROM day_usage WHERE agent_id = $1", agent_id)
    assert [tuple(each) for each in yesterday] == [(10, 0)]
    assert (await ask(desk, await begun(desk, agent_id))).problem is None, "yesterday's budget is met, today's is not"


async def test_a_call_that_died_yesterday_is_taken_over_on_todays_budget(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_tokens=1_000)
    call = await begun(desk, agent_id, Line("slow", waits="looked"))
    with desk.model.held("looked"):
        zombie = asyncio.create_task(ask(desk, call, 1))
        await until_asked(desk, call)
        await midnight(desk, agent_id, call.address)
        second = asyncio.create_task(ask(desk, call, 2))
        await until(lambda: desk.model.requests[f"{call.address.turn_id}.m1"] == 2)
        days = "SELECT used_tokens, held_tokens FROM day_usage WHERE agent_id = $1 ORDER BY day"
        rows = await desk.rows(days, agent_id)
        assert [tuple(each) for each in rows] == [(HOLDS_TOKENS, 0), (0, HOLDS_TOKENS)]
    assert {type(each) for each in await gathered(zombie, second)} == {ModelReply}


async def midnight(desk: Desk, agent_id: str, address: TurnAddress) -> None:
    """Make all of today's yesterday's, behind the program's back."""
    await desk.write("UPDATE day_usage SET day = day - 1 WHERE agent_id = $1", agent_id)
    await desk.write(
        "UPDATE model_calls SET budget_day = budget_day - 1, started_at = started_at - interval '1 day' "
        "WHERE turn_id = $1",
        address.turn_id,
    )
    await desk.write("UPDATE turns SET created_at = created_at - interval '1 day' WHERE id = $1", address.turn_id)


async def test_a_model_that_nobody_can_bound_is_not_asked_under_a_limit(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_cost_microusd=1_000)
    call = await begun(desk, agent_id)
    desk.model.priced = False
    try:
        refused = await ask(desk, call)
    finally:
        desk.model.priced = True
    assert refused.problem is not None and refused.problem.code == "price_unknown"
    assert desk.model.requests[f"{call.address.turn_id}.m1"] == 0


@pytest.mark.sized
async def test_any_order_of_claims_deaths_settles_and_ends_leaves_nothing_held(desk: Desk) -> None:
    agent_id = await limited_agent(desk, max_tokens=2_000)
    dice = random.Random(20)
    for _ in range(sized(6, 2)):
        calls = [await begun(desk, agent_id, Line("yes", seconds=dice.random() / 20)) for _ in range(8)]
        work: list[Any] = [ask(desk, call, attempt) for call in calls for attempt in range(1, dice.randint(2, 4))]
        work += [ended(desk, call.address, dice.random() / 20) for call in calls if dice.random() < 0.4]
        dice.shuffle(work)
        for outcome in await gathered(*work):
            assert not isinstance(outcome, BaseException), outcome
        for call in calls:
            await ended(desk, call.address, 0)
        used, _, held, held_cost = await row(desk, agent_id)
        assert (held, held_cost) == (0, 0)
        assert used == await used_by(desk, agent_id) < 2_000 + HOLDS_TOKENS


async def ended(desk: Desk, address: TurnAddress, after_seconds: float) -> None:
    """End a turn, whatever of it is under way."""
    await asyncio.sleep(after_seconds)
    async with desk.db.transaction("local") as tx:
        await finish(tx, FinishAsk(address=address, status=TurnStatus.FAILED))


@pytest.mark.sized
async def test_two_budgets_wanted_by_many_at_once_never_wait_crosswise(desk: Desk, unlimited_again: None) -> None:
    await limit_tenant(desk, max_tokens=10**9)
    agents = await limited_agents(desk, *[DayLimits(max_tokens=10**9)] * 3)
    calls = [await begun(desk, agents[number % 3], Line("yes", seconds=0.01)) for number in range(sized(60, 18))]
    for reply in await gathered(*(ask(desk, call) for call in calls)):
        assert isinstance(reply, ModelReply) and reply.problem is None, reply
    for agent_id in agents:
        assert (await row(desk, agent_id))[0] == 10 * len(calls) // 3


async def test_an_operator_sees_limits_use_and_reservations(desk: Desk, unlimited_again: None) -> None:
    agent_id = await limited_agent(desk, max_tokens=1_000, max_cost_microusd=2_000_000)
    await limit_tenant(desk, max_cost_microusd=5_000_000)
    await ask(desk, await begun(desk, agent_id))
    async with desk.db.transaction("local") as tx:
        agent = await desk.deps.shelf.at(tx, agent_id, await desk.version(agent_id))
        seen = await day_limits_shown(tx, [agent])
    assert seen["agents"] == [
        {
            "agent": agent_id,
            "max_tokens": 1_000,
            "used_tokens": 10,
            "assumed_tokens": 0,
            "reserved_tokens": 0,
            "max_cost_usd": 2.0,
            "used_cost_usd": 0.00001,
            "assumed_cost_usd": 0.0,
            "reserved_cost_usd": 0.0,
        }
    ]
    tenant = seen["tenant"]
    assert isinstance(tenant, dict) and (tenant["max_tokens"], tenant["max_cost_usd"]) == (None, 5.0)
    assert tenant["used_tokens"] >= 10
    audited = await desk.rows("SELECT data FROM audit_trail WHERE kind = 'day_limits.set' ORDER BY id")
    assert audited[-1]["data"] == {"max_tokens": None, "max_cost_microusd": 5_000_000}
