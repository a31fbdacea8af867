"""Daily budgets on the real ledger: a claim reserves, a settle replaces, any end of a call releases. Usage from before
or beside a budget that starts or changes while calls run is counted."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.provider import Chunk, ProviderRequest, TextDelta
from perdure.contracts.agents import DayLimits, PublishedAgent
from perdure.contracts.calls import ModelCall, ModelReply
from perdure.contracts.errors import UpstreamUnavailable
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.contracts.values import digest_of
from perdure.core.budgets import DAY_COST_SPENT, DAY_TOKENS_SPENT, RESERVED_SECONDS, RESERVED_TRIES, TENANT
from perdure.core.turns import Caps
from perdure.store import budgets
from perdure.store.budgets import day_limits_shown, set_day_limits
from perdure.store.database import new_id
from tests.doubles.message_script import HOLDS_TOKENS, Line, MessageScriptModel
from tests.doubles.target import app_agents
from tests.eventually import until
from tests.harness import Harness, gathered, publish_app
from tests.integration.conftest import in_transaction
from tests.integration.test_ledger_model_calls import ask
from tests.scale import sized

MANY = Caps(turns_a_user=100_000)
LATE = Line("slow", waits="late", tokens=30)
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = $1"


def limited(agent_id: str, limits: DayLimits | None) -> PublishedAgent:
    agent = next(agent for _, agent in app_agents()[0] if agent.definition.id == "desk")
    definition = agent.definition.model_copy(update={"id": agent_id, "day_limits": limits})
    return agent.model_copy(update={"definition": definition, "version": digest_of(definition.model_dump(mode="json"))})


async def publish(harness: Harness, limits: DayLimits | None, *agent_ids: str) -> None:
    await publish_app(harness.owner_url, [*app_agents()[0], *(("desk", limited(each, limits)) for each in agent_ids)])


async def limited_agent(harness: Harness, **limits: int) -> str:
    agent_id = f"a{new_id()[-8:]}"
    await publish(harness, DayLimits(**limits), agent_id)
    return agent_id


async def begun(harness: Harness, agent_id: str, *lines: Line) -> ModelCall:
    address, _ = await harness.start(*(lines or (Line("yes"),)), agent_id=agent_id, caps=MANY)
    return await harness.model_call(address, agent_id=agent_id)


async def assert_refused(harness: Harness, call: ModelCall, code: str, attempt: int = 1) -> None:
    reply = await ask(harness, call, attempt)
    assert reply.problem is not None and reply.problem.code == code
    assert harness.model.requests[f"{call.address.turn_id}.{call.call_id}"] == 0


async def row(harness: Harness, agent_id: str) -> tuple[int, int, int, int]:
    """Used tokens and cost, held tokens and cost, of today."""
    counted = "used_tokens, used_cost_microusd, held_tokens, held_cost_microusd"
    today = f"SELECT {counted} FROM day_usage WHERE agent_id = $1 AND day = (now() AT TIME ZONE 'UTC')::date"
    rows = await harness.rows(today, agent_id)
    return tuple(rows[0]) if rows else (0, 0, 0, 0)


async def assumed(harness: Harness, agent_id: str) -> tuple[int, int]:
    """The uncertain part of today's tokens and cost."""
    sql = "SELECT assumed_tokens, assumed_cost_microusd FROM day_usage WHERE agent_id = $1 ORDER BY day DESC"
    rows = await harness.rows(sql, agent_id)
    return tuple(rows[0]) if rows else (0, 0)


async def used_by(harness: Harness, agent_id: str = "") -> int:
    used = "SELECT coalesce(sum(input_tokens + output_tokens), 0)::int FROM turns WHERE $1 IN ('', agent_id)"
    return int(await harness.value(used, agent_id))


async def limit_tenant(harness: Harness, **limits: int) -> None:
    await in_transaction(harness.db, set_day_limits, DayLimits(**limits), harness.people["admin"].user_id)


@pytest.fixture
async def unlimited_again(harness: Harness) -> AsyncIterator[None]:
    yield
    await limit_tenant(harness)


async def until_asked(harness: Harness, call: ModelCall, times: int = 1) -> None:
    await until(lambda: harness.model.requests[f"{call.address.turn_id}.{call.call_id}"] >= times)


@asynccontextmanager
async def running(harness: Harness, call: ModelCall, waits: str = "looked") -> AsyncIterator[asyncio.Task[ModelReply]]:
    """The first attempt of a call, which has sent its request and gets the end when this is left."""
    with harness.model.held(waits):
        task = asyncio.create_task(ask(harness, call))
        await until_asked(harness, call)
        yield task


async def test_a_call_reserves_its_maximum_while_it_runs_and_then_counts_its_usage(harness: Harness) -> None:
    agent_id = await limited_agent(harness, max_tokens=1_000, max_cost_microusd=1_000)
    call = await begun(harness, agent_id, Line("yes", waits="looked", tokens=30))
    async with running(harness, call) as first:
        assert await row(harness, agent_id) == (0, 0, HOLDS_TOKENS, 20)
    assert (await first).problem is None
    assert await row(harness, agent_id) == (30, 10, 0, 0)
    assert (await ask(harness, call, 2)).problem is None, "settled: answers again"
    assert await row(harness, agent_id) == (30, 10, 0, 0), "and counts no more"


@pytest.mark.parametrize(
    ("limits", "code"), [({"max_tokens": HOLDS_TOKENS}, DAY_TOKENS_SPENT), ({"max_cost_microusd": 20}, DAY_COST_SPENT)]
)
async def test_a_call_blocked_by_a_reservation_is_retried_and_finally_refused(
    harness: Harness, limits: dict[str, int], code: str
) -> None:
    agent_id = await limited_agent(harness, **limits)
    call, other = await begun(harness, agent_id, Line("yes", waits="looked")), await begun(harness, agent_id)
    async with running(harness, call) as first:
        with pytest.raises(ApplicationError) as refusal:
            await ask(harness, other)
        assert refusal.value.type == "day_budget_reserved" and not refusal.value.non_retryable
        assert refusal.value.next_retry_delay == timedelta(seconds=RESERVED_SECONDS)
        await assert_refused(harness, other, code, RESERVED_TRIES)
    assert (await first).problem is None


async def test_a_spent_budget_refuses_the_call_and_its_claim_leaves_no_row(harness: Harness) -> None:
    agent_id = await limited_agent(harness, max_tokens=10)
    assert (await ask(harness, await begun(harness, agent_id))).problem is None
    call = await begun(harness, agent_id)
    await assert_refused(harness, call, DAY_TOKENS_SPENT)
    assert await harness.kinds(call.address.turn_id) == ["ready"]
    assert await harness.value("SELECT count(*) FROM model_calls WHERE turn_id = $1", call.address.turn_id) == 0
    assert (await ask(harness, await begun(harness, "desk"))).problem is None
    assert await harness.value("SELECT count(*) FROM day_usage WHERE agent_id = 'desk'") == 0, "it has no limit: no row"


async def test_the_tenants_budget_counts_what_was_used_before_it(harness: Harness, unlimited_again: None) -> None:
    await ask(harness, await begun(harness, "desk", Line("before", tokens=500)))
    counted = await used_by(harness)
    await limit_tenant(harness, max_tokens=counted + 5)
    assert (await ask(harness, await begun(harness, "desk"))).problem is None
    assert (await row(harness, TENANT))[0] == counted + 10
    await assert_refused(harness, await begun(harness, "desk"), DAY_TOKENS_SPENT)
    await limit_tenant(harness)
    assert (await ask(harness, await begun(harness, "desk"))).problem is None, "no limit, from the next call on"
    audited = await harness.rows("SELECT data FROM audit_trail WHERE kind = 'day_limits.set' ORDER BY id DESC LIMIT 2")
    assert [row["data"]["max_tokens"] for row in audited] == [None, counted + 5]
    assert (await row(harness, TENANT))[0] == counted + 20, "counted on, so that a new limit knows the whole day"


async def test_the_reservation_of_a_dead_attempt_passes_to_the_next_one(harness: Harness) -> None:
    agent_id = await limited_agent(harness, max_tokens=1_000)
    call = await begun(harness, agent_id, Line("slow", waits="looked"))
    async with running(harness, call) as zombie:
        assert (await row(harness, agent_id))[2] == HOLDS_TOKENS
        second = asyncio.create_task(ask(harness, call, 2))
        await until_asked(harness, call, 2)
        assert await row(harness, agent_id) == (HOLDS_TOKENS, 20, HOLDS_TOKENS, 20), "it may have used all that it held"
        assert await assumed(harness, agent_id) == (HOLDS_TOKENS, 20)
    late = await zombie
    assert late.problem is not None and late.problem.code == "stale_attempt"
    assert (await second).problem is None
    assert await row(harness, agent_id) == (20, 20, 0, 0), "both were paid"
    assert await assumed(harness, agent_id) == (0, 0)
    assert await used_by(harness, agent_id) == 20


async def test_a_lost_call_counts_in_full_until_its_usage_is_known(harness: Harness) -> None:
    agent_id = await limited_agent(harness, max_tokens=1_000)
    call = await begun(harness, agent_id, Line("slow", waits="looked"))
    async with running(harness, call) as lost:
        await end_turn(harness, call.address)
        assert await row(harness, agent_id) == (HOLDS_TOKENS, 20, 0, 0)
        assert await used_by(harness, agent_id) == HOLDS_TOKENS
        async with harness.db.transaction("local") as tx:
            agent = await harness.deps.agent_cache.read_pinned(tx, agent_id, await harness.version(agent_id))
            seen: Any = await day_limits_shown(tx, [agent])
        assert (seen["agents"][0]["assumed_tokens"], seen["agents"][0]["assumed_cost_usd"]) == (HOLDS_TOKENS, 0.00002)
    await lost
    assert await used_by(harness, agent_id) == 10
    assert await row(harness, agent_id) == (10, 10, 0, 0), "the provider was paid"
    assert await assumed(harness, agent_id) == (0, 0)


async def test_a_failed_call_reserves_nothing_while_it_waits_for_its_retry(harness: Harness) -> None:
    agent_id = await limited_agent(harness, max_tokens=100_000)
    call = await begun(harness, agent_id, Line("yes", fails=1))
    with pytest.raises(ApplicationError):
        await ask(harness, call)
    used, cost, held, held_cost = await row(harness, agent_id)
    turn = await harness.value("SELECT input_tokens + output_tokens FROM turns WHERE id = $1", call.address.turn_id)
    assert (held, held_cost, used) == (0, 0, turn) and used > 0, "what broke off was begun, and is counted"
    assert cost == used, "a micro-dollar a token, of what broke off too"
    for _ in ("settled", "asked for again"):
        reply = await ask(harness, call, 2)
        assert reply.problem is None and reply.turn_used is not None
        assert (reply.usage.tokens, reply.turn_used.tokens, reply.turn_used.cost_microusd) == (10, used + 10, cost + 10)
    assert (await row(harness, agent_id))[:2] == (used + 10, cost + 10)


@pytest.mark.sized
async def test_any_order_of_claims_deaths_settles_and_ends_leaves_nothing_reserved(harness: Harness) -> None:
    agent_id = await limited_agent(harness, max_tokens=2_000)
    dice = random.Random(20)
    for _ in range(sized(6, 2)):
        calls = [await begun(harness, agent_id, Line("yes", seconds=dice.random() / 20)) for _ in range(8)]
        work: list[Any] = [ask(harness, call, attempt) for call in calls for attempt in range(1, dice.randint(2, 4))]
        work += [end_turn(harness, call.address, dice.random() / 20) for call in calls if dice.random() < 0.4]
        dice.shuffle(work)
        for outcome in await gathered(*work):
            assert not isinstance(outcome, BaseException), outcome
        for call in calls:
            await end_turn(harness, call.address)
        used, _, held, held_cost = await row(harness, agent_id)
        assert (held, held_cost) == (0, 0)
        assert used == await used_by(harness, agent_id) < 2_000 + HOLDS_TOKENS


async def end_turn(harness: Harness, address: TurnAddress, after_seconds: float = 0) -> None:
    await asyncio.sleep(after_seconds)
    await harness.finish(address, TurnStatus.FAILED)


@pytest.mark.sized
async def test_calls_that_need_two_budgets_never_deadlock(harness: Harness, unlimited_again: None) -> None:
    await limit_tenant(harness, max_tokens=10**9)
    agents = [f"a{new_id()[-8:]}" for _ in range(3)]
    await publish(harness, DayLimits(max_tokens=10**9), *agents)
    calls = [await begun(harness, agents[number % 3], Line("yes", seconds=0.01)) for number in range(sized(60, 18))]
    for reply in await gathered(*(ask(harness, call) for call in calls)):
        assert isinstance(reply, ModelReply) and reply.problem is None, reply
    for agent_id in agents:
        assert (await row(harness, agent_id))[0] == 10 * len(calls) // 3


@pytest.fixture
async def empty_usage(harness: Harness) -> AsyncIterator[None]:
    """Starts without usage today, and removes all limits afterwards."""
    await forget(harness)
    yield
    await forget(harness)


async def forget(harness: Harness) -> None:
    await harness.write("DELETE FROM day_limits")
    await harness.write("DELETE FROM day_usage")


async def test_calls_from_before_a_budget_was_set_count_in_it(harness: Harness, empty_usage: None) -> None:
    broken = await begun(harness, "desk", Line("half an answer", fails=1))
    earlier = await used_by(harness)
    with pytest.raises(ApplicationError):
        await ask(harness, broken)
    before = await used_by(harness)
    assert before > earlier, "the provider was paid for it"
    calls = [await begun(harness, "desk", Line("slow", waits="begun", tokens=30)) for _ in range(4)]
    with harness.model.held("begun"):
        under_way = [asyncio.create_task(ask(harness, call)) for call in calls]
        for call in calls:
            await until_asked(harness, call)
        await limit_tenant(harness, max_tokens=before + 100)
        assert (await ask(harness, await begun(harness, "desk"))).problem is None, "it makes the day's row"
        assert (await row(harness, TENANT))[0] == before + 10
    assert {reply.problem for reply in await asyncio.gather(*under_way)} == {None}
    assert (await row(harness, TENANT))[::2] == (before + 130, 0) == (await used_by(harness), 0)
    await assert_refused(harness, await begun(harness, "desk"), DAY_TOKENS_SPENT)


async def test_a_call_of_the_tenants_budget_counts_in_its_agents_later_one(harness: Harness, empty_usage: None) -> None:
    agent_id = f"a{new_id()[-8:]}"
    await publish(harness, None, agent_id)
    await limit_tenant(harness, max_tokens=10**9)
    call = await begun(harness, agent_id, Line("slow", waits="published", tokens=30))
    async with running(harness, call, "published") as first:
        await publish(harness, DayLimits(max_tokens=1_000), agent_id)
        assert (await ask(harness, await begun(harness, agent_id))).problem is None
    assert (await first).problem is None
    assert (await row(harness, agent_id))[::2] == (40, 0)
    assert (await row(harness, TENANT))[::2] == (await used_by(harness), 0), "counted once in each"


async def test_an_attempt_that_breaks_off_counts_in_a_budget_that_began_beside_it(
    harness: Harness, empty_usage: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, breaks = await begun(harness, "desk"), asyncio.Event()

    async def stalls(model: MessageScriptModel, request: ProviderRequest) -> AsyncGenerator[Chunk, None]:
        model.requests[request.idempotency_key] += 1
        yield TextDelta("half")
        await breaks.wait()
        raise UpstreamUnavailable("model_unavailable", "The model broke off.", retry_after_seconds=0.05)

    with monkeypatch.context() as patch:
        patch.setattr(MessageScriptModel, "stream", stalls)
        broken = asyncio.create_task(ask(harness, call))
        await until_asked(harness, call)
    await limit_tenant(harness, max_tokens=10**9)
    assert (await ask(harness, await begun(harness, "desk"))).problem is None
    counted = (await row(harness, TENANT))[0]
    breaks.set()
    with pytest.raises(ApplicationError):
        await broken
    assert (await row(harness, TENANT))[0] == await used_by(harness) > counted


async def test_a_limit_that_was_lowered_binds_the_turns_that_began_before(harness: Harness, empty_usage: None) -> None:
    agent_id = f"a{new_id()[-8:]}"
    await publish(harness, None, agent_id)
    old = [await begun(harness, agent_id, Line("yes", tokens=30)) for _ in range(3)]
    await publish(harness, DayLimits(max_tokens=20), agent_id)
    assert (await ask(harness, old[0])).problem is None, "nothing was used yet"
    await assert_refused(harness, old[1], DAY_TOKENS_SPENT)
    assert (await row(harness, agent_id))[::2] == (30, 0)
    await publish(harness, None, agent_id)
    assert (await ask(harness, old[2])).problem is None, "and a lifted one binds no turn"
    assert (await row(harness, agent_id))[::2] == (60, 0), "what its day has come to is counted on"


async def until_waiting(harness: Harness, lock: str, *instead: asyncio.Task[ModelReply]) -> None:
    """Waits until a transaction waits for a lock of this kind, or one of these is done."""

    async def there() -> bool:
        return any(each.done() for each in instead) or bool(await harness.value(_WAITING, lock))

    await until(there)


@asynccontextmanager
async def settling(harness: Harness, call: ModelCall) -> AsyncIterator[asyncio.Task[ModelReply]]:
    """The attempt of a call that has recorded its reply and commits no sooner than this is left."""
    async with harness.db.transaction("local") as other:
        async with running(harness, call, "late") as late:
            await other.execute("SELECT FROM conversations WHERE id = $1 FOR UPDATE", call.address.conversation_id)
        await until_waiting(harness, "transactionid")
        yield late


async def test_a_settle_that_commits_as_the_days_row_is_opened_is_counted(harness: Harness, empty_usage: None) -> None:
    before = await used_by(harness)
    late, first = await begun(harness, "desk", LATE), await begun(harness, "desk")
    async with settling(harness, late) as settled:
        await limit_tenant(harness, max_tokens=10**9)
        opening = asyncio.create_task(ask(harness, first))
        await until_waiting(harness, "advisory", opening)
    assert (await settled).problem is None and (await opening).problem is None
    assert await used_by(harness) == before + 40
    assert (await row(harness, TENANT))[::2] == (before + 40, 0)


async def test_a_settle_that_comes_as_the_days_row_is_opened_waits(harness: Harness, empty_usage: None) -> None:
    before = await used_by(harness)
    call = await begun(harness, "desk", LATE)
    async with harness.db.transaction("local") as tx:
        async with running(harness, call, "late") as late:
            await budgets.open_day(tx, [TENANT])
        await until_waiting(harness, "advisory", late)
        assert await tx.fetchval("SELECT used_tokens FROM day_usage WHERE agent_id = ''") == before
    assert (await late).problem is None
    assert (await row(harness, TENANT))[::2] == (before + 30, 0)


async def test_taking_over_a_dead_call_adds_the_days_row_before_it_locks_one(
    harness: Harness, empty_usage: None
) -> None:
    agent_id = await limited_agent(harness, max_tokens=10**9)
    dead = await begun(harness, agent_id, Line("slow", waits="taken over"))
    late = await begun(harness, agent_id, LATE)
    async with running(harness, dead, "taken over") as zombie:
        async with settling(harness, late) as settled:
            await limit_tenant(harness, max_tokens=10**9)
            over = asyncio.create_task(ask(harness, dead, 2))
            await until_waiting(harness, "advisory", over)
        await until_asked(harness, dead, 2)
    assert (await settled).problem is None and (await over).problem is None
    assert (await zombie).problem is not None
    assert (await row(harness, agent_id))[::2] == (50, 0), "the dead one came back: it was paid too"
    assert (await row(harness, TENANT))[::2] == (await used_by(harness), 0)


async def test_a_new_day_starts_at_zero_and_a_call_counts_on_the_day_of_its_claim(harness: Harness) -> None:
    agent_id = await limited_agent(harness, max_tokens=10)
    call = await begun(harness, agent_id, Line("late", waits="midnight"))
    async with running(harness, call, "midnight") as late:
        await midnight(harness, agent_id, call.address)
    assert (await late).problem is None
    assert await row(harness, agent_id) == (0, 0, 0, 0), "nothing of it is today's"
    assert await days(harness, agent_id) == [(10, 0)]
    assert (await ask(harness, await begun(harness, agent_id))).problem is None, "today's budget is not met"


async def test_a_call_that_died_yesterday_is_taken_over_on_todays_budget(harness: Harness) -> None:
    agent_id = await limited_agent(harness, max_tokens=1_000)
    call = await begun(harness, agent_id, Line("slow", waits="looked"))
    async with running(harness, call) as zombie:
        await midnight(harness, agent_id, call.address)
        second = asyncio.create_task(ask(harness, call, 2))
        await until_asked(harness, call, 2)
        assert await days(harness, agent_id) == [(HOLDS_TOKENS, 0), (0, HOLDS_TOKENS)]
    assert {type(each) for each in await gathered(zombie, second)} == {ModelReply}


async def days(harness: Harness, agent_id: str) -> list[tuple[int, int]]:
    sql = "SELECT used_tokens, held_tokens FROM day_usage WHERE agent_id = $1 ORDER BY day"
    return [tuple(each) for each in await harness.rows(sql, agent_id)]


async def midnight(harness: Harness, agent_id: str, address: TurnAddress) -> None:
    """Make all of today's yesterday's, behind the program's back."""
    await harness.write("UPDATE day_usage SET day = day - 1 WHERE agent_id = $1", agent_id)
    calls = "budget_day = budget_day - 1, started_at = started_at - interval '1 day'"
    await harness.write(f"UPDATE model_calls SET {calls} WHERE turn_id = $1", address.turn_id)
    await harness.write("UPDATE turns SET created_at = created_at - interval '1 day' WHERE id = $1", address.turn_id)
