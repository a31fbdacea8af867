"""Transports for httpx: one for event loops, one for blocking threads."""

import asyncio
import importlib
import ssl
import sys
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

import httpcore
import httpx

from perdure.core.egress import Outbound
from perdure.egress.exchange import (
    MAX_ADDRESSES,
    Call,
    CheckedNetwork,
    DeadlineMissed,
    Meter,
    Rewriter,
    ask_for_known_encodings,
    check_addresses,
    current_call,
    direct_and_proxied,
    host_of,
    is_literal,
    read_body,
    read_headers,
    resolve_blocking,
    route_of,
    seconds_left,
    time_share,
)

_FAILURES = (httpcore.ConnectError, httpcore.ConnectTimeout)
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)
NO_REUSE = httpx.Limits(max_connections=100, max_keepalive_connections=0)
_MORE_REQUESTS = 2
"""Limit of the requests that an adapter sends in place of a refused one: a server can refuse two parameters, one at a
time."""
UNGUARDED = ("aiohttp_openai/",)
"""Prefixes of models whose requests would bypass these transports."""
BLOCKING_SECONDS = 60.0
"""Time limit of one exchange from a blocking thread, such as an embedding. Each read also has LiteLLM's own timeout."""
_RULES = "perdure_outbound"
_HANDLERS = "litellm.llms.custom_httpx.http_handler"


def new_client(outbound: Outbound, **options: Any) -> httpx.AsyncClient:
    """Returns a client that sends through `Transport` and uses each connection once.

    If a target closes a kept connection at the moment of the next request, the request looks lost on the way. The
    outcome of an opaque call would be unknown without need.
    """
    return httpx.AsyncClient(transport=Transport(outbound, limits=NO_REUSE), trust_env=False, **options)


class Transport(httpx.AsyncBaseTransport):
    """Sends requests under the rules of `outbound`."""

    def __init__(
        self, outbound: Outbound, *, verify: ssl.SSLContext | None = None, limits: httpx.Limits = _LIMITS
    ) -> None:
        self._outbound = outbound
        self._direct, self._proxied = direct_and_proxied(
            httpx.AsyncHTTPTransport,
            httpcore.AsyncConnectionPool,
            outbound,
            verify or _trusted(),
            limits,
            _Network(outbound, httpcore.AnyIOBackend(), _FAILURES),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends one request and returns its answer, whose body is read under the limits of the current call.

        Raises: EgressRefused, DeadlineMissed; httpx's own exceptions.
        """
        call = current_call()
        route = route_of(self._outbound, request.url, request.extensions)
        ask_for_known_encodings(request.headers)
        inner = self._proxied if route.proxied and self._proxied is not None else self._direct
        if call.exchange is not None:
            call.exchange.begin(f"{route.host}:{route.port}", request.url.path)
        response, sent = await self._exchange(inner, request, call, route.host), request
        for _ in range(_MORE_REQUESTS):
            again = await _request_again(sent, response, call)
            if again is None:
                break
            response, sent = await self._exchange(inner, again, call, route.host, request), again
        return response

    async def _exchange(
        self,
        inner: httpx.AsyncHTTPTransport,
        request: httpx.Request,
        call: Call,
        host: str,
        original: httpx.Request | None = None,
    ) -> httpx.Response:
        """Sends a request. `original` is the client's own request, if this is another one in its place."""
        sent = False

        async def trace(event: str, _: object) -> None:
            nonlocal sent
            sent = sent or event.endswith("send_request_headers.started")

        wait = call.wait()
        if wait is not None:
            request.extensions["trace"] = trace
        try:
            async with asyncio.timeout(wait):
                response = await inner.handle_async_request(request)
        except TimeoutError as error:
            raise call.missed(host, "respond", sent=sent) from error
        if call.exchange is not None:
            call.exchange.respond(response.status_code, response.headers.get("content-type", ""))
        meter = _meter(self._outbound, call, request, host, response)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        rewriter = _rewriter(original or request, response, call)
        return _metered(response, meter, _Body(response.stream, meter, call, host, rewriter), rewriter)

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._direct.aclose()
        if self._proxied is not None:
            await self._proxied.aclose()


class BlockingTransport(httpx.BaseTransport):
    """Sends requests from a blocking thread. The deadline is checked between the pieces of an answer; the client's own
    timeout limits each piece."""

    def __init__(
        self, outbound: Outbound, *, verify: ssl.SSLContext | None = None, seconds: float | None = None
    ) -> None:
        """`seconds` limits an exchange without its own deadline."""
        self._outbound, self._seconds = outbound, seconds
        self._direct, self._proxied = direct_and_proxied(
            httpx.HTTPTransport,
            httpcore.ConnectionPool,
            outbound,
            verify or _trusted(),
            _LIMITS,
            _BlockingNetwork(outbound),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Sends one request and returns its answer, whose body is read under the limits of the current call.

        Raises: EgressRefused; httpx's own exceptions.
        """
        call = current_call()
        route = route_of(self._outbound, request.url, request.extensions)
        ask_for_known_encodings(request.headers)
        inner = self._proxied if route.proxied and self._proxied is not None else self._direct
        deadline = call.deadline
        if deadline is None and self._seconds is not None:
            deadline = time.monotonic() + self._seconds
        response = inner.handle_request(request)
        meter = _meter(self._outbound, call, request, route.host, response)
        assert isinstance(response.stream, httpx.SyncByteStream)
        return _metered(response, meter, _BlockingBody(response.stream, meter, deadline, route.host))

    def close(self) -> None:
        """Closes every connection."""
        self._direct.close()
        if self._proxied is not None:
            self._proxied.close()


class _Network(CheckedNetwork[httpcore.AsyncNetworkStream], httpcore.AsyncNetworkBackend):
    pass


class _BlockingNetwork(httpcore.NetworkBackend):
    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        name = host_of(host)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            addresses = [name] if is_literal(name) else resolve_blocking(name, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from error
        check_addresses(self._outbound, name, port, addresses)
        candidates = addresses[:MAX_ADDRESSES]
        for index, address in enumerate(candidates):
            try:
                seconds = time_share(deadline, len(candidates) - index)
                return self._inner.connect_tcp(address, port, seconds, local_address, socket_options)
            except _FAILURES:
                if index == len(candidates) - 1:
                    raise
        raise httpcore.ConnectError(f"{name} has no IP address")


class _Body(httpx.AsyncByteStream):
    def __init__(
        self, inner: httpx.AsyncByteStream, meter: Meter, call: Call, host: str, rewriter: Rewriter | None
    ) -> None:
        self._inner, self._meter, self._call, self._host = inner, meter, call, host
        self._rewriter = rewriter

    def __aiter__(self) -> AsyncIterator[bytes]:
        return read_body(aiter(self._inner), self._meter, self._call, self._host, httpx.DecodingError, self._rewriter)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BlockingBody(httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, meter: Meter, deadline: float | None, host: str) -> None:
        self._inner, self._meter, self._deadline, self._host = inner, meter, deadline, host

    def __iter__(self) -> Iterator[bytes]:
        for data in self._inner:
            remaining = seconds_left(self._deadline)
            if remaining is not None and remaining <= 0:
                raise DeadlineMissed(f"{self._host} did not complete its response in time", sent=True)
            try:
                yield from self._meter.unpack(data)
            except zlib.error as error:
                raise httpx.DecodingError(f"{self._host}: {error}") from error
            if self._meter.closed:
                return

    def close(self) -> None:
        self._inner.close()


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """Returns the trusted certificates, read once: 20 ms."""
    return httpx.create_ssl_context()


def _meter(outbound: Outbound, call: Call, request: httpx.Request, host: str, response: httpx.Response) -> Meter:
    return Meter(outbound, call, request.method, host, response.status_code, response.headers)


def _body_of(request: httpx.Request) -> bytes:
    # Not `request.content`, which a request after a redirect does not have.
    return b"".join(request.stream) if isinstance(request.stream, httpx.ByteStream) else b""


def _rewriter(request: httpx.Request, response: httpx.Response, call: Call) -> Rewriter | None:
    if call.adapter is None or not response.is_success:
        return None
    return call.adapter.rewriter(_body_of(request), response.headers.get("content-type", ""))


async def _request_again(request: httpx.Request, response: httpx.Response, call: Call) -> httpx.Request | None:
    """Returns the request to send in place of a refused one; None if there is none."""
    if call.adapter is None or response.status_code not in (400, 422):
        return None
    try:
        body = call.adapter.request_again(_body_of(request), await response.aread())
    finally:
        await response.aclose()
    if body is None:
        return None
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    return httpx.Request(request.method, request.url, headers=headers, content=body, extensions=request.extensions)


def _metered(
    response: httpx.Response,
    meter: Meter,
    body: httpx.AsyncByteStream | httpx.SyncByteStream,
    rewriter: Rewriter | None = None,
) -> httpx.Response:
    headers = read_headers(response.headers.raw, meter, rewritten=rewriter is not None)
    return httpx.Response(response.status_code, headers=headers, stream=body, extensions=response.extensions)


def guard(litellm: Any, outbound: Outbound) -> None:
    """Applies the rules of `outbound` to every client that LiteLLM creates afterwards. A process has one set of rules
    for LiteLLM, the last one.

    LiteLLM (1.106) creates its clients in three places: `AsyncHTTPHandler` and `HTTPHandler`, which most providers use,
    and the clients for the OpenAI SDK. The first and the last take their transport from
    `AsyncHTTPHandler.create_async_transport`; the synchronous ones are replaced here. A client with a given transport
    reads no proxy variables. `aiohttp_openai/` models use a separate session and are rejected.

    Raises: RuntimeError if the installed version creates its clients in another way.
    """
    previous_rules = getattr(litellm, _RULES, None)
    if previous_rules == outbound:
        return
    handlers: Any = importlib.import_module(_HANDLERS)
    factories = (
        getattr(getattr(handlers, "AsyncHTTPHandler", None), "create_async_transport", None),
        getattr(getattr(handlers, "HTTPHandler", None), "_create_sync_transport", None),
    )
    if not all(factories) or not hasattr(litellm, "client_session"):
        raise RuntimeError("this version of LiteLLM makes its HTTP clients in a way that perdure/egress/ does not know")

    def new_transport(ssl_context: ssl.SSLContext | None = None, ssl_verify: bool | None = None, **_: Any) -> Transport:
        return Transport(outbound, verify=_context(ssl_context, ssl_verify))

    new_blocking_transport = partial(_blocking, outbound)
    litellm.disable_aiohttp_transport = True
    litellm.force_ipv4 = False  # it would mount the proxies of the environment
    handlers.AsyncHTTPHandler.create_async_transport = staticmethod(new_transport)
    handlers.AsyncHTTPHandler._create_async_transport = staticmethod(new_transport)
    handlers.AsyncHTTPHandler.single_connection_post_request = _not_again
    handlers.HTTPHandler._create_sync_transport = new_blocking_transport
    if previous_rules is not None:
        litellm.client_session.close()
    litellm.client_session = httpx.Client(
        transport=new_blocking_transport(None), trust_env=False, follow_redirects=True
    )
    litellm.in_memory_llm_clients_cache.flush_cache()
    setattr(litellm, _RULES, outbound)


def _blocking(outbound: Outbound, _: object = None) -> BlockingTransport:
    return BlockingTransport(outbound, seconds=BLOCKING_SECONDS)


async def _not_again(*_: Any, **__: Any) -> Any:
    """Replaces LiteLLM's own second request after a lost connection: the provider may have worked on the first one.

    It raises the exception that LiteLLM is handling.
    """
    raise sys.exc_info()[1] or RuntimeError("LiteLLM sends a request again without an error")


def _context(context: ssl.SSLContext | None, verify: bool | None) -> ssl.SSLContext | None:
    """Returns LiteLLM's own certificate settings, if the operator has set any."""
    if context is not None or verify is not False:
        return context
    return httpx.create_ssl_context(verify=False)
