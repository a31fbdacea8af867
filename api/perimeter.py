"""The outermost layer of the process, around API and pages: under which host a request came, from whom, and the headers
of every answer.

It looks at the head of a request alone, before any token, cookie or count, so that a page of another site which reaches
this server under a name of its own (DNS rebinding) learns nothing and changes nothing.
"""

import json

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.connections import RETRY_AFTER_SECONDS, TURNED_AWAY, Folded, Places
from api.errors import error_body
from api.json_body import Refused
from policy.addresses import Proxies, counted_as
from policy.hosts import AllowedHosts, named
from store.ids import new_id

ANY_HOST = frozenset({"/healthz", "/readyz"})
"""Answered under every host: an orchestrator's probes ask by an address of their own, and learn one word."""
FORWARDED_FOR, FORWARDED_PROTO = "x-forwarded-for", "x-forwarded-proto"
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer that does not set its own."""
_TLS_SECONDS = 31_536_000
_HOST_FOLDED, _PROXY_FOLDED = Folded("host_not_allowed"), Folded("forwarded_by_unknown_proxy")


class Perimeter:
    """Checks the head of a request and hands it on."""

    def __init__(
        self, app: ASGIApp, hosts: AllowedHosts, proxies: Proxies, places: Places, *, tls: bool = False
    ) -> None:
        """`places` are of the clients behind proxies. With `tls`, answers ask browsers to come back over TLS alone."""
        self._app, self._hosts, self._proxies, self._places = app, hosts, proxies, places
        self._always = _ALWAYS | ({"Strict-Transport-Security": f"max-age={_TLS_SECONDS}"} if tls else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refusal, or hand the request on."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, answer = Headers(scope=scope), self._dressed(send, is_head=scope["method"] == "HEAD")
        try:
            self._check(scope, headers)
            known = self._with_client(scope, headers)
            if known["client"] == scope.get("client"):
                await self._app(known, receive, answer)
            else:
                await self._one_of_its_client(known, receive, answer)
        except Refused as refused:
            await _answer(refused, headers, answer)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raises: Refused 400 if two readers of this head could read two requests in it, 421 `host_not_allowed`."""
        if not scope.get("raw_path", scope["path"].encode()).startswith(b"/"):
            raise Refused(400, "target_invalid", "Send the path alone in the request line, for example GET /v1/turns")
        if "content-length" in headers and "transfer-encoding" in headers:
            close = (b"connection", b"close")
            raise Refused(400, "length_ambiguous", "Send either Content-Length or Transfer-Encoding", close)
        values = headers.getlist("host")
        if (scope["path"] in ANY_HOST and scope["method"] in ("GET", "HEAD")) or self._hosts.allow(values):
            return
        found = named(values[0]) if len(values) == 1 else None
        shown = f"the host {found.host}" if found else "requests without one valid Host header"
        _HOST_FOLDED.note(host=found.host if found else "")
        raise Refused(
            421,
            "host_not_allowed",
            f"This server does not answer {shown}; open it under its own address, or have its operator add the host to "
            "PERDURE_ALLOWED_HOSTS",
        )

    def _with_client(self, scope: Scope, headers: Headers) -> Scope:
        """The request with the address of its client, behind a proxy of the operator; a HEAD as the GET that it is."""
        peer = (scope.get("client") or ("", 0))[0]
        forwarded = headers.getlist(FORWARDED_FOR)
        client = self._proxies.client(peer, forwarded)
        if forwarded and not self._proxies.include(peer):
            _PROXY_FOLDED.note(peer=counted_as(peer), advice="if this is a proxy of yours, name it in PERDURE_PROXIES")
        return {
            **scope,
            "method": "GET" if scope["method"] == "HEAD" else scope["method"],
            "client": scope.get("client") if client == peer else (client, 0),
            "scheme": self._proxies.scheme(peer, headers.getlist(FORWARDED_PROTO), scope["scheme"]),
        }

    async def _one_of_its_client(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on one of the requests that a client behind a proxy may have under way.

        Raises: Refused 429 `too_many_connections`, 503 `server_full`.
        """
        place = counted_as(scope["client"][0])
        refused = self._places.take(place)
        if refused:
            TURNED_AWAY[refused].note(address=place)
            status, message = self._places.why(refused)
            raise Refused(status, refused, message, (b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
        try:
            await self._app(scope, receive, send)
        finally:
            self._places.give_back(place)

    def _dressed(self, send: Send, *, is_head: bool) -> Send:
        """Add the headers that every answer has. The answer to a HEAD ends with its head, a stream's too."""

        async def dressed(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            if is_start:
                headers = MutableHeaders(scope=message)
                for name, value in self._always.items():
                    headers.setdefault(name, value)
            if is_start or not is_head:
                await send(message)
            if is_start and is_head:
                await send({"type": "http.response.body", "body": b""})

        return dressed


async def _answer(refused: Refused, asked: Headers, send: Send) -> None:
    """A sentence for a person at a browser, the one error form for a program."""
    request_id = new_id()
    if "text/html" in asked.get("accept", ""):
        kind, body = b"text/plain; charset=utf-8", f"{refused.message}.\n".encode()
    else:
        kind = b"application/json"
        body = json.dumps(error_body(refused.code, refused.message, {}, request_id)).encode()
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *refused.headers]
    headers.append((b"x-request-id", request_id.encode()))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
