"""Questions that tell whether a part is ready or still answers, asked on loopback.

No client library asks them: each would cost an import.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ANSWER_SECONDS = 2.0
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
"""Postgres's SSLRequest: a new backend answers it with one byte, before any sign-in."""
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a gRPC client sends first: the preface and empty settings; the server answers with its own settings."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an HTTP server answered; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def port_open(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    await _close(writer)
    return True


async def http_get(host: str, port: int, path: str, name: str = "") -> tuple[int, str] | None:
    """Status and body of one GET, or None while nobody answers properly. `name`: the Host to send, else the address."""
    answer = await http_ask(host, port, "GET", path, {"Host": name or f"{host}:{port}"})
    return (answer.status, answer.body.decode("utf-8", "replace")) if answer is not None else None


async def http_post(host: str, port: int, path: str, token: str) -> tuple[int, str] | None:
    """Status and body of one POST without a body, by the owner of this token; None while nobody answers properly."""
    headers = {"Host": f"{host}:{port}", "Authorization": f"Bearer {token}"}
    answer = await http_ask(host, port, "POST", path, headers)
    return (answer.status, answer.body.decode("utf-8", "replace")) if answer is not None else None


async def http_ask(
    host: str,
    port: int,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    seconds: float = ANSWER_SECONDS,
) -> Answer | None:
    """The answer to one request on a connection of its own, or None when there is no proper one in time.

    HTTP/1.0, so that no server answers in chunks. The headers must be free of line breaks.
    """
    lines = [f"{method} {target} HTTP/1.0", *(f"{name}: {value}" for name, value in headers.items())]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")
    return _read(await _ask(host, port, head + body, None, seconds))


def _read(answer: bytes) -> Answer | None:
    head, separator, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not separator or len(words) < 2 or not words[1].isdigit():
        return None
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    if len(body) < int(fields.get("content-length") or 0):
        return None
    return Answer(int(words[1]), fields, body)


async def valkey_answers(host: str, port: int, password: str) -> bool:
    """Whether Valkey has loaded its data and takes commands."""
    return (await _valkey_says(host, port, password)).endswith(b"+PONG\r\n")


async def valkey_lives(host: str, port: int, password: str) -> bool:
    """Whether Valkey answers at all, be it that it is loading or busy."""
    return bool(await _valkey_says(host, port, password))


async def _valkey_says(host: str, port: int, password: str) -> bytes:
    return await _ask(host, port, f"AUTH {password}\r\nPING\r\n".encode(), b"+PONG\r\n")


async def postgres_lives(host: str, port: int) -> bool:
    """Whether the postmaster starts a backend that answers; true as well while the server recovers or is full."""
    return (await _ask(host, port, _SSL_REQUEST, None, most=1))[:1] in (b"N", b"S", b"E")


async def grpc_lives(host: str, port: int) -> bool:
    """Whether a gRPC server without TLS greets its client."""
    return bool(await _ask(host, port, _HTTP2_PREFACE, None, most=9))


def postgres_accepts(data_folder: Path, pid: int) -> bool:
    """Whether the postmaster `pid` says in its lock file that it takes connections.

    Line 8 of postmaster.pid is the status that `pg_ctl start --wait` reads; no connection, no password needed.
    """
    try:
        lines = (data_folder / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def beats(file: Path) -> Callable[[int], Awaitable[bool]]:
    """Whether the process that touches this file every second has done so since the question before (serving.py).

    True as well when the file system lets nobody touch a file: then its silence says nothing.
    """
    seen = -1

    def touched() -> bool:
        nonlocal seen
        before = seen
        try:
            seen = file.stat().st_mtime_ns
            if seen == before:
                os.utime(file.parent)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return seen != before

    async def lives(_pid: int) -> bool:
        return touched()

    return lives


async def _ask(
    host: str, port: int, request: bytes, until: bytes | None, seconds: float = ANSWER_SECONDS, most: int = 0
) -> bytes:
    """What the peer answers, up to its end, to `until` or to `most` bytes; empty when it does not answer."""
    answer = b""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request)
                while chunk := await reader.read(65_536):
                    answer += chunk
                    if most and len(answer) >= most:
                        break
                    if until and (answer.endswith(until) or b"\r\n-" in answer or answer[:1] == b"-"):
                        break
            finally:
                await _close(writer)
    return answer


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
