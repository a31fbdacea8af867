"""Limits of one API process on a real server: connections by address, and the time for a request's head."""

import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from perdure.api.__main__ import MAX_OPEN_FILES, raise_file_limit
from perdure.api.health import PERIMETER_EVENTS
from perdure.api.perimeter import FILES_PER_ADDRESS_DIVISOR, ConnectionSlots, connection_class
from perdure.core.request_origin import Proxies
from tests.doubles.local_server import LocalServer

HEAD_SECONDS = 0.6
GET = b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_process_with_few_file_descriptors_limits_its_connections() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        most = raise_file_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == before[1] and soft == (MAX_OPEN_FILES if hard < 0 else min(MAX_OPEN_FILES, hard)) == most
        assert raise_file_limit() == soft
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_one_address_never_holds_more_than_its_share_of_connections() -> None:
    assert ConnectionSlots(2_000, 65_536).per_address == 2_000
    assert ConnectionSlots(2_000, 1_024).per_address == 1_024 // FILES_PER_ADDRESS_DIVISOR
    assert ConnectionSlots(0, 1_024).per_address == 0, "no limit"


def test_a_full_process_refuses_every_caller() -> None:
    places = ConnectionSlots(0, 600)
    taken = [places.acquire(str(number)) for number in range(600)]
    assert taken.count("") == places.total == 344 and taken[-1] == "server_full"


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers immediately; below /slow only when it is released."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(3 * HEAD_SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, seconds: float = 5.0) -> bytes:
        """The answer up to its body."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), seconds)

    async def rest(self, seconds: float = 5.0) -> bytes:
        try:
            return await asyncio.wait_for(self.reader.read(), seconds)
        except ConnectionResetError:
            return b""

    async def is_open(self) -> bool:
        try:
            await self.send(GET)
            return (await self.head()).startswith(b"HTTP/1.1 200")
        except (ConnectionError, asyncio.IncompleteReadError):
            return False


Dial = Callable[[], Awaitable[Wire]]


@asynccontextmanager
async def listening_server(places: ConnectionSlots, proxies: Proxies | None = None) -> AsyncIterator[Dial]:
    kind = connection_class(places, proxies or Proxies(), HEAD_SECONDS)
    listening = LocalServer(answer, http=kind, ws="none", timeout_keep_alive=30)
    await listening.start()
    port = int(listening.url.rpartition(":")[2])
    async with AsyncExitStack() as stack:
        stack.push_async_callback(listening.stop)

        async def dial() -> Wire:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            return Wire(reader, writer)

        yield dial


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    """A connection to a server with room for many."""
    async with listening_server(ConnectionSlots(100, 1_000)) as dial:
        yield await dial()


def counted(event: str) -> float:
    return float(PERIMETER_EVENTS.labels(event=event)._value.get())


@pytest.mark.parametrize("sent", [
    b"", b"G", b"GET / HTTP/1.1\r\nHost: localhost\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 1_000, GET + b"GET / HTTP/1.1\r\nHo",
], ids=["nothing", "a letter", "no end", "a long header", "a second request"])  # fmt: skip
async def test_an_incomplete_head_closes_its_connection_in_time(sent: bytes) -> None:
    before = counted("head_too_slow")
    async with listening_server(ConnectionSlots(100, 1_000)) as dial:
        wire, began = await dial(), time.monotonic()
        await wire.send(sent)
        if sent.startswith(GET):
            await wire.head()
            await wire.reader.readexactly(2)
            await wire.send(b"s")
        said = await wire.rest()
        took = time.monotonic() - began
    assert HEAD_SECONDS * 0.8 < took < HEAD_SECONDS + 2
    assert said.startswith(b"HTTP/1.1 408") is bool(sent) and (b'"head_too_slow"' in said) is bool(sent)
    assert counted("head_too_slow") == before + 1


async def test_bytes_that_trickle_in_do_not_extend_the_deadline(wire: Wire) -> None:
    began = time.monotonic()
    await wire.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    while time.monotonic() - began < HEAD_SECONDS + 2 and not wire.reader.at_eof():
        try:
            await wire.send(b"a")
        except ConnectionError:
            break
        await asyncio.sleep(0.05)
    assert time.monotonic() - began < HEAD_SECONDS + 1


async def test_each_further_request_has_its_own_deadline_and_idling_has_none(wire: Wire) -> None:
    assert await wire.is_open()
    await wire.reader.readexactly(2)
    await asyncio.sleep(2 * HEAD_SECONDS)  # between two requests the keep-alive time counts
    assert await wire.is_open()
    await wire.reader.readexactly(2)
    await wire.send(b"GET /a HT")
    assert (await wire.rest()).startswith(b"HTTP/1.1 408")


async def test_after_its_answer_a_body_is_read_only_for_a_moment(wire: Wire) -> None:
    await wire.send(b"POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    assert (await wire.head()).startswith(b"HTTP/1.1 200")
    began = time.monotonic()
    try:
        while time.monotonic() - began < HEAD_SECONDS + 3:
            await wire.send(b"1\r\na\r\n")
            await asyncio.sleep(0.05)
    except ConnectionError:
        pass
    assert time.monotonic() - began < HEAD_SECONDS + 2


async def test_pipelined_requests_and_one_that_takes_longer_than_a_head_are_answered(wire: Wire) -> None:
    await wire.send(GET * 5 + b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await wire.rest()).count(b"HTTP/1.1 200") == 6


async def test_an_address_at_its_limit_can_connect_again_after_one_closes() -> None:
    before = counted("too_many_connections")
    async with listening_server(ConnectionSlots(5, 1_000)) as dial:
        wires = [await dial() for _ in range(5)]
        assert all([await wire.is_open() for wire in wires])
        one_more = await dial()
        said = await one_more.rest()
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429") and b"Retry-After: 15" in head and b"nosniff" in head
        error = json.loads(body)["error"]
        assert error["code"] == "too_many_connections"
        assert counted("too_many_connections") == before + 1
        wires[0].writer.close()
        await wires[0].writer.wait_closed()
        await asyncio.sleep(0.1)
        assert await (await dial()).is_open()


async def test_a_proxys_connections_do_not_count_as_one_clients() -> None:
    async with listening_server(ConnectionSlots(2, 1_000), Proxies.of(("127.0.0.0/8",))) as dial:
        wires = [await dial() for _ in range(8)]
        assert all([await wire.is_open() for wire in wires])


@pytest.mark.parametrize("sent", [
    b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
    b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000,
])  # fmt: skip
async def test_a_request_that_is_not_http_gets_the_standard_error(wire: Wire, sent: bytes) -> None:
    await wire.send(sent)
    head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and b"X-Content-Type-Options: nosniff" in head
    assert json.loads(body)["error"]["code"] == "request_malformed"


async def test_an_upgrade_to_another_protocol_is_refused(wire: Wire) -> None:
    offer = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YQ==\r\n"
    await wire.send(GET[:-2] + offer + b"\r\n")
    assert (await wire.head()).startswith(b"HTTP/1.1 200")
    await wire.reader.readexactly(2)
    assert await wire.is_open()


@pytest.mark.timed
async def test_a_slow_flood_keeps_no_other_caller_out() -> None:
    async with listening_server(ConnectionSlots(300, 4_000)) as dial:
        flood = [await dial() for _ in range(250)]
        for wire in flood:
            await wire.send(b"GET / HTTP/1.1\r\nHost: ")
        began = time.monotonic()
        assert await (await dial()).is_open()
        assert time.monotonic() - began < 1.0
        await asyncio.gather(*(wire.rest(HEAD_SECONDS + 5) for wire in flood))
