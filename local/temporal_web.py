"""Temporal's Web UI without its own server: the pages from a copy, the data from the server's HTTP API (ADR 29).

The dev server's Web UI has no list of allowed hosts, so it is not started. Its pages are the same in every run. They
are taken once, file by file as a browser asks for them, from a second server with an empty database in memory, which
ends a few seconds later. The data comes from the HTTP API of the real server, which answers to one host name only. That
name is made at random for each start, so no web page can send it. It is not a password: a process of this machine may
as well speak to the gRPC port, which asks for none.
"""

import asyncio
import hashlib
import html
import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from local.ports import HOST, free_ports
from local.probes import Answer, http_ask
from local.spawn import kill_group, spawn
from local.web_door import FORWARD_SECONDS, Backend

_FILES = re.compile(
    r"/(_app|css|codemirror|i18n)/|/(android|apple|banner|favicon|logo)|/(Temporal_Logo_Animation\.gif|site\.webmanifest)$"
)
"""The Web UI's files; every other path is the one page that finds its way by itself."""
_SETTINGS = "/api/v1/settings"
_RAW_JSON = "application/json+no-payload-shorthand"
"""Payloads as they are; the HTTP API's own form of them is not what the pages expect."""
_START_SECONDS = 20.0
_IDLE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_FRAME_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; form-action 'none'; sandbox"


def backend_of(api_port: int, api_host: str, pages: "WebPages") -> Backend:
    """What the door asks: the HTTP API of the server for data, the copy for pages."""

    async def answer(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer | None:
        path = urlsplit(target).path
        if path.startswith("/api/") and path != _SETTINGS:
            return await _data(method, target, body)
        if method not in ("GET", "HEAD"):
            return Answer(405, {"content-type": "text/plain"}, b"this page is only read")
        if path == "/render":
            return _rendered(target)
        if path == _SETTINGS or _FILES.match(path):
            return await pages.get(path)
        return await pages.get("/")

    async def _data(method: str, target: str, body: bytes) -> Answer | None:
        headers = {"Host": api_host, "Accept": _RAW_JSON}
        if body:
            headers["Content-Type"] = _RAW_JSON
        found = await http_ask(HOST, api_port, method, target, headers, body, FORWARD_SECONDS)
        kept = {"content-type": "application/json", "cache-control": "no-store"}
        return Answer(found.status, kept, found.body) if found is not None else None

    return answer


def _rendered(target: str) -> Answer:
    """A workflow's notes as plain text, for the frame in which the pages show them."""
    notes = html.escape((parse_qs(urlsplit(target).query).get("content") or [""])[0])
    page = f"<!doctype html><meta charset=utf-8><body style='font:14px sans-serif;white-space:pre-wrap'>{notes}"
    return Answer(200, {"content-type": "text/html", "content-security-policy": _FRAME_POLICY}, page.encode())


class WebPages:
    """The Web UI's files: from the copy in the data folder, or from a server that is started to ask for them."""

    def __init__(self, folder: Path, program: Path) -> None:
        self._program = program
        self._copy = folder / _identity(program)
        self._starting = asyncio.Lock()
        self._port: int | None = None
        self._life: asyncio.Task[None] | None = None
        self._asked_at = 0.0

    async def get(self, path: str) -> Answer | None:
        """One file; None when the server that has it does not start."""
        kept = self._copy / hashlib.sha256(path.encode()).hexdigest()
        with suppress(OSError, ValueError, KeyError):
            head, _, body = kept.read_bytes().partition(b"\n")
            said = json.loads(head)
            return Answer(200, {"content-type": said["type"], "cache-control": said["cache"]}, body)
        port = await self._server()
        if port is None:
            return None
        found = await http_ask(HOST, port, "GET", path, {"Host": f"{HOST}:{port}"}, seconds=_START_SECONDS)
        if found is None or found.status != 200:
            return found
        lasting = "max-age=86400, immutable" if "/immutable/" in path else "no-cache"
        head = json.dumps({"type": found.headers.get("content-type", ""), "cache": lasting}).encode()
        with suppress(OSError):  # on a full disk it is asked for again
            self._keep(kept, head + b"\n" + found.body)
        return Answer(
            200, {"content-type": found.headers.get("content-type", ""), "cache-control": lasting}, found.body
        )

    async def close(self) -> None:
        """End the server, if it runs."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait({self._life})

    def _keep(self, file: Path, content: bytes) -> None:
        if not self._copy.is_dir():
            shutil.rmtree(self._copy.parent, ignore_errors=True)  # of another version
            self._copy.mkdir(parents=True, mode=0o700)
        fresh = file.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(file)

    async def _server(self) -> int | None:
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        async with self._starting:
            if self._port is None and (self._life is None or self._life.done()):
                up: asyncio.Future[int | None] = loop.create_future()
                self._life = asyncio.create_task(self._live(up))
                await up
            return self._port

    async def _live(self, up: asyncio.Future[int | None]) -> None:
        frontend, ui, http, metrics = free_ports(4)
        command = (
            self._program, "server", "start-dev", "--disable-config-file", "--disable-config-env", "--ip", HOST,
            "--port", str(frontend), "--ui-port", str(ui), "--http-port", str(http), "--metrics-port", str(metrics),
            "--ui-disable-news-fetch", "--log-level", "never",
            "--dynamic-config-value", 'frontend.httpAllowedHosts=["-"]',
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        process = None
        try:
            # It writes which version it is into a folder of its home.
            environ = {"PATH": "/usr/bin:/bin", "HOME": str(self._copy.parent)}
            process = await spawn(command, environ=environ, cwd=Path("/"))
            deadline = loop.time() + _START_SECONDS
            while process.returncode is None and loop.time() < deadline:
                if await http_ask(HOST, ui, "GET", "/healthz", {"Host": HOST}) is not None:
                    self._port = ui
                    break
                await asyncio.sleep(_POLL_SECONDS)
            up.set_result(self._port)
            if self._port is not None:
                await self._until_idle()
        except OSError:
            pass
        finally:
            self._port = None
            if not up.done():
                up.set_result(None)
            if process is not None:
                kill_group(process.pid)
                await process.wait()

    async def _until_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            left = self._asked_at + _IDLE_SECONDS - loop.time()
            if left <= 0:
                return
            await asyncio.sleep(left)


def _identity(program: Path) -> str:
    try:
        found = program.stat()
    except OSError:
        return "unknown"
    return hashlib.sha256(f"{program} {found.st_size} {found.st_mtime_ns}".encode()).hexdigest()[:16]
