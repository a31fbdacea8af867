"""A target that answers as badly as it likes: a raw server on this machine, in a thread or in the caller's loop."""

import asyncio
import ssl
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
MEBI = 1024 * 1024
HUGE_BYTES = 1_200_000_000


@dataclass
class Target:
    port: int
    heads: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def target(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[Target]:
    """Listens in this loop, reads each request's head and body and then does what `talk` says."""
    made = Target(0)
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            made.heads.append(head)
            length = [line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length:")]
            if length:
                await reader.readexactly(int(length[0]))
            await talk(reader, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for writer in [*writers]:
            writer.transport.abort()
        await asyncio.sleep(0)


@contextmanager
def threaded(talk: Talk) -> Iterator[Target]:
    """The same in a separate thread, so that it continues while the caller's loop is busy."""
    began, found = threading.Event(), list[Target]()
    ends: list[Callable[[], None]] = []

    async def main() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        async with target(talk) as made:
            found.append(made)
            ends.append(lambda: loop.call_soon_threadsafe(stop.set))  # type: ignore[arg-type]
            began.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert began.wait(10)
    try:
        yield found[0]
    finally:
        ends[0]()
        thread.join(10)


def says(status: int = 200, body: bytes = b"{}", *headers: str) -> Talk:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(body)}", *headers]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    return talk


def floods(
    status: int = 200,
    piece: bytes = b"x" * MEBI,
    *headers: str,
    most: int = HUGE_BYTES,
    announced: bool = False,
    gap: float = 0.0,
) -> Talk:
    """Sends the same piece repeatedly, until so many bytes are sent or the reader has left."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = [f"content-length: {most}"] if announced else ["connection: close"]
        writer.write("\r\n".join([f"HTTP/1.1 {status} Flood", *length, *headers]).encode() + b"\r\n\r\n")
        for _number in range(most // len(piece)):
            writer.write(piece)
            await writer.drain()
            if gap:
                await asyncio.sleep(gap)

    return talk


def endless_head(line: bytes = b"x-pad: " + b"y" * 1000 + b"\r\n") -> Talk:
    """Header after header, and no body ever."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(line)
            await writer.drain()
            await asyncio.sleep(0)

    return talk


async def endless_hints(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Interim answers and never a final one."""
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.001)


async def silence(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Sends nothing, for as long as the other side waits."""
    await reader.read()


@cache
def bomb(window: int = zlib.MAX_WBITS | 16, mebibytes: int = 100) -> bytes:
    """Compresses that many MiB of zeros: one packed MiB, repeated. The checksum, which no reader reaches, is wrong."""
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    first, again = (packer.compress(bytes(MEBI)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * (mebibytes - 1) + packer.flush()
