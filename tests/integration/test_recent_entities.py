"""The recent entities in working memory, where several calls of one round each name one."""

from perdure.activities.tools import ToolActivities
from perdure.contracts.calls import ToolOutcome
from perdure.contracts.turns import TurnAddress
from perdure.store.memory import facts, working_memory
from tests.desk import Desk, gathered

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
    async with desk.db.transaction("local") as tx:
        found = (await working_memory.read(tx, address.conversation_id))[RECENT]
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
    address = await desk.plan(("entity_resolve", {"name": "Left"}), ("entity_resolve", {"name": "Right"}))
    before = [f"e{number}" for number in range(10)]
    for call_id in ("t1.0", "t1.1"):
        await resolved(desk, address, call_id, before)
    assert await remembered(desk, address) == [*before[2:], one, other]


async def test_a_next_round_that_has_seen_them_all_writes_what_it_says(desk: Desk) -> None:
    first, second = await made(desk, "Early", "Late")
    address = await desk.plan(("entity_resolve", {"name": "Early"}), ("entity_resolve", {"name": "Late"}))
    await resolved(desk, address, "t1.0", [second])
    assert await remembered(desk, address) == [second, first]
    await resolved(desk, address, "t1.1", [second, first])
    assert await remembered(desk, address) == [first, second]
