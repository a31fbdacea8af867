"""The fence in Valkey, by examples and against the model that unit/core/test_stream.py trusts."""

import asyncio
import random
import time
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from perdure.contracts.turns import TurnAddress
from perdure.core.events.stream import CallKey, Cursor, TokenBatch
from perdure.store.database import new_id
from perdure.store.events.live import LIVE_ENTRIES, LIVE_SECONDS, AppendResult, LiveTokens, stream_and_epoch
from perdure.store.valkey import Valkey
from tests.live_model import LiveModel
from tests.scale import sized


@pytest.fixture
def address() -> TurnAddress:
    return TurnAddress(tenant_id="local", conversation_id=new_id(), turn_id="turn")


async def all_tokens(live: LiveTokens, address: TurnAddress) -> TokenBatch:
    return await live.tokens(address.tenant_id, address.conversation_id, "", "0-0")


async def test_one_bad_position_of_many_fails_alone(live: LiveTokens, valkey: Valkey, address: TurnAddress) -> None:
    places = [address.model_copy(update={"conversation_id": new_id()}) for _ in range(150)]
    await asyncio.gather(*(live.append(each, "m1", epoch=1, sequence=0, text="well") for each in places))
    stream, _ = stream_and_epoch("local", places[0].conversation_id)
    await valkey.client.xadd(stream, {"what": "is this"})
    await valkey.client.script_flush()
    async with asyncio.timeout(30):
        found = await asyncio.gather(*(all_tokens(live, each) for each in places), return_exceptions=True)
    assert isinstance(found[0], KeyError)
    assert [batch.entries[0].text for batch in found[1:] if isinstance(batch, TokenBatch)] == ["well"] * 149


async def test_a_stop_ends_every_streaming_call(live: LiveTokens, address: TurnAddress) -> None:
    await live.append(address, "m1", epoch=1, sequence=0, text="a")
    await live.stop(address)
    assert await live.append(address, "m1", epoch=1, sequence=1, text="b") is AppendResult.STOPPED
    other = address.model_copy(update={"turn_id": "other"})
    assert await live.append(other, "m1", epoch=1, sequence=0, text="c") is AppendResult.ACCEPTED


async def test_a_stream_is_trimmed_and_ends_in_an_hour(live: LiveTokens, valkey: Valkey, address: TurnAddress) -> None:
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
    await live.append(address.model_copy(update={"turn_id": "other"}), "m1", epoch=1, sequence=0, text="b")
    assert await valkey.client.xlen(stream) < LIVE_ENTRIES + 200


@pytest.mark.timed
async def test_a_lost_valkey_costs_no_answer_and_is_logged_once(address: TurnAddress) -> None:
    nowhere = Valkey.connect("redis://127.0.0.1:1/0")
    live = LiveTokens(nowhere)
    with capture_logs() as logged:
        began = time.monotonic()
        for number in range(200):
            assert await live.append(address, "m1", epoch=1, sequence=number, text="a") is AppendResult.DEGRADED
        await live.wake(address.conversation_id)
        await live.stop(address)
        assert await all_tokens(live, address) == TokenBatch(None)
        assert await live.marks("local", address.conversation_id, Cursor(1, "e"), [("turn", "m1")]) == {}
        assert time.monotonic() - began < 2, "no call waits for a dead Valkey again and again"
    assert [entry["event"] for entry in logged] == ["valkey.lost"]
    await nowhere.close()


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(sized(12, 3)))
async def test_the_test_model_and_the_script_in_valkey_agree(seed: int, live: LiveTokens, valkey: Valkey) -> None:
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
        for elsewhere in (("other", address.conversation_id), ("local", new_id())):
            assert (await live.tokens(*elsewhere, "", "0-0")).epoch is None, "no other reader receives it"
        assert [replace(e, id="") for e in batch.entries] == [replace(e, id="") for e in model.entries]
        for at in (0, len(model.entries) // 2, len(model.entries) - 1):
            if model.entries:
                real_cursor = Cursor(1, str(batch.epoch), batch.entries[at].id)
                model_cursor = Cursor(1, model.epoch, model.entries[at].id)
                marks = await live.marks("local", address.conversation_id, real_cursor, calls)
                assert marks == model.marks(model_cursor, calls)


@pytest.mark.parametrize(("pieces", "length"), [(40, 2_000), (30, 60_000)])
async def test_a_readers_backlog_arrives_in_bounded_batches_and_is_sent_once(
    live: LiveTokens, valkey: Valkey, address: TurnAddress, pieces: int, length: int
) -> None:
    for number in range(pieces):
        await live.append(address, "m1", epoch=1, sequence=number * length, text="x" * length)
    before = (await valkey.client.info("stats"))["total_net_output_bytes"]
    epoch, entry_id, starts, more = "", "0-0", list[int](), True
    while more:
        batch = await live.tokens("local", address.conversation_id, epoch, entry_id)
        epoch, entry_id, more = str(batch.epoch), batch.entries[-1].id if batch.entries else entry_id, batch.more
        starts += [entry.start for entry in batch.entries]
        assert len(batch.entries) < 20
    after = (await valkey.client.info("stats"))["total_net_output_bytes"]
    assert starts == [number * length for number in range(pieces)]
    assert after - before < 1.2 * pieces * length + 20_000
