"""The fence in Valkey, by examples and against the model that the property tests of perdure/core/events/stream.py
trust."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from perdure.activities.model import Speaker
from perdure.contracts.turns import TurnAddress
from perdure.core.events.stream import CallKey, Cursor, TokenBatch
from perdure.local import DataParts
from perdure.store.database import new_id
from perdure.store.events.live import LIVE_ENTRIES, LIVE_SECONDS, Appended, LiveTokens, stream_and_epoch
from perdure.store.valkey import Valkey
from tests.live_model import LiveModel
from tests.scale import sized


@pytest.fixture(scope="module")
async def valkey(parts: DataParts) -> AsyncIterator[Valkey]:
    assert parts.redis_url is not None
    client = Valkey.connect(parts.redis_url)
    yield client
    await client.close()


@pytest.fixture(scope="module")
def live(valkey: Valkey) -> LiveTokens:
    return LiveTokens(valkey)


@pytest.fixture
def address() -> TurnAddress:
    return TurnAddress(tenant_id="local", conversation_id=new_id(), turn_id="turn")


async def all_tokens(live: LiveTokens, address: TurnAddress) -> TokenBatch:
    return await live.tokens(address.tenant_id, address.conversation_id, "", "0-0")


async def test_pieces_come_back_in_order_with_their_place(live: LiveTokens, address: TurnAddress) -> None:
    for start, text in ((0, "Hé"), (2, "llo 😀"), (7, "!")):
        assert await live.append(address, "m1", epoch=1, sequence=start, text=text) is Appended.ACCEPTED
    batch = await all_tokens(live, address)
    assert [(entry.start, entry.text) for entry in batch.entries] == [(0, "Hé"), (2, "llo 😀"), (7, "!")]
    rest = await live.tokens("local", address.conversation_id, str(batch.epoch), batch.entries[1].id)
    assert [entry.text for entry in rest.entries] == ["!"]


async def test_reasoning_lies_between_pieces_of_the_text_and_counts_for_itself(
    live: LiveTokens, address: TurnAddress
) -> None:
    async with Speaker(live, address, "m1", 1) as speaker:
        for thought, said in (("Hm. ", "Hello "), ("Well. ", "there")):
            assert await speaker.think(thought)
            assert await speaker.say(said)
    entries = (await all_tokens(live, address)).entries
    assert [(entry.thinking, entry.thought, entry.start, entry.text) for entry in entries] == [
        (True, 0, 0, "Hm. "),
        (False, 4, 0, "Hello "),
        (True, 4, 6, "Well. "),
        (False, 10, 6, "there"),
    ]


async def test_many_places_are_read_in_one_round_trip_also_after_the_scripts_are_forgotten(
    live: LiveTokens, valkey: Valkey, address: TurnAddress
) -> None:
    places = [address.model_copy(update={"conversation_id": new_id()}) for _ in range(150)]
    await asyncio.gather(*(live.append(each, "m1", epoch=1, sequence=0, text=each.turn_id) for each in places))
    await valkey.client.script_flush()
    batches = await asyncio.gather(*(all_tokens(live, each) for each in places))
    assert [[entry.text for entry in batch.entries] for batch in batches] == [["turn"]] * 150


async def test_an_entry_that_does_not_read_is_an_error_of_its_own_readers_and_nobody_waits_for_ever(
    live: LiveTokens, valkey: Valkey, address: TurnAddress
) -> None:
    spoilt, places = address, [address.model_copy(update={"conversation_id": new_id()}) for _ in range(3)]
    for each in (spoilt, *places):
        await live.append(each, "m1", epoch=1, sequence=0, text="well")
    stream, _ = stream_and_epoch(spoilt.tenant_id, spoilt.conversation_id)
    await valkey.client.xadd(stream, {"what": "is this"})
    async with asyncio.timeout(30):
        found = await asyncio.gather(*(all_tokens(live, each) for each in (spoilt, *places)), return_exceptions=True)
    assert isinstance(found[0], KeyError)
    assert [batch.entries[0].text for batch in found[1:] if isinstance(batch, TokenBatch)] == ["well"] * 3


async def test_a_new_attempt_begins_anew_and_the_old_one_is_stale(live: LiveTokens, address: TurnAddress) -> None:
    await live.append(address, "m1", epoch=1, sequence=0, text="old")
    await live.append(address, "m1", epoch=2, sequence=0, text="new")
    assert await live.append(address, "m1", epoch=1, sequence=3, text="zombie") is Appended.STALE
    entries = (await all_tokens(live, address)).entries
    assert [(entry.attempt, entry.begins, entry.text) for entry in entries] == [
        (1, False, "old"),
        (2, True, ""),
        (2, False, "new"),
    ]


async def test_a_stop_ends_whoever_speaks(live: LiveTokens, address: TurnAddress) -> None:
    await live.append(address, "m1", epoch=1, sequence=0, text="a")
    await live.stop(address)
    assert await live.append(address, "m1", epoch=1, sequence=1, text="b") is Appended.STOPPED
    other = address.model_copy(update={"turn_id": "other"})
    assert await live.append(other, "m1", epoch=1, sequence=0, text="c") is Appended.ACCEPTED


async def test_tenants_and_conversations_do_not_hear_each_other(live: LiveTokens, address: TurnAddress) -> None:
    await live.append(address, "m1", epoch=1, sequence=0, text="secret")
    assert (await live.tokens("other", address.conversation_id, "", "0-0")).epoch is None
    assert (await live.tokens("local", new_id(), "", "0-0")).epoch is None


async def test_everything_is_gone_after_an_hour_and_a_stream_is_trimmed(
    live: LiveTokens, valkey: Valkey, address: TurnAddress
) -> None:
    await live.append(address, "m1", epoch=1, sequence=0, text="a")
    await live.stop(address)
    keys = [key async for key in valkey.client.scan_iter(f"*{address.conversation_id}*")]
    assert len(keys) == 4
    for key in keys:
        assert 0 < await valkey.client.ttl(key) <= LIVE_SECONDS
    stream = next(key for key in keys if key.endswith(":tokens"))
    async with valkey.client.pipeline(transaction=False) as pipe:
        for _ in range(LIVE_ENTRIES + 500):
            pipe.xadd(stream, {"t": "turn", "c": "m0", "a": "1", "s": "-1", "f": "-1", "x": "filler"})
        await pipe.execute()
    other = address.model_copy(update={"turn_id": "other"})
    await live.append(other, "m1", epoch=1, sequence=0, text="b")
    assert await valkey.client.xlen(stream) < LIVE_ENTRIES + 200


@pytest.mark.timed
async def test_a_lost_valkey_is_an_answer_and_is_logged_once(address: TurnAddress) -> None:
    nowhere = Valkey.connect("redis://127.0.0.1:1/0")
    live = LiveTokens(nowhere)
    with capture_logs() as logged:
        began = time.monotonic()
        for number in range(200):
            assert await live.append(address, "m1", epoch=1, sequence=number, text="a") is Appended.DEGRADED
        await live.wake(address.conversation_id)
        await live.stop(address)
        assert await all_tokens(live, address) == TokenBatch(None)
        assert await live.marks("local", address.conversation_id, Cursor(1, "e"), [("turn", "m1")]) == {}
        assert time.monotonic() - began < 2, "nobody waits for a dead Valkey again and again"
    assert [entry["event"] for entry in logged] == ["valkey.lost"]
    await nowhere.close()


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(sized(12, 3)))
async def test_the_model_and_the_real_fence_agree(seed: int, live: LiveTokens, valkey: Valkey) -> None:
    draw = random.Random(seed)
    model = LiveModel()
    address = TurnAddress(tenant_id="local", conversation_id=new_id(), turn_id="")
    calls: list[CallKey] = [("turn1", "m1"), ("turn1", "m2"), ("turn2", "m1")]
    for _ in range(60):
        what = draw.random()
        if what < 0.04:
            await valkey.client.flushall()
            model.flush()
        elif what < 0.08 and model.entries:
            kept = draw.randint(1, 4)
            keys = [key async for key in valkey.client.scan_iter(f"*{address.conversation_id}*:tokens")]
            await valkey.client.xtrim(keys[0], maxlen=kept, approximate=False)
            model.trim(kept)
        else:
            key, epoch, start = draw.choice(calls), draw.choice((1, 1, 2, 3)), draw.randint(0, 5)
            fence = model.fences.get(key)
            if draw.random() < 0.7:
                start = fence.end if fence is not None and fence.attempt == epoch else 0
            text, thinking, thought = draw.choice(("a", "bé", "😀cc")), draw.random() < 0.3, draw.randint(0, 5)
            if fence is not None and fence.attempt == epoch and draw.random() < 0.8:
                thought = fence.thought
            turn = address.model_copy(update={"turn_id": key[0]})
            real = await live.append(
                turn, key[1], epoch=epoch, sequence=start, text=text, thinking=thinking, thought=thought
            )
            assert real.value == model.append(key, epoch, start, text, thinking=thinking, thought=thought)
        batch = await all_tokens(live, address)
        assert [replace(e, id="") for e in batch.entries] == [replace(e, id="") for e in model.entries]
        for at in (0, len(model.entries) // 2, len(model.entries) - 1):
            if model.entries:
                real_cursor = Cursor(1, str(batch.epoch), batch.entries[at].id)
                model_cursor = Cursor(1, model.epoch, model.entries[at].id)
                marks = await live.marks("local", address.conversation_id, real_cursor, calls)
                assert marks == model.marks(model_cursor, calls)


async def test_a_batch_is_bounded_by_its_text_and_says_that_there_is_more(
    live: LiveTokens, address: TurnAddress
) -> None:
    for number in range(40):
        await live.append(address, "m1", epoch=1, sequence=number * 2_000, text="x" * 2_000)
    batch = await all_tokens(live, address)
    assert batch.more and len(batch.entries) < 20
    rest = await live.tokens("local", address.conversation_id, str(batch.epoch), batch.entries[-1].id)
    assert rest.entries[0].start == batch.entries[-1].start + 2_000


async def test_what_a_reader_is_behind_crosses_the_wire_once_however_long_the_pieces_are(
    live: LiveTokens, valkey: Valkey, address: TurnAddress
) -> None:
    for number in range(30):
        await live.append(address, "m1", epoch=1, sequence=number * 60_000, text="x" * 60_000)
    before = (await valkey.client.info("stats"))["total_net_output_bytes"]
    epoch, entry_id, read, more = "", "0-0", 0, True
    while more:
        batch = await live.tokens("local", address.conversation_id, epoch, entry_id)
        epoch, entry_id, more = str(batch.epoch), batch.entries[-1].id if batch.entries else entry_id, batch.more
        read += sum(len(entry.text) for entry in batch.entries)
    after = (await valkey.client.info("stats"))["total_net_output_bytes"]
    assert read == 30 * 60_000 and after - before < 1.2 * read
