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
from perdure.api.middleware import Refused
from perdure.core.request_origin import AllowedHosts, Proxies, counted_as, parse_host
from perdure.store.database import new_id

HEAD_SECONDS = 10.0
"""The time from the connection, or from the first byte of a further request, to the end of the request's head. Also the
time from a response to the end of a body that the client still sends."""
RETRY_AFTER_SECONDS = 15
SHARE_OF_FILES = 4
"""One address can hold at most this fraction (1/4) of the files that the process can open."""
_SPARE_FILES = 256
"""Files for Postgres, Valkey, Temporal and the log when connections take all others."""
_LOG_INTERVAL_SECONDS = 60.0
_SAFE = "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
_log = structlog.get_logger(__name__)


class ThrottledEvent:
    """Counts every occurrence of an event, and logs it at most once a minute, so that a flood does not fill the log."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._times = 0
        self._logged_at = -_LOG_INTERVAL_SECONDS

    def note(self, **facts: object) -> None:
        """Counts one occurrence. `facts` are logged if this occurrence is the one that is logged."""
        PERIMETER_EVENTS.labels(event=self._event).inc()
        self._times += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_INTERVAL_SECONDS:
            _log.warning(self._event, times=self._times, **facts)
            self._times, self._logged_at = 0, now


class ConnectionSlots:
    """Counts the connections or requests of each address, within the number of files that the process can open."""

    def __init__(self, per_address: int, most_files: int) -> None:
        self.per_address = min(per_address, most_files // SHARE_OF_FILES)
        """0 means no limit."""
        self.in_all = max(most_files - _SPARE_FILES, most_files // 2)
        self._of: Counter[str] = Counter()
        self._held = 0

    def acquire(self, address: str, *, counted: bool = True) -> str:
        """Takes a place and returns an empty text, or returns the code of the rejection if no place is free."""
        if self._held >= self.in_all:
            return "server_full"
        if counted and self.per_address and self._of[address] >= self.per_address:
            return "too_many_connections"
        self._of[address] += 1
        self._held += 1
        return ""

    def release(self, address: str) -> None:
        """Frees the place."""
        self._of[address] -= 1
        self._held -= 1
        if not self._of[address]:
            del self._of[address]

    def rejection(self, code: str) -> tuple[int, str]:
        """Returns the status and the message of a rejection."""
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
    """Uvicorn's connection with a deadline for the heads of its requests, and a counted place for its address. Uvicorn
    itself closes a connection only while it idles between two requests. Without these limits, a connection that never
    sends a request, or sends its head byte by byte, would stay open as long as its client likes. There could be any
    number of them."""

    places: ClassVar[ConnectionSlots]
    proxies: ClassVar[Proxies]
    head_seconds: ClassVar[float] = HEAD_SECONDS
    _deadline: asyncio.TimerHandle | None = None
    _place: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a place, or rejects the connection if none is free. The clients of a proxy are counted by their
        requests instead."""
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        place = counted_as(peer)
        refused = self.places.acquire(place, counted=not self.proxies.include(peer))
        if refused:
            CONNECTION_REJECTIONS[refused].note(address=place)
            status, message = self.places.rejection(refused)
            self._reject(status, refused, message, f"Retry-After: {RETRY_AFTER_SECONDS}\r\n")
            return
        self._place = place
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees the place."""
        self._stop_deadline()
        if self._place is not None:
            self.places.release(self._place)
            self._place = None
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
        theirs, idles = self.conn.their_state, self.timeout_keep_alive_task is not None
        head = theirs is h11.IDLE and not idles
        if not head and not (theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE):
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
        CONNECTION_REJECTIONS["head_too_slow"].note(address=self._place)
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

    def _reject(self, status: int, code: str, message: str, more: str = "") -> None:
        """Responds without the application and closes the connection, because there is no complete request."""
        body = json.dumps(error_body(code, message, {}, new_id())).encode()
        head = (
            f"HTTP/1.1 {status} {STATUS_PHRASES[status].decode()}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{_SAFE}{more}Connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def connection_class(places: ConnectionSlots, proxies: Proxies, head_seconds: float = HEAD_SECONDS) -> type[Connection]:
    """Returns the connection class of one server; its connections share their places."""
    return type("Connection", (Connection,), {"places": places, "proxies": proxies, "head_seconds": head_seconds})


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
_HOST_REJECTION, _UNKNOWN_PROXY = ThrottledEvent("host_not_allowed"), ThrottledEvent("forwarded_by_unknown_proxy")


class Perimeter:
    """Checks the head of a request and passes the request on."""

    def __init__(
        self, app: ASGIApp, hosts: AllowedHosts, proxies: Proxies, places: ConnectionSlots, *, tls: bool = False
    ) -> None:
        """`places` counts the clients behind proxies. With `tls`, responses require browsers to use only TLS."""
        self._app, self._hosts, self._proxies, self._places = app, hosts, proxies, places
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
        headers, answer = Headers(scope=scope), self._with_common_headers(send, is_head=scope["method"] == "HEAD")
        try:
            self._check_head(scope, headers)
            known = self._resolve_client(scope, headers)
            if known["client"] == scope.get("client"):
                await self._app(known, receive, answer)
            else:
                await self._run_within_client_limit(known, receive, answer)
        except Refused as refused:
            await _send_refusal(refused, headers, answer)

    def _check_head(self, scope: Scope, headers: Headers) -> None:
        """Raises: Refused 400 if two parsers could see two requests in this head, 421 `host_not_allowed`."""
        if not scope.get("raw_path", scope["path"].encode()).startswith(b"/"):
            raise Refused(400, "target_invalid", "Send only the path in the request line, for example GET /v1/turns")
        if "content-length" in headers and "transfer-encoding" in headers:
            close = (b"connection", b"close")
            raise Refused(400, "length_ambiguous", "Send either Content-Length or Transfer-Encoding", close)
        values = headers.getlist("host")
        if (scope["path"] in ANY_HOST and scope["method"] in ("GET", "HEAD")) or self._hosts.allow(values):
            return
        found = parse_host(values[0]) if len(values) == 1 else None
        shown = f"requests for the host {found.host}" if found else "requests without exactly one valid Host header"
        _HOST_REJECTION.note(host=found.host if found else "")
        raise Refused(
            421,
            "host_not_allowed",
            f"This server does not accept {shown}; use its own address, or ask the operator to add the host to "
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

        Raises: Refused 429 `too_many_connections`, 503 `server_full`.
        """
        place = counted_as(scope["client"][0])
        refused = self._places.acquire(place)
        if refused:
            CONNECTION_REJECTIONS[refused].note(address=place)
            status, message = self._places.rejection(refused)
            raise Refused(status, refused, message, (b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
        try:
            await self._app(scope, receive, send)
        finally:
            self._places.release(place)

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


async def _send_refusal(refused: Refused, request_headers: Headers, send: Send) -> None:
    """Sends a plain sentence to a browser, and the form that all errors share to a program."""
    request_id = new_id()
    if "text/html" in request_headers.get("accept", ""):
        kind, body = b"text/plain; charset=utf-8", f"{refused.message}.\n".encode()
    else:
        kind = b"application/json"
        body = json.dumps(error_body(refused.code, refused.message, {}, request_id)).encode()
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *refused.headers]
    headers.append((b"x-request-id", request_id.encode()))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
