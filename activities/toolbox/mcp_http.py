"""A server over streamable HTTP: the library's transport over a client of ours, which notes each call and is bounded.

A request that fails becomes an answer with a status, never an exception: an exception would end the library's
connection, and with it every other call that is under way on it.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from activities.toolbox.mcp_wire import MOST_MESSAGE_BYTES, Note, Wire
from policy.retry_after import retry_after_seconds

_CONNECT_SECONDS = 5.0
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_BAD_GATEWAY = 502
"""Stands for a request that got no answer."""


@asynccontextmanager
async def http_streams(url: str, headers: Mapping[str, str], wire: Wire) -> AsyncIterator[Any]:
    """The two streams that the library's client speaks on."""
    # A call's own time-out bounds reading; an answer may be a stream that stays open for as long as the call runs.
    timeout = httpx2.Timeout(None, connect=_CONNECT_SECONDS, write=_CONNECT_SECONDS, pool=_CONNECT_SECONDS)
    plain = {**headers, "accept-encoding": "identity"}
    async with httpx2.AsyncClient(headers=plain, timeout=timeout, transport=_Noting(wire), trust_env=False) as client:
        async with streamable_http_client(url, http_client=client, max_sse_event_size=MOST_MESSAGE_BYTES) as streams:
            yield streams


class _Noting(httpx2.AsyncBaseTransport):
    """Requests as they go out and what comes back."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        # No connection is used twice: see perdure/targets.py, new_client.
        self._inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=100, max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        note = self._note(await request.aread())
        if note is not None:
            note.sent = True
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            if note is not None:
                note.sent = note.lost = not isinstance(error, _NEVER_SENT)
            return httpx2.Response(_BAD_GATEWAY, request=request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()  # it was not asked for, and what it unpacks to has no bound
            return httpx2.Response(_BAD_GATEWAY, request=request)
        if note is not None:
            note.status = response.status_code
            note.retry_after_seconds = retry_after_seconds(response.headers, datetime.now(UTC))
        if request.method != "POST" or not isinstance(response.stream, httpx2.AsyncByteStream):
            return response  # the stream of what a server says unasked, event by event, for as long as it is open
        bounded = _Bounded(response.stream, note or Note())
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=bounded, extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _note(self, body: bytes) -> Note | None:
        try:
            message = json.loads(body) if body else None
        except ValueError:
            return None
        return self._wire.note(message) if isinstance(message, dict) else None


class _Bounded(httpx2.AsyncByteStream):
    """An answer's bytes, no more than one message may have; what breaks it off ends it."""

    def __init__(self, inner: httpx2.AsyncByteStream, note: Note) -> None:
        self._inner = inner
        self._note = note

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_MESSAGE_BYTES
        try:
            async for piece in self._inner:
                left -= len(piece)
                if left < 0:
                    self._note.too_large = True
                    return
                yield piece
        except httpx2.TransportError:
            return

    async def aclose(self) -> None:
        await self._inner.aclose()
