"""A server over streamable HTTP: the library's transport over a client of ours, which notes each call, is bounded, and
reaches the server only by the rules of outgoing requests (egress/).

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
from egress import AnswerWithheld, Call, EgressRefused, calling
from egress.transport2 import Transport2
from policy.egress import Outbound
from policy.retry_after import retry_after_seconds

_CONNECT_SECONDS = 5.0
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_BAD_GATEWAY = 502
"""Stands for a request that got no answer."""
_ENDLESS = 2**62
"""Bytes of the stream of what a server says unasked: it is open for as long as the session."""


@asynccontextmanager
async def http_streams(url: str, headers: Mapping[str, str], wire: Wire, outbound: Outbound) -> AsyncIterator[Any]:
    """The two streams that the library's client speaks on. An answer has `answer_bytes` of `outbound` at most."""
    # A call's own time-out bounds reading; an answer may be a stream that stays open for as long as the call runs.
    timeout = httpx2.Timeout(None, connect=_CONNECT_SECONDS, write=_CONNECT_SECONDS, pool=_CONNECT_SECONDS)
    plain = {**headers, "accept-encoding": "identity"}
    transport = _Noting(wire, outbound)
    async with httpx2.AsyncClient(headers=plain, timeout=timeout, transport=transport, trust_env=False) as client:
        async with streamable_http_client(url, http_client=client, max_sse_event_size=MOST_MESSAGE_BYTES) as streams:
            yield streams


class _Noting(httpx2.AsyncBaseTransport):
    """Requests as they go out and what comes back."""

    def __init__(self, wire: Wire, outbound: Outbound) -> None:
        self._wire = wire
        self._inner = Transport2(outbound)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        note = self._note(await request.aread())
        if note is not None:
            note.sent = True
        unasked = Call() if request.method == "POST" else Call(stream_bytes=_ENDLESS)
        try:
            with calling(unasked):
                response = await self._inner.handle_async_request(request)
        except EgressRefused as error:
            self._wire.refused = str(error)
            if note is not None:
                note.sent = False
            return httpx2.Response(_BAD_GATEWAY, request=request)
        except httpx2.TransportError as error:
            if note is not None:
                note.sent = note.lost = not isinstance(error, _NEVER_SENT)
            return httpx2.Response(_BAD_GATEWAY, request=request)
        if note is not None:
            note.status = response.status_code
            note.retry_after_seconds = retry_after_seconds(response.headers, datetime.now(UTC))
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        ending = _Ending(response.stream, note or Note())
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=ending, extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _note(self, body: bytes) -> Note | None:
        try:
            message = json.loads(body) if body else None
        except ValueError:
            return None
        return self._wire.note(message) if isinstance(message, dict) else None


class _Ending(httpx2.AsyncByteStream):
    """An answer's bytes; what breaks it off, or makes it too large, ends it without an exception."""

    def __init__(self, inner: httpx2.AsyncByteStream, note: Note) -> None:
        self._inner = inner
        self._note = note

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._inner:
                yield piece
        except AnswerWithheld:
            self._note.too_large = True
        except (httpx2.TransportError, httpx2.DecodingError):
            return

    async def aclose(self) -> None:
        await self._inner.aclose()
