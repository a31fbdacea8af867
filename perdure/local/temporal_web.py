"""Temporal's Web UI without its own server: the pages from a copy, the data from the server's HTTP API (ADR 29).

The dev server's Web UI has no list of allowed hosts, so it is not started. Its pages are the same in every run. They
are copied once, file by file when a browser requests them, from a second server with an empty database in memory. That
server ends a few seconds later.

The data comes from the HTTP API of the real server, which accepts only one host name. That name is random at each
start, so no web page can send it. It is not a password: a process of this machine can also use the gRPC port, which
needs none.
"""

import asyncio
import hashlib
import html
import json
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import h11

from perdure.local.ports import HOST, HttpResponse, free_port, http_request
from perdure.local.processes import kill_group, spawn

Backend = Callable[[str, str, Mapping[str, str], bytes], Awaitable[HttpResponse | None]]
"""Handles method, target, headers (names in lower case) and body; returns None if it cannot."""

FORWARD_SECONDS = 90.0
"""Longer than the server holds a long poll for new events of a history."""
_HEAD_SECONDS = 10.0
"""The time from the connection, or from the first byte of a further request, to the end of the request's head. The API
has the same limit."""
_BODY_SECONDS = 30.0
_KEEP_ALIVE_SECONDS = 30.0
_MAX_CONNECTIONS = 100
_RETRY_AFTER = {"retry-after": "15"}
_MAX_BODY_BYTES = 4 << 20
_LOCAL_HOSTS = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII)
_SAFE_METHODS = ("GET", "HEAD")
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te", "trailer", "host")
_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_FILES = re.compile(
    r"/(_app|css|codemirror|i18n)/|/(android|apple|banner|favicon|logo)|/(Temporal_Logo_Animation\.gif|site\.webmanifest)$"
)
"""The Web UI's files; every other path is the single page that does its own routing."""
_SETTINGS = "/api/v1/settings"
_RAW_JSON = "application/json+no-payload-shorthand"
"""Payloads unchanged; the pages do not support the HTTP API's own form of them."""
_START_SECONDS = 20.0
_IDLE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_FRAME_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; form-action 'none'; sandbox"


def rejection(method: str, target: str, headers: Mapping[str, str]) -> tuple[int, str, str] | None:
    """Returns why a request is rejected, as status, code and message, or None."""
    host = headers.get("host", "")
    if not _LOCAL_HOSTS.fullmatch(host.lower()):
        return 421, "host_not_allowed", f"the Web UI is available only on this machine, not as {host[:100]!r}"
    if not target.startswith("/"):
        return 400, "bad_target", "the request must contain a path"
    navigates = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not navigates:
        return 403, "foreign_page", "only pages of the Web UI can send this request"
    if method not in _SAFE_METHODS and headers.get("origin", "").lower() != f"http://{host.lower()}":
        return 403, "foreign_page", "a change requires an Origin header with the Web UI's own address"
    return None


def forward_to(host: str, port: int) -> Backend:
    """Returns a backend that forwards each request to a server, without hop-by-hop headers."""

    async def answer(method: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpResponse | None:
        passed = {name: value for name, value in headers.items() if name not in (*_HOP_BY_HOP, "accept-encoding")}
        return await http_request(
            host, port, method, target, {"Host": f"{host}:{port}", **passed}, body, FORWARD_SECONDS
        )

    return answer


class WebProxy:
    """An HTTP server that forwards what `rejection` allows.

    Temporal's Web UI by itself responds to any page of any site (ADR 29) and accepts every Host. A page whose name is
    pointed to this machine after it was loaded (DNS rebinding) could read and end every workflow. The proxy accepts
    only requests that name this machine, and changes only from its own pages. `python -m perdure.local.temporal_web
    LISTEN TARGET`, each HOST:PORT, is the same proxy in front of a Web UI server that nothing else can reach, as in
    docker-compose.yml.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> None:
        """Starts to listen there.

        Raises: OSError if the port is in use.
        """
        self._server = await asyncio.start_server(self._connected, host, port)

    async def close(self) -> None:
        """Closes every connection."""
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
            await self._serve(reader, writer, is_full=len(self._serving) > _MAX_CONNECTIONS)
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_full: bool) -> None:
        connection = h11.Connection(h11.SERVER)
        if is_full:
            full = f"the Web UI has {_MAX_CONNECTIONS} open connections, which is its limit; close some and retry"
            await _send(connection, writer, _error(503, "server_full", full, _RETRY_AFTER))
            return
        while True:
            try:
                async with asyncio.timeout(_HEAD_SECONDS):
                    request = await _read_head(connection, reader)
            except TimeoutError:
                if connection.trailing_data[0]:
                    slow = f"the request headers took longer than {_HEAD_SECONDS:.0f} s"
                    await _send(connection, writer, _error(408, "head_too_slow", slow))
                return
            if request is None:
                return
            async with asyncio.timeout(_BODY_SECONDS):
                body = await _read_body(connection, reader)
            await _send(connection, writer, await self._answer(request, body), is_head=request.method == b"HEAD")
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
            if not connection.trailing_data[0]:
                async with asyncio.timeout(_KEEP_ALIVE_SECONDS):
                    connection.receive_data(await reader.read(65_536))

    async def _answer(self, request: h11.Request, body: bytes | None) -> HttpResponse:
        method, target = request.method.decode(), request.target.decode("latin-1")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        rejected = rejection(method, target, headers)
        if rejected is None and body is None:
            rejected = 413, "too_large", f"the request exceeds {_MAX_BODY_BYTES} bytes"
        if rejected is None:
            response = await self._backend(method, target, headers, body or b"")
            if response is not None:
                return response
            rejected = 503, "unavailable", "Temporal is unavailable; retry later"
        return _error(*rejected)


def _error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    return HttpResponse(status, {"content-type": "application/json", **(headers or {})}, body)


async def _read_head(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Returns the next request, or None if the peer has closed."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65_536))
        else:
            return event if isinstance(event, h11.Request) else None


async def _read_body(connection: h11.Connection, reader: asyncio.StreamReader) -> bytes | None:
    """Returns the body of the current request, or None if it is too large."""
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65_536))
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _MAX_BODY_BYTES:
                return None
        else:
            return bytes(body)


async def _send(
    connection: h11.Connection, writer: asyncio.StreamWriter, response: HttpResponse, *, is_head: bool = False
) -> None:
    forwarded = {name: value for name, value in response.headers.items() if name not in _HOP_BY_HOP}
    headers = {**forwarded, **_SECURITY_HEADERS, "content-length": str(len(response.body))}
    parts = [connection.send(h11.Response(status_code=response.status, headers=list(headers.items())))]
    if not is_head:
        parts.append(connection.send(h11.Data(data=response.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    writer.write(b"".join(part for part in parts if part))
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            await writer.drain()
    except TimeoutError:
        writer.transport.abort()  # a client that does not read would hold its connection
        raise


async def _serve_forever(listen: str, target: str) -> None:
    proxy = WebProxy(forward_to(*_address(target)))
    await proxy.open(*_address(listen))
    await asyncio.get_running_loop().create_future()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise SystemExit(f"{text!r} is not HOST:PORT; usage: python -m perdure.local.temporal_web LISTEN TARGET")
    return host, int(port)


def backend_for(api_port: int, api_host: str, pages: "WebPages") -> Backend:
    """The proxy's backend: the HTTP API of the server for data, the copy for pages."""

    async def answer(method: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpResponse | None:
        path = urlsplit(target).path
        if path.startswith("/api/") and path != _SETTINGS:
            return await _data(method, target, body)
        if method not in ("GET", "HEAD"):
            return HttpResponse(405, {"content-type": "text/plain"}, b"this page is only read")
        if path == "/render":
            return _render_notes(target)
        if path == _SETTINGS or _FILES.match(path):
            return await pages.get(path)
        return await pages.get("/")

    async def _data(method: str, target: str, body: bytes) -> HttpResponse | None:
        headers = {"Host": api_host, "Accept": _RAW_JSON}
        if body:
            headers["Content-Type"] = _RAW_JSON
        response = await http_request(HOST, api_port, method, target, headers, body, FORWARD_SECONDS)
        fixed = {"content-type": "application/json", "cache-control": "no-store"}
        return HttpResponse(response.status, fixed, response.body) if response is not None else None

    return answer


def _render_notes(target: str) -> HttpResponse:
    """Returns a workflow's notes as plain text, for the frame in which the pages show them."""
    notes = html.escape((parse_qs(urlsplit(target).query).get("content") or [""])[0])
    page = f"<!doctype html><meta charset=utf-8><body style='font:14px sans-serif;white-space:pre-wrap'>{notes}"
    return HttpResponse(200, {"content-type": "text/html", "content-security-policy": _FRAME_POLICY}, page.encode())


class WebPages:
    """The Web UI's files: from the copy in the data folder, or from a server that is started for them."""

    def __init__(self, folder: Path, program: Path) -> None:
        self._program = program
        self._cache = folder / _identity(program)
        self._starting = asyncio.Lock()
        self._port: int | None = None
        self._server_task: asyncio.Task[None] | None = None
        self._requested_at = 0.0

    async def get(self, path: str) -> HttpResponse | None:
        """Returns one file, or None if the server that has it does not start."""
        cached = self._cache / hashlib.sha256(path.encode()).hexdigest()
        with suppress(OSError, ValueError, KeyError):
            head, _, body = cached.read_bytes().partition(b"\n")
            header = json.loads(head)
            return HttpResponse(200, {"content-type": header["type"], "cache-control": header["cache"]}, body)
        port = await self._server()
        if port is None:
            return None
        response = await http_request(HOST, port, "GET", path, {"Host": f"{HOST}:{port}"}, seconds=_START_SECONDS)
        if response is None or response.status != 200:
            return response
        lasting = "max-age=86400, immutable" if "/immutable/" in path else "no-cache"
        head = json.dumps({"type": response.headers.get("content-type", ""), "cache": lasting}).encode()
        with suppress(OSError):  # on a full disk it is requested again next time
            self._store(cached, head + b"\n" + response.body)
        return HttpResponse(
            200, {"content-type": response.headers.get("content-type", ""), "cache-control": lasting}, response.body
        )

    async def close(self) -> None:
        """Ends the server, if it runs."""
        if self._server_task is not None:
            self._server_task.cancel()
            await asyncio.wait({self._server_task})

    def _store(self, file: Path, content: bytes) -> None:
        if not self._cache.is_dir():
            shutil.rmtree(self._cache.parent, ignore_errors=True)  # from another version
            self._cache.mkdir(parents=True, mode=0o700)
        fresh = file.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(file)

    async def _server(self) -> int | None:
        loop = asyncio.get_running_loop()
        self._requested_at = loop.time()
        async with self._starting:
            if self._port is None and (self._server_task is None or self._server_task.done()):
                port: asyncio.Future[int | None] = loop.create_future()
                self._server_task = asyncio.create_task(self._run_server(port))
                await port
            return self._port

    async def _run_server(self, port: asyncio.Future[int | None]) -> None:
        ports: list[int] = []
        for _ in range(4):
            ports.append(free_port(ports))
        frontend, ui, http, metrics = ports
        command = (
            self._program, "server", "start-dev", "--disable-config-file", "--disable-config-env", "--ip", HOST,
            "--port", str(frontend), "--ui-port", str(ui), "--http-port", str(http), "--metrics-port", str(metrics),
            "--ui-disable-news-fetch", "--log-level", "never",
            "--dynamic-config-value", 'frontend.httpAllowedHosts=["-"]',
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        process = None
        try:
            # It writes its version into a folder of its home.
            environ = {"PATH": "/usr/bin:/bin", "HOME": str(self._cache.parent)}
            process = await spawn(command, environ=environ, cwd=Path("/"))
            deadline = loop.time() + _START_SECONDS
            while process.returncode is None and loop.time() < deadline:
                if await http_request(HOST, ui, "GET", "/healthz", {"Host": HOST}) is not None:
                    self._port = ui
                    break
                await asyncio.sleep(_POLL_SECONDS)
            port.set_result(self._port)
            if self._port is not None:
                await self._until_idle()
        except OSError:
            pass
        finally:
            self._port = None
            if not port.done():
                port.set_result(None)
            if process is not None:
                kill_group(process.pid)
                await process.wait()

    async def _until_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            left = self._requested_at + _IDLE_SECONDS - loop.time()
            if left <= 0:
                return
            await asyncio.sleep(left)


def _identity(program: Path) -> str:
    try:
        status = program.stat()
    except OSError:
        return "unknown"
    return hashlib.sha256(f"{program} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m perdure.local.temporal_web LISTEN TARGET, each HOST:PORT")
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve_forever(sys.argv[1], sys.argv[2]))
