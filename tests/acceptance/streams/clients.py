"""Clients as bare sockets: some hold a stream and read nothing of note, some take one byte a second."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.acceptance.running import RunningStack

_PATIENCE_SECONDS = 60.0
SMALL_BUFFER_BYTES = 4_096
"""What the kernel may hold for a slow client, so that the API feels how slow it is."""


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
    """Ask for a stream, again where the API says so, as clients do on a machine that has no time for hundreds at once.

    Raises: AssertionError where the answer is not 200.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        sock, head = await _asked(stack, path, small=small)
        if head.startswith(b"HTTP/1.1 200"):
            return Bare(sock)
        sock.close()
        assert head.startswith(b"HTTP/1.1 503") and time.monotonic() < deadline, head
        await asyncio.sleep(2)


async def _asked(stack: RunningStack, path: str, *, small: bool) -> tuple[socket.socket, bytes]:
    """A connection on which a stream was asked for, once the head of the answer is there; and the head."""
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
