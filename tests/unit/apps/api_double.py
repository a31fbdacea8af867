"""A small real HTTP server that sends given answers in order, and records its requests."""

import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Reply:
    """One answer. Without a status the connection breaks before any byte."""

    status: int | None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    breaks_off: bool = False
    """The body is cut off instead of ended."""


def reply(body: object, status: int = 200, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, json.dumps(body).encode(), {"Content-Type": "application/json", **named})


def streamed(*pieces: str, breaks_off: bool = False) -> Reply:
    return Reply(200, "".join(pieces).encode(), {"Content-Type": "text/event-stream"}, breaks_off)


def event(kind: str, identity: str | None = None, **data: Any) -> str:
    lines = [f"event: {kind}", f"data: {json.dumps(data)}"]
    return "\n".join([f"id: {identity}", *lines] if identity else lines) + "\n\n"


BROKEN = Reply(None)
"""The connection breaks after the request has arrived."""


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


class ApiDouble:
    """Answers each request with the next reply; with none left, with 500."""

    def __init__(self) -> None:
        self.replies: deque[Reply] = deque()
        self.asked: list[Asked] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                double.answer(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def will(self, *replies: Reply) -> None:
        """The next answers, in this order."""
        self.replies.extend(replies)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        raw = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        is_json = headers.get("content-type", "application/json") == "application/json"
        body = json.loads(raw) if raw and is_json else raw or None
        self.asked.append(Asked(handler.command, parts.path, parse_qs(parts.query), headers, body))
        sent = self.replies.popleft() if self.replies else reply({}, 500)
        handler.close_connection = sent.status is None or sent.breaks_off
        if sent.status is None:
            return
        handler.send_response(sent.status)
        for name, value in sent.headers.items():
            handler.send_header(name, value)
        if sent.status != 204:
            handler.send_header("Content-Length", str(len(sent.body) + (10 if sent.breaks_off else 0)))
        handler.end_headers()
        handler.wfile.write(sent.body)
