"""The transport for httpx2, which the MCP client and Authlib use: the same rules as in httpx_transport.py."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable
from functools import lru_cache
from typing import Any

import httpcore2
import httpx2

from perdure.core.egress import Outbound
from perdure.egress.exchange import (
    ACCEPTED_ENCODINGS,
    DeadlineMissed,
    Meter,
    connect_checked,
    current_call,
    route_of,
    seconds_left,
)

_FAILURES = (httpcore2.ConnectError, httpcore2.ConnectTimeout)
# Each connection is used once: see new_client in httpx_transport.py.
_LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=0)
_CONTEXT = lru_cache(maxsize=1)(httpx2.create_ssl_context)


class Transport2(httpx2.AsyncBaseTransport):
    """Sends requests under the rules of `outbound`."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        context = _CONTEXT()
        self._direct = httpx2.AsyncHTTPTransport(verify=context, limits=_LIMITS)
        # httpx2 has no parameter for httpcore2's `network_backend`.
        self._direct._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=_LIMITS.max_connections,
            max_keepalive_connections=_LIMITS.max_keepalive_connections,
            network_backend=_Network(outbound),
        )
        self._proxied = (
            httpx2.AsyncHTTPTransport(verify=context, limits=_LIMITS, proxy=outbound.proxy) if outbound.proxy else None
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends one request and returns the response, whose body is read under the limits of the current call.

        Raises: EgressRefused, DeadlineMissed; httpx2's own exceptions.
        """
        call, url = current_call(), request.url
        route = route_of(self._outbound, url.scheme, url.raw_host.decode("ascii"), url.port, request.extensions)
        if request.headers.get("accept-encoding") != "identity":
            request.headers["accept-encoding"] = ACCEPTED_ENCODINGS
        inner = self._proxied if route.proxied and self._proxied is not None else self._direct
        try:
            async with asyncio.timeout(seconds_left(call.deadline)):
                response = await inner.handle_async_request(request)
        except TimeoutError as error:
            raise DeadlineMissed(f"{route.host} did not respond in time", sent=True) from error
        limit = call.answer_bytes or self._outbound.answer_bytes
        meter = Meter(limit, call, request.method, route.host, response.status_code, response.headers)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        body = _Body(response.stream, meter, call.deadline, route.host)
        dropped_headers = (b"content-encoding", b"content-length") if meter.unpacks else ()
        headers = [(name, value) for name, value in response.headers.raw if name.lower() not in dropped_headers]
        return httpx2.Response(response.status_code, headers=headers, stream=body, extensions=response.extensions)

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._direct.aclose()
        if self._proxied is not None:
            await self._proxied.aclose()


class _Network(httpcore2.AsyncNetworkBackend):
    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        async def connect(address: str, seconds: float | None) -> httpcore2.AsyncNetworkStream:
            return await self._inner.connect_tcp(address, port, seconds, local_address, socket_options)

        return await connect_checked(self._outbound, host, port, timeout, connect, _FAILURES)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Body(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, meter: Meter, deadline: float | None, host: str) -> None:
        self._inner, self._meter, self._deadline, self._host = inner, meter, deadline, host

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._inner)
        while not self._meter.closed:
            try:
                async with asyncio.timeout(seconds_left(self._deadline)):
                    data = await anext(pieces, None)
            except TimeoutError as error:
                raise DeadlineMissed(f"{self._host} did not complete its response in time", sent=True) from error
            if data is None:
                return
            try:
                for piece in self._meter.unpack(data):
                    yield piece
            except zlib.error as error:
                raise httpx2.DecodingError(f"{self._host}: {error}") from error

    async def aclose(self) -> None:
        await self._inner.aclose()
