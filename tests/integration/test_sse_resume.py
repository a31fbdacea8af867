"""Streams against real Postgres, Valkey and HTTP: order, resume at any place, losses, limits, the fence in Valkey."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client import REGISTRY
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from perdure.api.auth import has_same_access, token_principal
from perdure.api.rate_limits import OpenStreams
from perdure.api.streams import Streams
from perdure.contracts.turns import TurnAddress
from perdure.core.events.stream import CallKey, Cursor, TokenBatch, parse_cursor
from perdure.core.identity import Credential, SignInMethod
from perdure.local import DataParts
from perdure.store.database import Database, new_id
from perdure.store.events.live import LIVE_ENTRIES, LIVE_SECONDS, AppendResult, LiveTokens, stream_and_epoch
from perdure.store.events.subscriptions import ConversationWakes
from perdure.store.identity import sign_in, users
from perdure.store.valkey import Valkey, read_messages, subscribe
from tests.conftest import Person
from tests.doubles.tcp_link import TcpLink
from tests.eventually import until
from tests.integration.conftest import Api, Caller
from tests.integration.test_api_access import having
from tests.integration.test_api_turns import conversation, refusal, started
from tests.integration.turn_writer import Sent, TurnWriter, parsed, read_until, text_of
from tests.live_model import LiveModel
from tests.scale import sized


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.fixture(scope="module")
async def streams(db: Database, live: LiveTokens, valkey: Valkey) -> AsyncIterator[Streams]:
    wakes = ConversationWakes(db, valkey)
    async with running(wakes.run()):
        yield Streams(db, live, wakes)


def of_turn(streams: Streams, turn_writer: TurnWriter, after: str | None = None) -> AsyncGenerator[bytes]:
    cursor = parse_cursor(after) if after else Cursor()
    assert cursor is not None
    address = turn_writer.address
    return streams.frames(address.tenant_id, address.conversation_id, cursor, address.turn_id)


async def whole(stream: AsyncGenerator[bytes]) -> list[Sent]:
    return await read_until(stream, lambda sent: False)


async def one_call(turn: TurnWriter, *words: str) -> None:
    await turn.claim("m1")
    await turn.speak("m1", *(words or ("Hello ", "wörld", " 😀")))
    await turn.settle("m1", "".join(words or ("Hello ", "wörld", " 😀")))
    await turn.finish()


@pytest.mark.timed
async def test_tokens_reach_a_waiting_reader_one_by_one(streams: Streams, turn: TurnWriter) -> None:
    async with aclosing(of_turn(streams, turn)) as stream:
        await turn.claim("m1")
        await read_until(stream, lambda sent: sent[-1].kind == "generation.start")
        for piece in ("a", "b", "c"):
            began = time.monotonic()
            await turn.speak("m1", piece)
            sent = await read_until(stream, lambda sent: True)
            assert [event.data["text"] for event in sent] == [piece]
            assert time.monotonic() - began < 0.5, "pub/sub woke the reader, not the poll"


async def test_resuming_at_any_event_id_loses_and_repeats_nothing(streams: Streams, turn: TurnWriter) -> None:
    first: list[Sent] = []
    async with aclosing(of_turn(streams, turn)) as stream:
        await turn.claim("m1")
        for piece in ("one ", "two "):
            await turn.speak("m1", piece)
            first += await read_until(stream, lambda sent: sent[-1].kind == "token")
    async with aclosing(of_turn(streams, turn, first[-1].id)) as stream:  # the last event is the reader's own
        await turn.speak("m1", "three")
        first += await read_until(stream, lambda sent: sent[-1].kind == "token")
    await turn.settle("m1", "one two three")
    await turn.claim("m2")
    await turn.speak("m2", "four")
    await turn.settle("m2", "four")
    await turn.finish()
    assert len(first) == 5
    for seen in range(1, len(first) + 1):
        rest = await whole(of_turn(streams, turn, first[seen - 1].id))
        both = first[:seen] + rest
        assert (text_of(both, "m1"), text_of(both, "m2")) == ("one two three", "four")
        durable = [event.data["seq"] for event in both if event.kind not in ("token", "reset", "workflow_complete")]
        assert durable == list(range(1, len(durable) + 1))
        assert "reset" not in [event.kind for event in rest], "the place was known exactly"
        assert all("at" in event.data and event.id for event in both[:-1])


async def test_a_turns_stream_has_that_turn_only(streams: Streams, turn: TurnWriter, people: dict[str, Person]) -> None:
    await one_call(turn)
    second = await TurnWriter.turn_in(turn.db, turn.live, people["requester"], turn.address.conversation_id)
    await one_call(second)
    assert {event.data["turn_id"] for event in await whole(of_turn(streams, second))} == {second.address.turn_id}
    address = turn.address
    async with aclosing(streams.frames(address.tenant_id, address.conversation_id, Cursor())) as stream:
        both = await read_until(stream, lambda sent: [event.kind for event in sent].count("done") == 2)
        ended = [event.data["turn_id"] for event in both if event.kind == "done"]
        assert ended == [address.turn_id, second.address.turn_id]
        third = await TurnWriter.turn_in(turn.db, turn.live, people["requester"], address.conversation_id)
        assert (await read_until(stream, lambda sent: True))[0].data["turn_id"] == third.address.turn_id


@pytest.mark.timed
async def test_without_valkey_events_still_come_within_two_seconds(db: Database, people: dict[str, Person]) -> None:
    nowhere = Valkey.connect("redis://127.0.0.1:1/0")
    wakes, live = ConversationWakes(db, nowhere), LiveTokens(nowhere)
    turn = await TurnWriter.begin(db, live, people["requester"])
    async with running(wakes.run()), aclosing(of_turn(Streams(db, live, wakes), turn)) as stream:
        await read_until(stream, lambda sent: True)
        assert await turn.speak("m1", "nobody hears this") == "degraded"
        began = time.monotonic()
        await turn.claim("m1")
        await turn.settle("m1", "Hello")
        sent = await read_until(stream, lambda sent: sent[-1].kind == "generation.complete")
        assert time.monotonic() - began < 2.5
        assert text_of(sent) == "Hello"
    await nowhere.close()


async def test_a_silent_turn_beats_while_another_streams(
    db: Database, live: LiveTokens, streams: Streams, turn: TurnWriter, people: dict[str, Person]
) -> None:
    other = await TurnWriter.turn_in(db, live, people["requester"], turn.address.conversation_id)
    await other.claim("m1")

    async def speak() -> None:
        while True:
            await other.speak("m1", "on and ")
            await asyncio.sleep(0.02)

    beating = Streams(db, live, streams._wakes, heartbeat_seconds=0.3)
    async with running(speak()), aclosing(of_turn(beating, turn)) as stream:
        assert parsed(await anext(stream))[0].kind == "ready"
        ping = await asyncio.wait_for(anext(stream), 10)
        assert ping == b": ping\n\n" and parsed(ping)[0].kind == ""


async def test_forty_readers_share_one_subscription(streams: Streams, turn: TurnWriter, valkey: Valkey) -> None:
    before = len(await valkey.client.client_list(_type="pubsub"))
    readers = [asyncio.create_task(whole(of_turn(streams, turn))) for _ in range(40)]
    await until(lambda: REGISTRY.get_sample_value("perdure_streams") == 40, seconds=30)
    assert len(await valkey.client.client_list(_type="pubsub")) == before == 1
    await one_call(turn)
    texts = {text_of(sent) for sent in await asyncio.gather(*readers)}
    assert texts == {"Hello wörld 😀"} and REGISTRY.get_sample_value("perdure_streams") == 0


@pytest.mark.timed
async def test_a_cut_subscription_is_made_again(db: Database, parts: DataParts, people: dict[str, Person]) -> None:
    assert parts.redis_url is not None
    login, _, address = urlsplit(parts.redis_url).netloc.rpartition("@")
    host, _, port = address.rpartition(":")
    link = await TcpLink(host, int(port)).open()
    behind = Valkey.connect(f"redis://{login}@127.0.0.1:{link.port}/0")
    wakes = ConversationWakes(db, behind)
    straight = LiveTokens.connect(parts.redis_url)
    turn = await TurnWriter.begin(db, straight, people["requester"])
    async with running(wakes.run()), aclosing(of_turn(Streams(db, LiveTokens(behind), wakes), turn)) as stream:
        await turn.claim("m1")
        await read_until(stream, lambda sent: sent[-1].kind == "generation.start")
        await link.cut()
        await turn.speak("m1", "said while it was cut ")
        await link.mend()
        sent = await read_until(stream, lambda sent: sent[-1].kind == "token")
        await asyncio.sleep(2.5)
        began = time.monotonic()
        await turn.speak("m1", "and after")
        sent += await read_until(stream, lambda sent: True)
        assert time.monotonic() - began < 0.5, "the subscription stands again"
        assert text_of(sent) == "said while it was cut and after"
    await behind.close()
    await straight.close()
    await link.cut()


async def test_readers_that_come_and_go_do_not_hide_a_silent_subscription(valkey: Valkey) -> None:
    async with subscribe(valkey, "own") as subscription:
        for number in range(3):
            await subscription.subscribe(f"reader-{number}")
        await subscription.unsubscribe("reader-0")
        await valkey.client.publish("reader-2", "look")
        async with asyncio.timeout(60):
            message = await anext(read_messages(subscription))
    assert (message["channel"], message["data"]) == ("reader-2", "look")


class Deaf:
    """A subscription on which a cancel is lost, as it may be in Python 3.11's `wait_for`."""

    def __init__(self) -> None:
        self.asked = 0
        self.waits = asyncio.Event()

    async def get_message(self, timeout: float) -> None:
        """Returns nothing, and ignores a cancellation."""
        self.asked += 1
        self.waits.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(timeout)

    async def ping(self) -> None:
        """Waits for an answer that never comes."""


async def test_a_reader_whose_cancellation_was_lost_still_ends() -> None:
    deaf = Deaf()

    async def read() -> None:
        async for _ in read_messages(deaf):  # type: ignore[arg-type]
            pass

    reading = asyncio.create_task(read())
    await deaf.waits.wait()
    reading.cancel()
    await asyncio.wait({reading}, timeout=5)
    assert reading.cancelled() and deaf.asked == 1


class Reading:
    def __init__(self, answer: httpx.Response) -> None:
        self.sent: list[Sent] = []
        """All that came so far."""
        self._chunks = answer.aiter_bytes()

    async def whole(self) -> list[Sent]:
        rest = b""
        async with asyncio.timeout(30):
            async for chunk in self._chunks:
                done, end, rest = (rest + chunk).rpartition(b"\n\n")
                self.sent += parsed(done + end)
        return self.sent


@asynccontextmanager
async def reading(client: httpx.AsyncClient, path: str, after: str | None = None) -> AsyncIterator[Reading]:
    async with client.stream("GET", path, headers={"Last-Event-ID": after} if after else {}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Reading(answer)


async def test_reconnecting_after_done_returns_204(requester: Caller) -> None:
    events = (await started(requester, await conversation(requester), "/echo bye")).json()["events"]
    async with reading(requester, events) as stream:
        sent = await stream.whole()
    assert [event.kind for event in sent[-2:]] == ["done", "workflow_complete"]
    assert sent[-2].data.keys() >= {"execution_id", "status", "tokens_used", "cost_usd", "duration_ms"}
    assert sent[-1].id is None
    for given in ({"headers": {"Last-Event-ID": str(sent[-2].id)}}, {"params": {"after": str(sent[-2].id)}}):
        over = await requester.get(events, **given)  # type: ignore[arg-type]
        assert (over.status_code, over.content) == (204, b"")
    async with reading(requester, events, sent[-3].id) as stream:
        assert [event.kind for event in await stream.whole()] == ["done", "workflow_complete"]


@pytest.mark.parametrize("how", ["revoked", "other_roles", "signed_out"])
async def test_a_reader_that_lost_its_access_is_disconnected(api: Api, admin: Caller, how: str) -> None:
    name, services = f"leaver-{how.replace('_', '-')}", api.services
    who = await token_principal(services, await api.new_user(name, "requester"))
    conversation_id = await conversation(admin)
    if how == "signed_out":
        async with services.db.transaction(who.tenant_id) as tx:
            begun = await sign_in.begin_session(tx, who.user_id, timedelta(hours=1), Credential(SignInMethod.PASSWORD))
        who = replace(who, session_id=begun.id)
    streams = Streams(services.db, services.live, services.wakes, heartbeat_seconds=0.05)
    welcome = partial(has_same_access, services, who)
    async with aclosing(streams.frames(who.tenant_id, conversation_id, Cursor(), has_access=welcome)) as stream:
        for _ in range(3):
            assert await anext(stream) == b": ping\n\n"
        async with services.db.transaction(who.tenant_id) as tx:
            if how == "revoked":
                await tx.execute("UPDATE api_tokens SET revoked_at = now() WHERE token_sha256 = $1", who.token_sha256)
            elif how == "signed_out":
                await sign_in.end_session(tx, begun.id, who.user_id, "signed out")
            else:
                await users.set_roles(tx, name, ("requester", "reviewer"), api.people["admin"].user_id)
        async with asyncio.timeout(20):
            assert {frame async for frame in stream} <= {b": ping\n\n"}


async def test_a_stream_over_the_users_limit_is_refused_until_one_is_closed(api: Api) -> None:
    held = OpenStreams(1, 9)
    async with api.client() as client, api.client("admin") as other:
        path = f"/v1/conversations/{await conversation(client)}/stream"
        async with having(api, open_streams=held):
            async with reading(client, path):
                for asked in (path, "/v1/approvals/stream"):
                    refused = await client.get(asked)
                    assert refusal(refused) == (429, "too_many_streams")
                    assert int(refused.headers["retry-after"]) > 0
                api.app.state.services = replace(api.app.state.services, local=True)
                async with reading(client, path), reading(other, path):
                    api.app.state.services = replace(api.app.state.services, local=False)
            await until(lambda: not held._open, seconds=30)  # the server notices it later
            async with reading(client, path):
                pass


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


async def test_tasks_share_one_connection_and_each_gets_its_own_answer(parts: DataParts, valkey: Valkey) -> None:
    assert parts.redis_url is not None
    client, script = Valkey.connect(parts.redis_url), f"return ARGV[1] -- {new_id()}"
    texts = [str(number) * (number % 7 * 1_000 + 1) for number in range(300)]

    async def echo(text: str) -> str | BaseException | None:
        return await asyncio.wait_for(client.attempt(lambda: client.run_script(script, [], [text])), 30)

    async def canceled(text: str) -> None:
        task = asyncio.create_task(echo(text))
        await asyncio.sleep(random.random() / 100)
        task.cancel()

    async def clients() -> set[str]:
        return {each["id"] for each in await valkey.client.client_list(_type="normal")}

    others = await clients()
    assert await echo("loaded on first use") == "loaded on first use"
    mine = await clients() - others
    answers = await asyncio.gather(*map(echo, texts), *map(canceled, texts), echo("last"))
    assert [*answers[:300], answers[-1]] == [*texts, "last"]
    assert len(mine) == 1
    assert await clients() - others == mine
    with pytest.raises(ResponseError):
        await client.run_script("return redis.call('HGET', KEYS[1])", ["k"], [])
    assert await echo("after an error") == "after an error"
    await valkey.client.client_kill_filter(_id=mine.pop())
    assert await echo("on a new connection") == "on a new connection"
    async with subscribe(valkey, "the-end") as subscription:
        for number in range(5):
            client.send("PUBLISH", "the-end", str(number))
        await client.close()  # sends what waits
        messages = read_messages(subscription)
        assert [(await anext(messages))["data"] for _ in range(5)] == list("01234")


@pytest.mark.timed
async def test_a_lost_valkey_costs_no_answer_and_is_logged_once(address: TurnAddress) -> None:
    nowhere = Valkey.connect("redis://127.0.0.1:1/0")
    live = LiveTokens(nowhere)
    with capture_logs() as logged:
        began = time.monotonic()
        for number in range(200):
            assert await live.append(address, "m1", epoch=1, sequence=number, text="a") is AppendResult.DEGRADED
        await live.stop(address)
        live.wake(address.conversation_id)
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
