"""The outermost layer of the process, around API and pages. It checks the host and the client of each request, and sets
the headers of every response.

It reads only the head of a request, before any token, cookie or rate limit. A page of another site that reaches this
server under its own name (DNS rebinding) therefore learns nothing and changes nothing.
"""

import asyncio
import json
import time
from collections import Counter
from typing import ClassVar

import h11
import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from perdure.api.errors import error_body
from perdure.api.health import PERIMETER_EVENTS
from perdure.api.middleware import RequestRefused
from perdure.core.request_origin import AllowedHosts, Proxies, counted_as, parse_host
from perdure.store.database import new_id

HEAD_SECONDS = 10.0
"""The time from the connection, or from the first byte of a further request, to the end of the request's head. Also the
time from a response to the end of a body that the client still sends."""
RETRY_AFTER_SECONDS = 15
FILES_PER_ADDRESS_DIVISOR = 4
"""One address can hold at most this fraction (1/4) of the files that the process can open."""
_SPARE_FILES = 256
"""Files for Postgres, Valkey, Temporal and the log when connections take all others."""
_LOG_INTERVAL_SECONDS = 60.0
_RAW_SECURITY_HEADERS = "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
ANY_HOST = frozenset({"/healthz", "/readyz"})
"""Paths that work under every host. An orchestrator's probes use other addresses, and the response is one word."""
FORWARDED_FOR, FORWARDED_PROTO = "x-forwarded-for", "x-forwarded-proto"
_COMMON_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every response that does not set them itself."""
_TLS_SECONDS = 31_536_000
_log = structlog.get_logger(__name__)


class ThrottledEvent:
    """Counts every occurrence of an event, and logs it at most once a minute, so that a flood does not fill the log."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._occurrences = 0
        self._logged_at = -_LOG_INTERVAL_SECONDS

    def note(self, **details: object) -> None:
        """Counts one occurrence. `details` are logged if this occurrence is the one that is logged."""
        PERIMETER_EVENTS.labels(event=self._event).inc()
        self._occurrences += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_INTERVAL_SECONDS:
            _log.warning(self._event, times=self._occurrences, **details)
            self._occurrences, self._logged_at = 0, now


class ConnectionSlots:
    """Counts the connections or requests of each address, within the number of files that the process can open."""

    def __init__(self, per_address: int, max_files: int) -> None:
        self.per_address = min(per_address, max_files // FILES_PER_ADDRESS_DIVISOR)
        """0 means no limit."""
        self.total = max(max_files - _SPARE_FILES, max_files // 2)
        self._by_address: Counter[str] = Counter()
        self._in_use = 0

    def acquire(self, address: str, *, counted: bool = True) -> str:
        """Takes a slot and returns an empty text, or returns the code of the rejection if no slot is free."""
        if self._in_use >= self.total:
            return "server_full"
        if counted and self.per_address and self._by_address[address] >= self.per_address:
            return "too_many_connections"
        self._by_address[address] += 1
        self._in_use += 1
        return ""

    def release(self, address: str) -> None:
        """Frees a connection slot of the address."""
        self._by_address[address] -= 1
        self._in_use -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def rejection(self, code: str) -> tuple[int, str]:
        """Returns the HTTP status and the message of a connection that has no slot: 503 if the server is full, 429 if
        the address has too many."""
        if code == "server_full":
            return 503, "The server has reached its connection limit; retry later"
        return 429, (
            f"Your address has {self.per_address} open connections or requests, the limit of this API process "
            "(PERDURE_CONNECTIONS_PER_ADDRESS); close some and retry"
        )


CONNECTION_REJECTIONS = {
    code: ThrottledEvent(code) for code in ("too_many_connections", "server_full", "head_too_slow")
}


class Connection(H11Protocol):
    """Uvicorn's connection with a deadline for the heads of its requests, and a counted slot for its address. Uvicorn
    itself closes a connection only while it idles between two requests. Without these limits, a connection that never
    sends a request, or sends its head byte by byte, would stay open as long as its client wants. There could be any
    number of them."""

    slots: ClassVar[ConnectionSlots]
    proxies: ClassVar[Proxies]
    head_seconds: ClassVar[float] = HEAD_SECONDS
    _deadline: asyncio.TimerHandle | None = None
    _slot_address: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a slot, or rejects the connection if none is free. The clients of a proxy are counted by their
        requests instead."""
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        address = counted_as(peer)
        rejection = self.slots.acquire(address, counted=not self.proxies.include(peer))
        if rejection:
            CONNECTION_REJECTIONS[rejection].note(address=address)
            status, message = self.slots.rejection(rejection)
            self._reject(status, rejection, message, f"Retry-After: {RETRY_AFTER_SECONDS}\r\n")
            return
        self._slot_address = address
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees the slot of the connection and ends its deadline."""
        self._stop_deadline()
        if self._slot_address is not None:
            self.slots.release(self._slot_address)
            self._slot_address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Updates the deadline after each read."""
        super().data_received(data)
        self._start_deadline()

    def on_response_complete(self) -> None:
        """Updates the deadline for the next request."""
        super().on_response_complete()
        self._start_deadline()

    def _should_upgrade(self) -> bool:
        return False  # No route uses another protocol, so the request is handled as plain HTTP.

    def _start_deadline(self) -> None:
        """Keeps a deadline while a head, or a body that already has its response, is arriving. Further data does not
        extend it."""
        their_state, is_idle = self.conn.their_state, self.timeout_keep_alive_task is not None
        awaits_head = their_state is h11.IDLE and not is_idle
        if not awaits_head and not (their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE):
            self._stop_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._too_slow)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        CONNECTION_REJECTIONS["head_too_slow"].note(address=self._slot_address)
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            message = f"The request headers took longer than {self.head_seconds:.0f} s"
            self._reject(408, "head_too_slow", message)
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Responds to malformed HTTP in the form that all errors share."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._reject(400, "request_malformed", "The request is not valid HTTP/1.1")
        else:
            self.transport.close()

    def _reject(self, status: int, code: str, message: str, extra_headers: str = "") -> None:
        """Responds without the application and closes the connection, because there is no complete request."""
        body = json.dumps(error_body(code, message, {}, new_id())).encode()
        head = (
            f"HTTP/1.1 {status} {STATUS_PHRASES[status].decode()}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{_RAW_SECURITY_HEADERS}{extra_headers}Connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def connection_class(slots: ConnectionSlots, proxies: Proxies, head_seconds: float = HEAD_SECONDS) -> type[Connection]:
    """Returns a uvicorn connection class whose connections share `slots`. The head of a request must arrive within
    `head_seconds`."""
    return type("Connection", (Connection,), {"slots": slots, "proxies": proxies, "head_seconds": head_seconds})


_HOST_REJECTED, _UNKNOWN_PROXY = ThrottledEvent("host_not_allowed"), ThrottledEvent("forwarded_by_unknown_proxy")


class Perimeter:
    """Checks the head of a request and passes the request on."""

    def __init__(
        self, app: ASGIApp, hosts: AllowedHosts, proxies: Proxies, slots: ConnectionSlots, *, tls: bool = False
    ) -> None:
        """`slots` counts the clients behind proxies. With `tls`, responses require browsers to use only TLS."""
        self._app, self._hosts, self._proxies, self._slots = app, hosts, proxies, slots
        self._common_headers = _COMMON_HEADERS | (
            {"Strict-Transport-Security": f"max-age={_TLS_SECONDS}"} if tls else {}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Rejects the request or passes it on."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, send_answer = Headers(scope=scope), self._with_common_headers(send, is_head=scope["method"] == "HEAD")
        try:
            self._check_head(scope, headers)
            resolved = self._resolve_client(scope, headers)
            if resolved["client"] == scope.get("client"):
                await self._app(resolved, receive, send_answer)
            else:
                await self._run_within_client_limit(resolved, receive, send_answer)
        except RequestRefused as refused:
            await _send_refusal(refused, headers, send_answer)

    def _check_head(self, scope: Scope, headers: Headers) -> None:
        """Raises: RequestRefused 400 if two parsers could see two requests in this head, 421 `host_not_allowed`."""
        if not scope.get("raw_path", scope["path"].encode()).startswith(b"/"):
            raise RequestRefused(
                400, "target_invalid", "Send only the path in the request line, for example GET /v1/turns"
            )
        if "content-length" in headers and "transfer-encoding" in headers:
            close = (b"connection", b"close")
            raise RequestRefused(400, "length_ambiguous", "Send either Content-Length or Transfer-Encoding", close)
        values = headers.getlist("host")
        if (scope["path"] in ANY_HOST and scope["method"] in ("GET", "HEAD")) or self._hosts.allow(values):
            return
        host = parse_host(values[0]) if len(values) == 1 else None
        description = f"requests for the host {host.host}" if host else "requests without exactly one valid Host header"
        _HOST_REJECTED.note(host=host.host if host else "")
        raise RequestRefused(
            421,
            "host_not_allowed",
            f"This server does not accept {description}; use its own address, or ask the operator to add the host to "
            "PERDURE_ALLOWED_HOSTS",
        )

    def _resolve_client(self, scope: Scope, headers: Headers) -> Scope:
        """Returns the request with the address of its client, if it came through a proxy of the operator. A HEAD
        becomes a GET."""
        peer = (scope.get("client") or ("", 0))[0]
        forwarded = headers.getlist(FORWARDED_FOR)
        client = self._proxies.client(peer, forwarded)
        if forwarded and not self._proxies.include(peer):
            _UNKNOWN_PROXY.note(peer=counted_as(peer), advice="if this is your proxy, add it to PERDURE_PROXIES")
        return {
            **scope,
            "method": "GET" if scope["method"] == "HEAD" else scope["method"],
            "client": scope.get("client") if client == peer else (client, 0),
            "scheme": self._proxies.scheme(peer, headers.getlist(FORWARDED_PROTO), scope["scheme"]),
        }

    async def _run_within_client_limit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on within the limit of concurrent requests for a client behind a proxy.

        Raises: RequestRefused 429 `too_many_connections`, 503 `server_full`.
        """
        address = counted_as(scope["client"][0])
        rejection = self._slots.acquire(address)
        if rejection:
            CONNECTION_REJECTIONS[rejection].note(address=address)
            status, message = self._slots.rejection(rejection)
            raise RequestRefused(status, rejection, message, (b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
        try:
            await self._app(scope, receive, send)
        finally:
            self._slots.release(address)

    def _with_common_headers(self, send: Send, *, is_head: bool) -> Send:
        """Adds the headers that all responses have. The response to a HEAD consists of its headers only, for streams as
        well."""

        async def send_with_headers(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            if is_start:
                headers = MutableHeaders(scope=message)
                for name, value in self._common_headers.items():
                    headers.setdefault(name, value)
            if is_start or not is_head:
                await send(message)
            if is_start and is_head:
                await send({"type": "http.response.body", "body": b""})

        return send_with_headers


async def _send_refusal(refused: RequestRefused, request_headers: Headers, send: Send) -> None:
    """Sends a plain sentence to a browser, and the form that all errors share to a program."""
    request_id = new_id()
    if "text/html" in request_headers.get("accept", ""):
        media_type, body = b"text/plain; charset=utf-8", f"{refused.message}.\n".encode()
    else:
        media_type = b"application/json"
        body = json.dumps(error_body(refused.code, refused.message, {}, request_id)).encode()
    headers = [(b"content-type", media_type), (b"content-length", str(len(body)).encode()), *refused.headers]
    headers.append((b"x-request-id", request_id.encode()))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
