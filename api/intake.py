"""What every request passes first: an id, a size limit, and text that can be stored.

Pure ASGI, so that a stream is not buffered. A body is read here whole (256 KiB at most), checked, and handed on.
"""

import asyncio
import json
import time
import uuid
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import error_body
from api.metrics import REQUESTS
from policy.text import is_clean

MOST_DEPTH = 64
"""JSON nested deeper is refused."""
_BODY_SECONDS = 30.0
_READ_ON_BYTES = 64 * 1024 * 1024
_READ_ON_SECONDS = 5.0
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message


class Intake:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then hand on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = str(uuid.uuid4())
        began = time.monotonic()
        scope.setdefault("state", {})["request_id"] = request_id

        async def named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                _count(scope, message["status"], time.monotonic() - began)
            await send(message)

        try:
            _check_head(scope)
            async with asyncio.timeout(_BODY_SECONDS):
                body = await self._body(scope, receive)
        except TimeoutError:
            slow = _Refused(408, "body_too_slow", f"the body did not come within {_BODY_SECONDS:.0f} s")
            await _refuse(named, slow, request_id)
            return
        except _Refused as refused:
            await _refuse(named, refused, request_id)
            return
        await self._app(scope, _replay(body, receive), named)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return b""
        chunks: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Refused(400, "client_disconnected", "the request broke off")
            chunk = message.get("body", b"")
            size += len(chunk)
            more = message.get("more_body", False)
            if size > self._most_bytes:
                if more:
                    await _read_on(receive)
                raise _Refused(413, "body_too_large", f"a body may have {self._most_bytes} bytes at most")
            chunks.append(chunk)
        body = b"".join(chunks)
        if body:
            _check_json(body)
        return body


async def _read_on(receive: Receive) -> None:
    """Throw away what still comes, for a while: who is cut off while sending does not read the answer."""
    left = _READ_ON_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_READ_ON_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


def _count(scope: Scope, status: int, seconds: float) -> None:
    """Count by route and not by path, which holds ids; up to the first byte, since a stream stays open."""
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if scope["method"] in _METHODS else "other"
    REQUESTS.labels(method=method, route=route, status=status).observe(seconds)


def _check_head(scope: Scope) -> None:
    path = unquote_to_bytes(scope.get("raw_path") or scope["path"].encode("utf-8", "replace"))
    query = unquote_to_bytes(scope["query_string"].replace(b"+", b" "))
    for raw, where in ((path, "path"), (query, "query")):
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise _Refused(400, "not_utf8", f"the {where} is not UTF-8") from None
        if not is_clean(text):
            raise _Refused(400, "text_not_storable", f"the {where} holds a NUL")
    for name, value in scope["headers"]:
        if name in (b"idempotency-key", b"last-event-id") and (len(value) > 255 or not value.isascii()):
            raise _Refused(400, "header_invalid", f"{name.decode()}: at most 255 ASCII characters")


def _check_json(body: bytes) -> None:
    try:
        value = json.loads(body.decode())  # from bytes, UTF-16 and UTF-32 would pass as well
    except (ValueError, RecursionError):
        raise _Refused(400, "malformed_json", "the body is not JSON that can be read") from None
    _check_value(value)


def _check_value(value: object) -> None:
    """Walk without recursion: depth, and text that Postgres can hold."""
    level = [value]
    for _ in range(MOST_DEPTH):
        deeper: list[object] = []
        for each in level:
            if isinstance(each, str) and not is_clean(each):
                raise _Refused(422, "text_not_storable", "a text holds a NUL or half a character (a lone surrogate)")
            if isinstance(each, float) and each - each != 0:
                raise _Refused(422, "number_not_finite", "a number is not finite")
            if isinstance(each, int) and not isinstance(each, bool) and each.bit_length() > 1_000:
                raise _Refused(422, "number_too_large", "a number is too large")
            if isinstance(each, dict):
                deeper += [*each.keys(), *each.values()]
            elif isinstance(each, list):
                deeper += each
        if not deeper:
            return
        level = deeper
    raise _Refused(422, "json_too_deep", f"the body is nested deeper than {MOST_DEPTH} levels")


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


async def _refuse(send: Send, refused: _Refused, request_id: str) -> None:
    body = json.dumps(error_body(refused.code, refused.message, {}, request_id)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
