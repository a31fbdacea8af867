"""Questions that tell whether a part is ready, asked on loopback; no client library, each would cost an import."""

import asyncio
from contextlib import suppress
from pathlib import Path

_ANSWER_SECONDS = 2.0


async def port_open(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    await _close(writer)
    return True


async def http_get(host: str, port: int, path: str) -> tuple[int, str] | None:
    """Status and body of one GET, or None while nobody answers properly."""
    request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    return _read(await _ask(host, port, request.encode(), None))


async def http_post(host: str, port: int, path: str, token: str) -> tuple[int, str] | None:
    """Status and body of one POST without a body, by the owner of this token; None while nobody answers properly."""
    request = (
        f"POST {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
    return _read(await _ask(host, port, request.encode(), None))


def _read(answer: bytes) -> tuple[int, str] | None:
    head, separator, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if not separator or len(words) < 2 or not words[1].isdigit():
        return None
    return int(words[1]), body.decode("utf-8", "replace")


async def valkey_answers(host: str, port: int, password: str) -> bool:
    """Whether Valkey has loaded its data and takes commands."""
    answer = await _ask(host, port, f"AUTH {password}\r\nPING\r\n".encode(), b"+PONG\r\n")
    return answer.endswith(b"+PONG\r\n")


def postgres_accepts(data_folder: Path, pid: int) -> bool:
    """Whether the postmaster `pid` says in its lock file that it takes connections.

    Line 8 of postmaster.pid is the status that `pg_ctl start --wait` reads; no connection, no password needed.
    """
    try:
        lines = (data_folder / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


async def _ask(host: str, port: int, request: bytes, until: bytes | None) -> bytes:
    """What the peer answers, up to its end or to `until`; empty when it does not answer."""
    answer = b""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request)
                while chunk := await reader.read(65_536):
                    answer += chunk
                    if until is not None and (answer.endswith(until) or b"\r\n-" in answer or answer[:1] == b"-"):
                        break
            finally:
                await _close(writer)
    return answer


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
