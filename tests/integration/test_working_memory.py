"""Working memory: each field's own time by the database's clock, one cap, writers one after another (S0-29)."""

import asyncio
from datetime import timedelta

import pytest

from perdure.activities.memory import MemoryActivities
from perdure.activities.tools import ToolActivities
from perdure.contracts.activities import LoadAsk
from perdure.contracts.calls import ToolOutcome
from perdure.contracts.errors import CallerError
from perdure.contracts.turns import TurnAddress
from perdure.store.memory import facts, working_memory
from perdure.store.memory.working_memory import MOST_BYTES, TTL_SECONDS
from tests.desk import Desk, gathered

LEFT = "SELECT field, round(extract(epoch FROM expires_at - now()))::int AS seconds FROM working_memory"


async def put(desk: Desk, conversation_id: str, ttl_seconds: int = TTL_SECONDS, **fields: object) -> int:
    async with desk.db.transaction("local") as tx:
        await working_memory.hold(tx, conversation_id)
        return await working_memory.merge(tx, "local", conversation_id, dict(fields), ttl_seconds)  # type: ignore[arg-type]


async def got(desk: Desk, conversation_id: str, tenant: str = "local") -> dict[str, object]:
    async with desk.db.transaction(tenant) as tx:
        return dict(await working_memory.read(tx, conversation_id))


async def left(desk: Desk, conversation_id: str) -> dict[str, int]:
    rows = await desk.rows(f"{LEFT} WHERE conversation_id = $1", conversation_id)
    return {row["field"]: row["seconds"] for row in rows}


async def age(desk: Desk, conversation_id: str, by: timedelta) -> None:
    """As if that much time had passed."""
    older = "UPDATE working_memory SET expires_at = expires_at - $2::interval WHERE conversation_id = $1"
    await desk.write(older, conversation_id, by)


async def test_a_write_merges_null_removes_and_a_field_lives_as_long_as_its_write_said(desk: Desk) -> None:
    conversation_id = await desk.conversation()
    await put(desk, conversation_id, short=60, kept={"c": [None, "x"]}, gone=1, ttl_seconds=60)
    await put(desk, conversation_id, kept=2, gone=None, nobody=None)
    assert await got(desk, conversation_id) == {"short": 60, "kept": 2}
    await put(desk, conversation_id, short=60, ttl_seconds=60)
    assert await left(desk, conversation_id) == {"short": 60, "kept": TTL_SECONDS}
    await age(desk, conversation_id, timedelta(seconds=61))
    assert await got(desk, conversation_id) == {"kept": 2}


async def test_each_read_and_each_write_gives_every_live_field_its_own_time_again(desk: Desk) -> None:
    conversation_id = await desk.conversation()
    await put(desk, conversation_id, ttl_seconds=3_600, short=1)
    await put(desk, conversation_id, long=1)
    for touch in (lambda: got(desk, conversation_id), lambda: put(desk, conversation_id, other=None)):
        await age(desk, conversation_id, timedelta(seconds=3_000))
        assert await left(desk, conversation_id) == {"short": 600, "long": TTL_SECONDS - 3_000}
        await touch()
        assert await left(desk, conversation_id) == {"short": 3_600, "long": TTL_SECONDS}


async def test_a_turn_that_begins_reads_and_so_keeps_them_alive(desk: Desk) -> None:
    address = await desk.plan(("look", {}))
    await put(desk, address.conversation_id, note="here")
    await age(desk, address.conversation_id, timedelta(hours=20))
    ask = LoadAsk(address=address, agent_id="desk", agent_version=await desk.version())
    loaded = await desk.activity(MemoryActivities(desk.deps).load, ask)
    assert loaded.injected_fields == 1
    assert await left(desk, address.conversation_id) == {"note": TTL_SECONDS}


async def test_what_does_not_fit_is_refused_whole_and_what_just_fits_is_taken(desk: Desk) -> None:
    conversation_id = await desk.conversation()
    room = MOST_BYTES - len("a") - len('""')
    assert await put(desk, conversation_id, a="x" * room) == MOST_BYTES
    with pytest.raises(CallerError) as refused:
        await put(desk, conversation_id, b=0)
    with pytest.raises(CallerError):
        await put(desk, conversation_id, a="é" * (MOST_BYTES // 2))
    assert (refused.value.status, refused.value.code) == (413, "working_memory_full")
    assert refused.value.details == {"most_bytes": MOST_BYTES, "bytes": MOST_BYTES + 2}
    assert list(await got(desk, conversation_id)) == ["a"]
    await put(desk, conversation_id, a=None, b="y" * room)
    assert list(await got(desk, conversation_id)) == ["b"], "what is removed makes room in the same write"


async def test_what_has_expired_takes_no_room_and_goes_with_the_next_write_or_sweep(desk: Desk) -> None:
    first, second = await desk.conversation(), await desk.conversation()
    for conversation_id in (first, second):
        await put(desk, conversation_id, big="x" * 60_000)
        await age(desk, conversation_id, timedelta(hours=25))
    await put(desk, first, big2="x" * 60_000)
    assert list(await left(desk, first)) == ["big2"]
    async with desk.db.transaction("local") as tx:
        await working_memory.forget_expired(tx)
    assert await left(desk, second) == {} and list(await left(desk, first)) == ["big2"]


async def test_writers_of_one_conversation_never_go_over_the_cap_together(desk: Desk) -> None:
    conversation_id = await desk.conversation()
    writes = (put(desk, conversation_id, TTL_SECONDS, **{f"f{number}": "x" * 9_000}) for number in range(20))
    ended = await asyncio.gather(*writes, return_exceptions=True)
    refused = [each for each in ended if isinstance(each, CallerError)]
    assert (len(refused), len(await got(desk, conversation_id))) == (13, 7)


async def test_readers_turns_and_writers_of_one_conversation_do_not_stop_each_other(desk: Desk) -> None:
    """Locks are taken in one order, or not waited for: a deadlock would raise here."""
    address = await desk.plan(("jot", {"text": "a"}), ("jot", {"text": "b"}), ("jot", {"text": "c"}))
    conversation_id = address.conversation_id
    await put(desk, conversation_id, **{f"f{number}": number for number in range(10)})
    ask = LoadAsk(address=address, agent_id="desk", agent_version=await desk.version())

    async def again(number: int) -> None:
        await put(desk, conversation_id, **{f"f{(number * 7 + step) % 10}": number for step in range(10)})
        await got(desk, conversation_id)
        await desk.activity(MemoryActivities(desk.deps).load, ask, run_id=f"run-{number}")

    calls = (desk.run_tool(address, f"t1.{number}") for number in range(3))
    ended = await asyncio.gather(*(again(number) for number in range(12)), *calls, return_exceptions=True)
    assert [each for each in ended if isinstance(each, BaseException)] == []
    assert len(await got(desk, conversation_id)) == 11


async def test_another_tenant_sees_none_of_it_and_cannot_write_it(desk: Desk) -> None:
    conversation_id = await desk.conversation()
    await put(desk, conversation_id, mine=1)
    assert await got(desk, conversation_id, tenant="other") == {}
    async with desk.db.transaction("other") as tx:
        await working_memory.remove(tx, conversation_id, None)
    assert await got(desk, conversation_id) == {"mine": 1}


async def test_a_tool_that_remembers_says_so_and_too_much_is_told_to_it_and_its_effect_stands(desk: Desk) -> None:
    address = await desk.plan(("jot", {"text": "x" * 70_000}))
    outcome = await desk.run_tool(address)
    assert outcome.state == "done", "a model that took it for failed would do it again"
    assert outcome.message is not None and '"code":"working_memory_full"' in outcome.message.text
    assert await desk.value("SELECT count(*) FROM entities WHERE created_by_turn = $1", address.turn_id) == 1
    assert await got(desk, address.conversation_id) == {}
    kinds = await desk.kinds(address.turn_id)
    assert "memory.write.blocked" in kinds and "memory.write.created" not in kinds
    address = await desk.plan(("jot", {"text": "small"}))
    await desk.run_tool(address)
    created = "SELECT data, call_id FROM events WHERE turn_id = $1 AND kind = 'memory.write.created'"
    (row,) = await desk.rows(created, address.turn_id)
    assert tuple(row) == ({"scope": "working", "fields": ["jotting"]}, "t1.0")


RECENT = "recent_entity_context"


async def made(desk: Desk, *names: str) -> list[str]:
    async with desk.db.transaction("local") as tx:
        return [(await facts.create_entity(tx, "thing", name, {}, None, None)).id for name in names]


async def resolved(desk: Desk, address: TurnAddress, call_id: str, recent: list[str]) -> ToolOutcome:
    """Run a call in a round that began with these."""
    call = await desk.tool_call(address, call_id)
    ask = call.ask.model_copy(update={"state": {RECENT: recent}})
    return await desk.activity(ToolActivities(desk.deps).run, call.model_copy(update={"ask": ask}))


async def remembered(desk: Desk, address: TurnAddress) -> list[str]:
    found = (await got(desk, address.conversation_id))[RECENT]
    assert isinstance(found, list)
    return [str(each) for each in found]


async def test_entities_that_are_resolved_side_by_side_are_all_remembered(desk: Desk) -> None:
    names = [f"Side {number}" for number in range(4)]
    ids = await made(desk, *names)
    address = await desk.plan(*(("entity_resolve", {"name": name}) for name in names))
    ended = await gathered(*(resolved(desk, address, f"t1.{place}", ["before"]) for place in range(4)))
    assert [each for each in ended if isinstance(each, BaseException)] == []
    found = await remembered(desk, address)
    assert sorted(found) == sorted(["before", *ids]) and found[0] == "before"


async def test_the_newest_stands_last_and_ten_are_kept(desk: Desk) -> None:
    one, other = await made(desk, "Left", "Right")
    address = await desk.plan(*(("entity_resolve", {"name": name}) for name in ("Left", "Right", "Left")))
    before = [f"e{number}" for number in range(10)]
    for call_id in ("t1.0", "t1.1"):
        await resolved(desk, address, call_id, before)
    assert await remembered(desk, address) == [*before[2:], one, other]
    await resolved(desk, address, "t1.2", [*before[2:], one, other])
    assert await remembered(desk, address) == [*before[2:], other, one], "who has seen them all moves one to the end"
