"""Whole turns of an agent with episodic memory: what one turn leaves, a later one of the same user finds."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest
from temporalio.client import Client

from perdure.contracts.agents import MemoryPolicy
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.agents.prompts import memory_message
from perdure.store.database import Database
from perdure.store.delivery import outbox
from perdure.store.memory import episodes
from perdure.store.turns.conversations import delete_conversation
from perdure.store.turns.summaries import store_missed
from perdure.worker.embeddings import embed_due
from tests.conftest import Urls, as_owner
from tests.doubles.desk_variants import as_desk
from tests.doubles.embedder import Hashing
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app
from tests.served_turns import ALL_KINDS, Served, serve

HEADING = memory_message({"note": 1}).splitlines()[0]


@pytest.fixture(scope="module")
def hashing() -> Hashing:
    """Away, unless a test lets it be there."""
    made = Hashing()
    made.down = True
    return made


@pytest.fixture(scope="module")
async def episodic(harness: Harness, temporal: Client, hashing: Hashing) -> AsyncIterator[Served]:
    """The desk, whose agent `desk` has episodic memory and whose others have not."""
    await publish_app(
        harness.owner_url, [*app_agents()[0], ("desk", as_desk(memory=MemoryPolicy(episodic=True, hits=2)))]
    )
    harness.deps = replace(harness.deps, embedder=hashing)
    async with AsyncExitStack() as stack:
        yield Served(harness, temporal, await serve(stack, harness, ALL_KINDS))


async def turn(served: Served, *lines: Line, **given: object) -> TurnAddress:
    address, row = await served.run_to_end(*lines, **given)
    assert row["status"] == TurnStatus.COMPLETED.value, row["problem"]
    return address


async def test_a_turns_answer_is_recalled_in_the_next_conversation(episodic: Served) -> None:
    first = await turn(episodic, Line("The zebra lives in enclosure nine."))
    (kept,) = await episodic.harness.rows("SELECT summary FROM episodes WHERE turn_id = $1", first.turn_id)
    assert kept["summary"].endswith("The zebra lives in enclosure nine.")
    assert await episodic.harness.event_data(first.turn_id, "memory.write.created") == [{"scope": "episodic"}]
    second = await turn(episodic, Line("the zebra again"))
    (searched,) = await episodic.harness.event_data(second.turn_id, "memory.search")
    assert (searched["status"], searched["by"]) == ("ok", "full_text")
    (request,) = episodic.sent_to_model(second)
    told = [message["content"] for message in request if HEADING in str(message["content"])]
    assert len(told) == 1 and "The zebra lives in enclosure nine." in told[0]


async def test_the_recalled_text_is_the_same_in_every_call_of_a_turn(episodic: Served) -> None:
    texts = []
    for number in range(4):
        asking = Line(f"giraffe {number}", [("look", {"what": "giraffe"})])
        address = await turn(episodic, asking, Line("the giraffe is well"))
        requests = episodic.sent_to_model(address)
        parts = {str(each["content"]) for sent in requests for each in sent if HEADING in str(each["content"])}
        assert len(requests) == 2 and len(parts) <= 1
        texts.append("".join(parts))
    assert texts[3].count(HEADING) == 1
    (loaded,) = await episodic.harness.event_data(address.turn_id, "memory.context.loaded")
    assert loaded["episodes"] == 2, "as many as the agent asks for, of three that match"


async def test_a_conversation_does_not_recall_its_own_turns(episodic: Served) -> None:
    first = await turn(episodic, Line("The okapi lives in enclosure four."))
    second = await turn(episodic, Line("the okapi again"), conversation_id=first.conversation_id)
    (request,) = episodic.sent_to_model(second)
    recalled = [str(message["content"]) for message in request if HEADING in str(message["content"])]
    assert not [text for text in recalled if "enclosure four" in text]


async def test_a_turn_that_does_not_complete_stores_no_episode(episodic: Served) -> None:
    address = await episodic.begin(Line("never", [("pay", {})]))
    await episodic.until(address, TurnStatus.AWAITING_APPROVAL)
    await episodic.stop(address)
    await episodic.until(address, TurnStatus.STOPPED)
    assert await episodic.harness.rows("SELECT id FROM episodes WHERE turn_id = $1", address.turn_id) == []


@pytest.mark.parametrize("error", [OSError("no route to memory"), ValueError("as an embedder raises")])
async def test_a_turn_continues_if_memory_is_unavailable(
    episodic: Served, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(episodes, "find", AsyncMock(side_effect=error))
    address = await turn(episodic, Line("on it goes"))
    (searched,) = await episodic.harness.event_data(address.turn_id, "memory.search")
    assert searched == {"scope": "episodic", "status": "unavailable", "hits": []}
    assert await episodic.harness.event_data(address.turn_id, "memory.context.loaded") == []


@pytest.mark.parametrize(("broken", "mended"), [
    ("ALTER TABLE perdure.episodes RENAME TO gone", "ALTER TABLE perdure.gone RENAME TO episodes"),
    ("ALTER TABLE perdure.episodes RENAME summary TO a", "ALTER TABLE perdure.episodes RENAME a TO summary"),
    ("REVOKE INSERT ON perdure.episodes FROM perdure_app", "GRANT INSERT ON perdure.episodes TO perdure_app"),
    ("BEGIN; LOCK TABLE perdure.episodes IN ACCESS EXCLUSIVE MODE", "ROLLBACK"),
], ids=["missing", "altered", "revoked", "locked"])  # fmt: skip
async def test_a_turn_ends_completed_without_its_table_of_episodes_and_the_summary_is_stored_later(
    episodic: Served, urls: Urls, broken: str, mended: str
) -> None:
    relay = await Database.connect(urls.relay, max_connections=2)
    summaries = "SELECT summary FROM episodes WHERE turn_id = $1"
    try:
        async with as_owner(urls.owner) as owner:
            await owner.execute(broken)
            try:
                address = await turn(episodic, Line("the quokka"))
                async with relay.transaction("local") as tx:
                    if "perdure_app" not in broken:  # the relay has its own rights
                        assert await store_missed(tx) == (1, True)
            finally:
                await owner.execute(mended)
        (searched,) = await episodic.harness.event_data(address.turn_id, "memory.search")
        assert searched["status"] == ("ok" if "REVOKE" in broken else "unavailable")
        blocked = {"scope": "episodic", "code": "store_unavailable"}
        assert await episodic.harness.event_data(address.turn_id, "memory.write.blocked") == [blocked]
        async with relay.transaction("local") as tx:
            assert await store_missed(tx) == (0, False)
        assert len(await episodic.harness.rows(summaries, address.turn_id)) == 1
        assert await episodic.harness.rows("SELECT FROM outbox WHERE turn_id = $1", address.turn_id) == []
    finally:
        await relay.close()


async def test_the_summary_of_a_deleted_conversation_is_not_stored_later(episodic: Served, urls: Urls) -> None:
    address = await turn(episodic, Line("the numbat"))
    await episodic.harness.write("DELETE FROM episodes WHERE turn_id = $1", address.turn_id)
    async with episodic.harness.db.transaction("local") as tx:
        await outbox.leave_summary(tx, "local", address.turn_id)
        await delete_conversation(tx, address.conversation_id, episodic.harness.people["requester"].user_id)
    async with episodic.harness.db.transaction("local") as tx:
        assert await store_missed(tx) == (0, False)
    for table in ("episodes", "outbox"):
        assert await episodic.harness.rows(f"SELECT FROM {table} WHERE turn_id = $1", address.turn_id) == []


async def test_an_agent_without_memory_neither_searches_nor_stores(episodic: Served) -> None:
    address, _ = await episodic.run_to_end(Line("the zebra"), agent_id="hasty")
    kinds = await episodic.harness.kinds(address.turn_id)
    assert not [kind for kind in kinds if kind.startswith("memory.")]
    assert await episodic.harness.rows("SELECT id FROM episodes WHERE turn_id = $1", address.turn_id) == []


async def test_with_a_model_hits_are_scored_by_cosine(episodic: Served, hashing: Hashing, urls: Urls) -> None:
    await turn(episodic, Line("the okapi sleeps in the barn"))
    relay = await Database.connect(urls.relay, max_connections=2)
    hashing.down = False
    try:
        while await embed_due(relay, hashing, "local"):
            pass
        address = await turn(episodic, Line("the okapi sleeps in the barn"))
    finally:
        hashing.down = True
        await relay.close()
    (searched,) = await episodic.harness.event_data(address.turn_id, "memory.search")
    assert (searched["status"], searched["by"]) == ("ok", "cosine")
    (loaded,) = await episodic.harness.event_data(address.turn_id, "memory.context.loaded")
    assert loaded == {"fields": [], "episodes": 2}
    assert "the okapi sleeps in the barn" in str(episodic.sent_to_model(address))
