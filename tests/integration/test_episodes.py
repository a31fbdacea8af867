"""Episodes: kept, found by vector or by words among a user's own with an agent, embedded beside the turns (S0-30)."""

import asyncio
from collections.abc import Sequence

import pytest

from perdure.contracts.errors import CallerError
from perdure.embedding.embedder import EmbeddingUnavailable, VectorRefused
from perdure.store.database import Database
from perdure.store.memory import episodes
from perdure.store.memory.episodes import Episode, Vector
from perdure.store.turns import conversations
from perdure.worker import embeddings as remember
from perdure.worker.embeddings import embed_due
from tests.doubles.embedder import Hashing
from tests.harness import Harness

DUE = "UPDATE episodes SET embed_after = now() WHERE embedder IS NULL"


async def keep(harness: Harness, *summaries: str, by: str = "requester", agent: str = "desk", into: str = "") -> str:
    """Episodes of a conversation."""
    conversation_id = into or await harness.conversation(by=by)
    async with harness.db.transaction("local") as tx:
        for summary in summaries:
            await episodes.keep(tx, conversation_id, harness.people[by].user_id, agent, summary)
    return conversation_id


async def embedded(harness: Harness, relay: Database, embedder: Hashing) -> None:
    await harness.write(DUE)
    while await embed_due(relay, embedder, "local"):
        pass


async def found(
    harness: Harness, text: str, embedder: Hashing | None, *, agent: str, by: str = "requester", tenant: str = "local"
) -> list[Episode]:
    vector = Vector(embedder.name, embedder.vector(text)) if embedder else None
    async with harness.db.transaction(tenant) as tx:
        return await episodes.find(tx, harness.people[by].user_id, agent, text, vector, 3)


def told(near: list[Episode]) -> list[tuple[str, str]]:
    return [(each.summary, each.by) for each in near]


async def test_the_nearest_come_first_with_their_cosine_and_what_waits_for_its_vector_by_its_words_after_them(
    harness: Harness, relay: Database
) -> None:
    embedder = Hashing()
    await keep(harness, "alpha beta gamma delta", "alpha beta", "omega", "alpha psi chi rho", agent="near")
    await embedded(harness, relay, embedder)
    near = await found(harness, "alpha beta", embedder, agent="near")
    assert told(near)[:2] == [("alpha beta", "cosine"), ("alpha beta gamma delta", "cosine")] and len(near) == 3
    assert near[0].similarity == 1.0 and near[1].similarity == pytest.approx(0.7071, abs=0.001)
    await keep(harness, "heron one", agent="fresh")
    await embedded(harness, relay, embedder)
    await keep(harness, "heron two", agent="fresh")
    near = await found(harness, "heron", embedder, agent="fresh")
    assert told(near) == [("heron one", "cosine"), ("heron two", "full_text")]


async def test_without_a_vector_any_word_may_match_and_the_hit_says_so(harness: Harness) -> None:
    await keep(harness, "The printer was jammed twice", "A printing press", "Nothing of that", agent="words")
    near = await found(harness, "my printers are all jammed again & again", None, agent="words")
    assert told(near) == [("The printer was jammed twice", "full_text")]
    assert near[0].similarity is not None and 0 < near[0].similarity < 1
    for nothing in ("the of and", "' | & ! <-> :* \\ ("):
        assert await found(harness, nothing, None, agent="words") == []


async def test_nobody_finds_another_users_another_agents_or_another_tenants_episodes(
    harness: Harness, relay: Database
) -> None:
    embedder = Hashing()
    await keep(harness, "secret plan", agent="mine")
    await keep(harness, "secret plan of the reviewer", by="reviewer", agent="mine")
    await keep(harness, "secret plan of another agent", agent="theirs")
    await embedded(harness, relay, embedder)
    for searched in (embedder, None):
        assert [each.summary for each in await found(harness, "secret plan", searched, agent="mine")] == ["secret plan"]
        assert await found(harness, "secret plan", searched, agent="mine", by="admin") == []
        assert await found(harness, "secret plan", searched, agent="mine", tenant="other") == []


async def test_vectors_of_another_model_are_not_compared_and_are_made_anew(harness: Harness, relay: Database) -> None:
    old, new = Hashing("old"), Hashing("new")
    await keep(harness, "renewed text", agent="renewed")
    await embedded(harness, relay, old)
    assert told(await found(harness, "renewed text", new, agent="renewed")) == [("renewed text", "full_text")]
    async with relay.transaction("local") as tx:
        await episodes.drop_vectors_of_others(tx, new.name)
    await embedded(harness, relay, new)
    assert [each.similarity for each in await found(harness, "renewed text", new, agent="renewed")] == [1.0]
    assert told(await found(harness, "renewed text", old, agent="renewed")) == [("renewed text", "full_text")]


async def test_the_relays_loop_embeds_what_comes_once_waits_out_a_model_that_is_away_and_stops(
    harness: Harness, relay: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remember, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(remember, "OUTAGE_SECONDS", 0.02)
    embedder, stop = Hashing("loop"), asyncio.Event()
    await embedded(harness, relay, embedder)
    embedder.down = True
    await keep(harness, "a loon calls", agent="looped")
    with pytest.raises(EmbeddingUnavailable):
        await embed_due(relay, embedder, "local")
    embedder.down = False
    assert await embed_due(relay, embedder, "local") == 0, "it is not due again at once"
    embedder.down = True
    await harness.write(DUE)
    running = asyncio.create_task(remember.run_embedding(relay, embedder, stop))
    waiting = "SELECT count(*) FROM episodes WHERE agent_id = 'looped' AND embedder IS NULL AND embed_after > now()"
    await until_true(harness, waiting)
    embedder.texts.clear()
    embedder.down = False
    await harness.write(DUE)
    await until_true(harness, "SELECT count(*) FROM episodes WHERE agent_id = 'looped' AND embedder = 'loop'")
    stop.set()
    await asyncio.wait_for(running, 30)
    assert embedder.texts.count("a loon calls") == 1
    assert told(await found(harness, "a loon calls", embedder, agent="looped")) == [("a loon calls", "cosine")]
    assert await harness.value("SELECT count(*) FROM episodes WHERE embedder <> 'loop'") == 0


async def until_true(harness: Harness, sql: str) -> None:
    for _ in range(1_500):
        if await harness.value(sql):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never: {sql}")


async def test_episodes_are_listed_by_conversation_page_by_page_and_go_with_it(harness: Harness) -> None:
    conversation_id = await keep(harness, "one", "forgotten words", agent="gone")
    await keep(harness, "three", agent="gone", into=conversation_id)
    await keep(harness, "elsewhere")
    async with harness.db.transaction("local") as tx:
        first, cursor = await episodes.listed(tx, conversation_id, 2, None)
        rest, end = await episodes.listed(tx, conversation_id, 2, cursor)
        assert sorted(each.summary for each in first) == ["forgotten words", "one"] and cursor is not None
        assert [each.summary for each in rest] == ["three"] and end is None
        await conversations.delete_conversation(tx, conversation_id, harness.people["requester"].user_id)
    assert await found(harness, "forgotten words", None, agent="gone") == []
    async with harness.db.transaction("local") as tx:
        with pytest.raises(CallerError, match="conversation_not_found"):
            await conversations.get_conversation(tx, conversation_id, None)


class Poisoned(Hashing):
    """A model that makes nothing of texts with this word in them."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        if any("poison" in text for text in texts):
            raise VectorRefused("a vector without a direction")
        return await super().embed(texts)


async def test_a_text_that_has_no_vector_does_not_keep_others_from_theirs(harness: Harness, relay: Database) -> None:
    await embedded(harness, relay, Hashing())
    await keep(harness, "ibis one", "ibis of poison", "ibis two", agent="poisoned")
    assert await embed_due(relay, Poisoned(), "local") == 2
    near = await found(harness, "ibis", Poisoned(), agent="poisoned")
    assert told(near[2:]) == [("ibis of poison", "full_text")]
    assert {each.by for each in near[:2]} == {"cosine"}
    await harness.write(DUE)
    with pytest.raises(VectorRefused):
        await embed_due(relay, Poisoned(), "local")
    await harness.write("DELETE FROM episodes WHERE agent_id = 'poisoned'")


async def test_vectors_that_a_broken_model_left_are_near_to_nothing_and_stop_no_search(harness: Harness) -> None:
    await keep(harness, "stork", "crane", "egret", agent="left")
    rows = await harness.rows("SELECT id FROM episodes WHERE agent_id = 'left' ORDER BY created_at, summary")
    ids = [str(row["id"]) for row in rows]
    async with harness.db.transaction("local") as tx:
        left = ([0.0, 0.0], [1.0, 2.0, 3.0], [0.6, 0.8])
        await episodes.set_vectors(tx, [(row, Vector("m", each)) for row, each in zip(ids, left, strict=True)])
    user_id = harness.people["requester"].user_id
    for searched, similarities in (([0.6, 0.8], [1.0]), ([0.0, 0.0], []), ([1.0, 2.0, 3.0], [1.0])):
        async with harness.db.transaction("local") as tx:
            near = await episodes.find(tx, user_id, "left", "nothing of it", Vector("m", searched), 3)
        assert [each.similarity for each in near] == similarities


async def test_what_an_old_loop_embeds_after_a_roll_out_is_embedded_anew(
    harness: Harness, relay: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remember, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(remember, "SWEEP_SECONDS", 0.05)
    old, new, stop = Hashing("rolled-old"), Hashing("rolled-new"), asyncio.Event()
    running = asyncio.create_task(remember.run_embedding(relay, new, stop))
    await keep(harness, "first of the new", agent="rolled")
    await until_true(harness, "SELECT count(*) FROM episodes WHERE agent_id = 'rolled' AND embedder = 'rolled-new'")
    conversation_id, user_id = await harness.conversation(), harness.people["requester"].user_id
    async with harness.db.transaction("local") as tx:
        late = await episodes.keep(tx, conversation_id, user_id, "rolled", "late of the old")
        await episodes.set_vectors(tx, [(late, Vector(old.name, old.vector("late of the old")))])
    await until_true(harness, "SELECT count(*) = 2 FROM episodes WHERE agent_id = 'rolled' AND embedder = 'rolled-new'")
    stop.set()
    await asyncio.wait_for(running, 30)
