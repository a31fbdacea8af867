"""The transport for httpx2, which the MCP client and Authlib use: the same rules as in httpx_transport.py."""

import asyncio
from collections.abc import AsyncIterator
from functools import lru_cache

import httpcore2
import httpx2

from perdure.core.egress import Outbound
from perdure.egress.exchange import (
    Call,
    CheckedNetwork,
    Meter,
    ask_for_known_encodings,
    current_call,
    direct_and_proxied,
    read_body,
    read_headers,
    route_of,
)

_FAILURES = (httpcore2.ConnectError, httpcore2.ConnectTimeout)
# Each connection is used once: see new_client in httpx_transport.py.
_LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=0)
_CONTEXT = lru_cache(maxsize=1)(httpx2.create_ssl_context)


class Transport2(httpx2.AsyncBaseTransport):
    """Sends requests under the rules of `outbound`."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        self._direct, self._proxied = direct_and_proxied(
            httpx2.AsyncHTTPTransport,
            httpcore2.AsyncConnectionPool,
            outbound,
            _CONTEXT(),
            _LIMITS,
            _Network(outbound, httpcore2.AnyIOBackend(), _FAILURES),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends one request and returns the response, whose body is read under the limits of the current call.

        Raises: EgressRefused, DeadlineMissed; httpx2's own exceptions.
        """
        call = current_call()
        route = route_of(self._outbound, request.url, request.extensions)
        ask_for_known_encodings(request.headers)
        inner = self._proxied if route.proxied and self._proxied is not None else self._direct
        try:
            async with asyncio.timeout(call.wait()):
                response = await inner.handle_async_request(request)
        except TimeoutError as error:
            raise call.missed(route.host, "respond", sent=True) from error
        meter = Meter(self._outbound, call, request.method, route.host, response.status_code, response.headers)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        body = _Body(response.stream, meter, call, route.host)
        headers = read_headers(response.headers.raw, meter)
        return httpx2.Response(response.status_code, headers=headers, stream=body, extensions=response.extensions)

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._direct.aclose()
        if self._proxied is not None:
            await self._proxied.aclose()


class _Network(CheckedNetwork[httpcore2.AsyncNetworkStream], httpcore2.AsyncNetworkBackend):
    pass


class _Body(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, meter: Meter, call: Call, host: str) -> None:
        self._inner, self._meter, self._call, self._host = inner, meter, call, host

    def __aiter__(self) -> AsyncIterator[bytes]:
        return read_body(aiter(self._inner), self._meter, self._call, self._host, httpx2.DecodingError)

    async def aclose(self) -> None:
        await self._inner.aclose()
