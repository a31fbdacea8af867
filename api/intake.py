"""What every request passes first: an id, its token, a size limit, JSON without a trap, text that can be stored, and
of a browser the proof that a page of ours sent it.

Pure ASGI, so that a stream is not buffered. The token comes before the body, so that whoever has none learns nothing
from how a body is read. A body is read here whole (256 KiB at most), checked, and handed on. The body of an uploaded
file is not: its route reads it (`api/uploads.py`).
"""

import asyncio
import json
import re
import time
import uuid
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_to_bytes

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import cookies, csrf
from api.auth import GUARDED, is_secure
from api.entrance import enter
from api.errors import AWAY, OUTAGES, RETRY_AFTER_SECONDS, error_body
from api.json_body import Refused, check_json, check_media_type
from api.metrics import REQUESTS
from contracts.errors import CallerError, LimitReached
from policy.text import is_clean

_BODY_SECONDS = 30.0
_READ_ON_BYTES = 64 * 1024 * 1024
_READ_ON_SECONDS = 5.0
_FILES = re.compile(r"/v1/conversations/[^/]+/files")
"""Where a body is a file and no JSON."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})
_log = structlog.get_logger(__name__)


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

        is_file = scope["method"] == "POST" and _FILES.fullmatch(scope["path"]) is not None
        try:
            _check_head(scope)
            await _let_in(scope, receive)
            async with asyncio.timeout(_BODY_SECONDS):
                body = b"" if is_file else await self._body(scope, receive)
            _check_sender(scope, body)
        except TimeoutError:
            slow = Refused(408, "body_too_slow", f"the body did not come within {_BODY_SECONDS:.0f} s")
            await _refuse(named, slow, request_id)
            return
        except Refused as refused:
            await _refuse(named, refused, request_id)
            return
        if is_file:
            await _hand_on_file(self._app, scope, receive, named)
        else:
            await self._app(scope, _replay(body, receive), named)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return b""
        most = self._most_bytes
        chunks: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "client_disconnected", "the request broke off")
            chunk = message.get("body", b"")
            size += len(chunk)
            more = message.get("more_body", False)
            if size > most:
                if more:
                    await _read_on(receive)
                told = f"a request body may have {most} bytes at most (PERDURE_BODY_BYTES)"
                raise Refused(413, "body_too_large", told, details={"limit_bytes": most})
            chunks.append(chunk)
        body = b"".join(chunks)
        if body and not _is_form(scope):
            check_media_type(_header(scope, b"content-type"))
            check_json(body)
        return body


async def _hand_on_file(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Hands the body on as it comes. An answer before its end is a refusal: the rest is thrown away for a while, since
    a client that is cut off while it sends does not read the answer, and then the connection ends."""
    is_over = False

    async def watched() -> Message:
        nonlocal is_over
        message = await receive()
        is_over = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message

    async def answered(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and not is_over:
            await _read_on(receive)
            message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
        await send(message)

    await app(scope, watched, answered)


async def _let_in(scope: Scope, receive: Receive) -> None:
    try:
        await enter(scope)
    except (CallerError, LimitReached) as error:
        refused = _turned_away(scope, error)
        if _header(scope, b"expect"):  # the client waits before it sends its body; it may now send it, or not
            refused.headers = (*refused.headers, (b"connection", b"close"))
        elif _header(scope, b"content-length") or _header(scope, b"transfer-encoding"):
            await _read_on(receive)
        raise refused from error
    except OUTAGES as error:
        _log.warning("part_unavailable", error=type(error).__name__, path=scope["path"])
        again = (b"retry-after", str(RETRY_AFTER_SECONDS).encode())
        raise Refused(503, "unavailable", AWAY, again) from error


def _turned_away(scope: Scope, error: CallerError | LimitReached) -> Refused:
    if isinstance(error, LimitReached):
        again = (b"retry-after", str(error.details["retry_after_seconds"]).encode())
        return Refused(error.http_status, error.code, error.message, again)
    if error.http != 401:
        return Refused(error.http, error.code, error.message)
    headers = [(b"www-authenticate", b"Bearer")]
    secure = is_secure(scope["app"].state.services, scope)
    given = cookies.read(_header(scope, b"cookie"), cookies.SESSION, secure=secure)
    if given and not _header(scope, b"authorization"):
        headers.append(cookies.clearing(cookies.SESSION, secure=secure))
    return Refused(error.http, error.code, error.message, *headers)


def _is_form(scope: Scope) -> bool:
    """Pages send forms; below `/v1` everything is JSON."""
    return not scope["path"].startswith(GUARDED) and _header(scope, b"content-type").startswith(csrf.FORM)


def _check_sender(scope: Scope, body: bytes) -> None:
    try:
        csrf.check(scope["app"].state.services, scope, dict(scope["headers"]), body)
    except CallerError as error:
        raise Refused(error.http, error.code, error.message) from error


def _header(scope: Scope, name: bytes) -> str:
    found = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1") if found else ""


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
            raise Refused(400, "not_utf8", f"the {where} is not UTF-8") from None
        if not is_clean(text):
            raise Refused(400, "text_not_storable", f"the {where} holds a NUL")
    for name, value in scope["headers"]:
        if name in (b"idempotency-key", b"last-event-id") and (len(value) > 255 or not value.isascii()):
            raise Refused(400, "header_invalid", f"{name.decode()}: at most 255 ASCII characters")
        if name == b"idempotency-key" and not value.strip():
            raise Refused(400, "header_invalid", "idempotency-key: is empty; leave it out, or send one")


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


async def _refuse(send: Send, refused: Refused, request_id: str) -> None:
    body = json.dumps(error_body(refused.code, refused.message, refused.details, request_id)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += refused.headers
    if refused.status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
