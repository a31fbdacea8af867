"""The door in front of Temporal's Web UI, which itself answers any page of any site (ADR 29).

The Web UI serves every Host, so a page whose name is pointed to this machine after it was loaded (DNS rebinding) could
read and end every workflow. The door answers requests that name this machine, and changes only for its own pages.

`python -m local.web_door LISTEN TARGET`, each HOST:PORT, is the same door in front of a Web UI server that nothing else
can reach, as docker-compose.yml has it.
"""

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import h11

from local.errors import StackError
from local.probes import Answer, http_ask

Backend = Callable[[str, str, Mapping[str, str], bytes], Awaitable[Answer | None]]
"""Answers method, target, headers (names in lower case) and body; None when it cannot."""

FORWARD_SECONDS = 90.0
"""Longer than the server holds a long poll for new events of a history."""
_REQUEST_SECONDS = 30.0
_MOST_CONNECTIONS = 100
_MOST_BODY_BYTES = 4 << 20
_THIS_MACHINE = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII)
_READS = ("GET", "HEAD")
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te", "trailer", "host")
_ADDED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def refusal(method: str, target: str, headers: Mapping[str, str]) -> tuple[int, str, str] | None:
    """Why a request is not passed on: status, code and message; None for one that is."""
    host = headers.get("host", "")
    if not _THIS_MACHINE.fullmatch(host.lower()):
        return 421, "host_not_allowed", f"the Web UI is served to this machine only, not as {host[:100]!r}"
    if not target.startswith("/"):
        return 400, "bad_target", "the request must name a path"
    navigates = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not navigates:
        return 403, "foreign_page", "only the Web UI's own pages may send this request"
    if method not in _READS and headers.get("origin", "").lower() != f"http://{host.lower()}":
        return 403, "foreign_page", "a change needs an Origin header with the Web UI's own address"
    return None


def forward_to(host: str, port: int) -> Backend:
    """A backend that passes everything on to a server."""

    async def answer(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer | None:
        passed = {name: value for name, value in headers.items() if name not in (*_HOP_BY_HOP, "accept-encoding")}
        return await http_ask(host, port, method, target, {"Host": f"{host}:{port}", **passed}, body, FORWARD_SECONDS)

    return answer


class WebDoor:
    """An HTTP server that passes on what `refusal` lets through."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> None:
        """Listen there.

        Raises: StackError when the port is taken.
        """
        try:
            self._server = await asyncio.start_server(self._connected, host, port)
        except OSError as error:
            raise StackError(f"Temporal's Web UI cannot listen on {host}:{port}: {error.strerror}") from error

    async def close(self) -> None:
        """End every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            if len(self._serving) <= _MOST_CONNECTIONS:
                await self._serve(reader, writer)
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        while True:
            request, body = await _request(connection, reader)
            if request is None:
                return
            answer = await self._answer(request, body)
            for part in _written(connection, request, answer):
                writer.write(part)
            await writer.drain()
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _answer(self, request: h11.Request, body: bytes | None) -> Answer:
        method, target = request.method.decode(), request.target.decode("latin-1")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        refused = refusal(method, target, headers)
        if refused is None and body is None:
            refused = 413, "too_large", f"a request may have {_MOST_BODY_BYTES} bytes"
        if refused is None:
            found = await self._backend(method, target, headers, body or b"")
            if found is not None:
                return found
            refused = 503, "unavailable", "Temporal does not answer; try again in a moment"
        status, code, message = refused
        written = json.dumps({"error": {"code": code, "message": message}}).encode()
        return Answer(status, {"content-type": "application/json"}, written)


async def _request(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[h11.Request | None, bytes | None]:
    """The next request, with None for a body that is too large; no request when the peer has closed."""
    request, body = None, bytearray()
    async with asyncio.timeout(_REQUEST_SECONDS):
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(65_536))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _MOST_BODY_BYTES:
                    return request, None
            elif isinstance(event, h11.EndOfMessage):
                return request, bytes(body)
            else:
                return None, b""


def _written(connection: h11.Connection, request: h11.Request, answer: Answer) -> list[bytes]:
    kept = {name: value for name, value in answer.headers.items() if name not in _HOP_BY_HOP}
    headers = {**kept, **_ADDED, "content-length": str(len(answer.body))}
    parts = [connection.send(h11.Response(status_code=answer.status, headers=list(headers.items())))]
    if request.method != b"HEAD":
        parts.append(connection.send(h11.Data(data=answer.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    return [part for part in parts if part]


async def _stand(listen: str, target: str) -> None:
    door = WebDoor(forward_to(*_address(target)))
    await door.open(*_address(listen))
    await asyncio.get_running_loop().create_future()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise SystemExit(f"{text!r} is not HOST:PORT; usage: python -m local.web_door LISTEN TARGET")
    return host, int(port)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m local.web_door LISTEN TARGET, each HOST:PORT")
    with suppress(KeyboardInterrupt):
        asyncio.run(_stand(sys.argv[1], sys.argv[2]))
