"""Hundreds of idle streams and clients that take a byte a second: the API stays small, and others are as quick."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil
import pytest

from tests.acceptance.machine import Others, quantile
from tests.acceptance.running import RunningStack
from tests.acceptance.streams.conftest import AT_ONCE, USUAL, Followed, Speaking, begin, follow, words
from tests.scale import FULL, PATIENCE_SECONDS, sized

pytestmark = pytest.mark.soak

IDLE = sized(500, 40)
SLOW = sized(100, 10)
TURNS = sized(100, 10)
"""The share of other processes before, meanwhile and afterwards: their load must not count as a slow client."""
WARM_UP = sized(20, 5)
LONG_WORDS = 14_000
"""150 KB at once: half of the slow clients read this, the others a turn that continues to stream."""
LEAST_SLOW_BYTES = 5
SMALL_BUFFER_BYTES = 4_096
"""The kernel's buffer for a slow client, small enough that the API is slowed down."""


@dataclass(slots=True)
class Bare:
    sock: socket.socket
    taken: int = 0
    """Bytes read of the stream."""

    async def one_byte_a_second(self) -> None:
        loop = asyncio.get_running_loop()
        while await loop.sock_recv(self.sock, 1):
            self.taken += 1
            await asyncio.sleep(1)


async def _connect(stack: RunningStack, path: str, *, small: bool) -> Bare:
    """Opens a stream, and retries after the requested time. Raises AssertionError if the answer is not 200."""
    deadline = time.monotonic() + 60.0
    while True:
        sock, head = await _open_stream(stack, path, small=small)
        if head.startswith(b"HTTP/1.1 200"):
            return Bare(sock)
        sock.close()
        assert head.startswith(b"HTTP/1.1 503") and time.monotonic() < deadline, head
        await asyncio.sleep(2)


async def _open_stream(stack: RunningStack, path: str, *, small: bool) -> tuple[socket.socket, bytes]:
    """A connection with a requested stream, once the head of the answer has arrived; and the head."""
    loop, address = asyncio.get_running_loop(), urlsplit(stack.api)
    sock = socket.socket()
    sock.setblocking(False)
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    await loop.sock_connect(sock, (address.hostname, address.port))
    head = f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {stack.token('requester')}\r\n\r\n"
    await loop.sock_sendall(sock, head.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = await loop.sock_recv(sock, 64)
        assert piece, "the API hung up"
        answer += piece
    return sock, answer


@asynccontextmanager
async def connected(stack: RunningStack, idle: Sequence[str], slow: Sequence[str]) -> AsyncIterator[list[Bare]]:
    """Streams at these paths until the block ends; those of `slow`, which are given, are read a byte a second."""
    gate, everybody = asyncio.Semaphore(16), list[Bare]()

    async def one(path: str, *, small: bool) -> Bare:
        async with gate:
            everybody.append(await _connect(stack, path, small=small))
            return everybody[-1]

    tasks: list[asyncio.Task[None]] = []
    try:
        await asyncio.gather(*(one(path, small=False) for path in idle))
        slow_ones = await asyncio.gather(*(one(path, small=True) for path in slow))
        tasks += [asyncio.create_task(each.one_byte_a_second()) for each in slow_ones]
        yield slow_ones
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in everybody:
            each.sock.close()


async def _first_tokens(speakers: Speaking, count: int) -> list[float]:
    """Seconds from asking for a turn to its first token."""
    gate, seconds = asyncio.Semaphore(2), list[float]()

    async def one() -> None:
        async with gate:
            asked = time.time()
            turn_id = await begin(speakers.client, USUAL, "a short answer")
            followed = await follow(speakers.client, Followed(turn_id))
            assert followed.first_token_at is not None and followed.text == "a short answer"
            seconds.append(followed.first_token_at - asked)

    await asyncio.gather(*(one() for _ in range(count)))
    return seconds


def _bytes_of_api(speakers: Speaking) -> int:
    return int(psutil.Process(speakers.stack.read()["pids"]["api"]).memory_info().rss)


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_idle_and_slow_clients_cost_little_memory_and_no_other_clients_time(speakers: Speaking) -> None:
    long = await begin(speakers.client, AT_ONCE, words(LONG_WORDS, "long"))
    await follow(speakers.client, Followed(long))
    await _first_tokens(speakers, WARM_UP)
    idle = [(await speakers.client.conversations.create(USUAL)).id for _ in range(IDLE)]
    before, bytes_before = await _first_tokens(speakers, TURNS), _bytes_of_api(speakers)
    speaks = await begin(speakers.client, USUAL, words(LONG_WORDS, "on"))  # longer than all of this takes
    paths = [f"/v1/conversations/{each}/stream" for each in idle]
    slow = [f"/v1/turns/{long if number % 2 else speaks}/events" for number in range(SLOW)]
    with Others() as clocked:
        async with connected(speakers.stack, paths, slow) as slow_ones:
            await asyncio.sleep(2 * LEAST_SLOW_BYTES)
            meanwhile = await _first_tokens(speakers, TURNS)
            growth = _bytes_of_api(speakers) - bytes_before
            taken = [each.taken for each in slow_ones]
    await speakers.client.turns.stop(speaks)
    without = [*before, *await _first_tokens(speakers, TURNS)]
    (p50, p95), (p50_meanwhile, p95_meanwhile) = (
        (quantile(seconds, 0.5) * 1e3, quantile(seconds, 0.95) * 1e3) for seconds in (without, meanwhile)
    )
    ratio = p95_meanwhile / p95
    print(f"\n{IDLE} idle and {SLOW} slow clients: the API grew by {growth / 1e6:.1f} MB; others' first token p50")
    print(f"{p50:.0f} -> {p50_meanwhile:.0f} ms, p95 {p95:.0f} ->", end=" ")
    print(f"{p95_meanwhile:.0f} ms, {ratio:.2f} times; {clocked}")
    assert min(taken) >= LEAST_SLOW_BYTES, "each slow client was served all the while"
    assert growth < 100_000_000
    # Of the sample's ten turns the p95 is the slowest, which says little: the ratio is held by the whole figure alone.
    assert ratio <= 1.5 or not FULL, f"{ratio:.2f}"
