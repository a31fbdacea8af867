"""The checks that every request passes first: an id, a valid token, a size limit, unambiguous JSON and text that can be
stored. For browsers, also proof that a page of this server sent the request.

Pure ASGI, so that streams are not buffered. The token is checked before the body, so that callers without one learn
nothing from how a body is parsed. Bodies are read whole (256 KiB by default), checked and passed on. The body of an
uploaded file is not: its route reads it (`perdure/api/uploads.py`).
"""

import asyncio
import json
import re
import time
import uuid
from codecs import BOM_UTF8
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.api import credentials
from perdure.api.auth import (
    AUTHENTICATED_PREFIX,
    OPEN_PATHS,
    OPERATOR_PATHS,
    SIGN_IN,
    bearer_token_of,
    owner_of,
    session_in,
    uses_tls,
)
from perdure.api.errors import (
    PART_ERRORS,
    RETRY_AFTER_SECONDS,
    UNAVAILABLE_MESSAGE,
    error_body,
    log_outage,
    outage_code,
)
from perdure.api.health import REQUESTS
from perdure.api.services import Services
from perdure.contracts.errors import CallerError, LimitReached
from perdure.core.request_origin import SAFE_METHODS, is_foreign
from perdure.core.text import clean, is_clean

_CHAT_TOKEN_REQUESTS = re.compile(
    r"GET /v1/approvals/[0-9a-fA-F-]{36}|POST /v1/approvals/[0-9a-fA-F-]{36}/decision|GET /v1/auth/me"
)
CSRF_HEADER = b"x-perdure-request"
"""The header can have any value."""
CSRF_FIELD = "csrf"
"""The field of a form."""
FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
_PURPOSE = "form token"
_MAX_FIELDS = 2_000
MAX_JSON_DEPTH = 64
"""The maximum depth of JSON; deeper nesting is rejected."""
_VALUE_CHARACTERS = 60
_BODY_SECONDS = 30.0
_MAX_DISCARDED_BYTES = 64 * 1024 * 1024
_DISCARD_SECONDS = 5.0
_UPLOAD_PATH = re.compile(r"/v1/conversations/[^/]+/files")
"""Paths whose body is a file and not JSON."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})


async def authenticate(scope: Scope) -> None:
    """Stores the owner of the token or session in the request's state, and counts the request. Below `/v1` it counts by
    user, for a page by session, and otherwise by address. An operator token has no owner and is not counted.

    It runs before any byte of the body is read.

    Raises: CallerError 401, 403 `chat_token`; LimitReached `rate_limited`; the database's errors if it is unavailable.
    """
    services: Services = scope["app"].state.services
    headers, secure = Headers(scope=scope), uses_tls(services, scope)
    authorization, cookie = headers.get("authorization", ""), headers.get("cookie", "")
    path, count = scope["path"], services.rates.count_request
    if path in OPERATOR_PATHS and services.operators.contains(bearer_token_of(authorization)):
        scope["state"]["is_operator"] = True
        return
    if path in OPEN_PATHS or not (path.startswith(AUTHENTICATED_PREFIX) or path in OPERATOR_PATHS):
        session_id = None if path in OPEN_PATHS else session_in(services, cookie, secure=secure)
        await (count(scope, "session", session_id) if session_id else count(scope))
        return
    try:
        caller = await owner_of(services, authorization, cookie, secure=secure)
    except CallerError:
        await count(scope)
        raise
    if caller.is_in_chat and not _CHAT_TOKEN_REQUESTS.fullmatch(f"{scope['method']} {path}"):
        raise CallerError("chat_token", "A chat token can only read its approval and decide on it", status=403)
    scope["state"]["principal"] = caller
    if not caller.has_local_token:
        await count(scope, "person", caller.tenant_id, caller.user_id)


def form_token(services: Services, session_id: str) -> str:
    """Returns the token that every form of this session's pages has in the field `csrf`."""
    return services.tokens.keys.newest.derive(_PURPOSE, session_id)


def check_csrf(services: Services, scope: Scope, headers: Mapping[bytes, bytes], body: bytes) -> None:
    """Rejects requests that a page of another site may have sent.

    Browsers send the session cookie with requests that any page triggers, so the cookie alone changes nothing. A
    request that changes something must also prove that a page of this server made it. The proof is a custom header,
    which a page of another site cannot set, or the session's form token, which it cannot read.

    Raises: CallerError 403 `foreign_origin`, `csrf_missing`; 422 for a form that cannot be parsed.
    """
    form = _form_fields(headers, body)
    if scope["method"] in SAFE_METHODS or headers.get(b"authorization"):
        return
    host, origin, site = (_header_text(headers, name) for name in (b"host", b"origin", b"sec-fetch-site"))
    if is_foreign(host, origin, site):
        raise CallerError("foreign_origin", "The request came from a page of another site", status=403)
    if scope["path"] in OPEN_PATHS or scope["path"] == SIGN_IN:
        return
    session_id = session_in(services, _header_text(headers, b"cookie"), secure=uses_tls(services, scope))
    if session_id is None or headers.get(CSRF_HEADER):
        return
    token = form.get(CSRF_FIELD, [""])[0]
    if not services.tokens.keys.verifies(token, _PURPOSE, session_id):
        raise CallerError(
            "csrf_missing",
            (
                "Requests with a session cookie need a CSRF token: send it in the header "
                f"`{CSRF_HEADER.decode()}` or in the form field `{CSRF_FIELD}`"
            ),
            status=403,
        )


def _form_fields(headers: Mapping[bytes, bytes], body: bytes) -> dict[str, list[str]]:
    if not _header_text(headers, b"content-type").startswith(FORM_MEDIA_TYPE):
        return {}
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:
        raise CallerError("form_unreadable", "The form body is malformed") from None
    if not all(map(is_clean, (*fields, *(value for values in fields.values() for value in values)))):
        raise CallerError("text_not_storable", "The form contains a NUL character, which cannot be stored; remove it")
    return fields


def _header_text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


class RequestRefused(Exception):
    """A rejected request and its response."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *headers: tuple[bytes, bytes],
        details: dict[str, object] | None = None,
    ) -> None:
        self.status, self.code, self.message, self.headers = status, code, message, headers
        self.details = details or {}


def check_media_type(content_type: str) -> None:
    """Raises: RequestRefused 415 if the `Content-Type` header does not name JSON."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json")):
        return
    raise RequestRefused(
        415,
        "unsupported_media_type",
        "The body must be JSON; send the header `Content-Type: application/json`"
        + (f", not {clean(media_type[:_VALUE_CHARACTERS])}" if media_type else ""),
    )


def _reject_duplicate_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Builds an object and rejects duplicate names: one value would be lost, and which one depends on the parser."""
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            shown = json.dumps(clean(name[:_VALUE_CHARACTERS]))
            raise RequestRefused(400, "duplicate_key", f"An object in the body contains the name {shown} twice")
        members[name] = value
    return members


def check_json(body: bytes) -> None:
    """Raises: RequestRefused 400 if the body is not unambiguous JSON, 422 if a value cannot be stored. A body must have
    one meaning for every parser."""
    try:
        # `json.loads` would also accept bytes in UTF-16 and UTF-32.
        value = json.loads(body.decode(), object_pairs_hook=_reject_duplicate_names)
    except (ValueError, RecursionError):
        raise RequestRefused(400, "malformed_json", "The body is not valid JSON") from None
    _check_value(value)


def _check_value(value: object) -> None:
    """Checks the depth without recursion, and that Postgres can store the values."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        next_level: list[object] = []
        for item in level:
            if isinstance(item, str) and not is_clean(item):
                raise RequestRefused(
                    422, "text_not_storable", "A string in the body contains a NUL character or a lone surrogate"
                )
            if isinstance(item, float) and item - item != 0:
                raise RequestRefused(422, "number_not_finite", "A number in the body is not finite")
            if isinstance(item, int) and not isinstance(item, bool) and item.bit_length() > 1_000:
                raise RequestRefused(422, "number_too_large", "A number in the body is too large")
            if isinstance(item, dict):
                next_level += [*item.keys(), *item.values()]
            elif isinstance(item, list):
                next_level += item
        if not next_level:
            return
        level = next_level
    raise RequestRefused(422, "json_too_deep", f"The body is nested deeper than {MAX_JSON_DEPTH} levels")


_log = structlog.get_logger(__name__)


class Intake:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks the request, then passes it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = str(uuid.uuid4())
        started_at = time.monotonic()
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_request_id(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                _count_request(scope, message["status"], time.monotonic() - started_at)
            await send(message)

        is_file = scope["method"] == "POST" and _UPLOAD_PATH.fullmatch(scope["path"]) is not None
        try:
            _check_head(scope)
            await _authenticate_or_refuse(scope, receive)
            async with asyncio.timeout(_BODY_SECONDS):
                body = b"" if is_file else await self._read_body(scope, receive)
            _check_sender(scope, body)
        except TimeoutError:
            slow = RequestRefused(408, "body_too_slow", f"The request body took longer than {_BODY_SECONDS:.0f} s")
            await _send_refusal(send_with_request_id, slow, request_id)
            return
        except RequestRefused as refused:
            await _send_refusal(send_with_request_id, refused, request_id)
            return
        if is_file:
            await _pass_on_upload(self._app, scope, receive, send_with_request_id)
        else:
            await self._app(scope, _replay_body(body, receive), send_with_request_id)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return b""
        max_bytes = self._max_bytes
        chunks: list[bytes] = []
        size = 0
        has_more = True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestRefused(
                    400, "client_disconnected", "The connection closed before the request was complete"
                )
            chunk = message.get("body", b"")
            size += len(chunk)
            has_more = message.get("more_body", False)
            if size > max_bytes:
                if has_more:
                    await _discard_body(receive)
                excess = f"The request body exceeds {max_bytes} bytes (PERDURE_BODY_BYTES)"
                raise RequestRefused(413, "body_too_large", excess, details={"limit_bytes": max_bytes})
            chunks.append(chunk)
        body = b"".join(chunks)
        if body and not _is_form(scope):
            check_media_type(_single_header(scope, b"content-type"))
            body = body.removeprefix(BOM_UTF8)  # editors and some clients write it
            check_json(body)
        return body


async def _pass_on_upload(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Passes the body on as it arrives. A response before the end of the body is a rejection. The rest is then
    discarded for some time, because a client that is disconnected while it sends does not read the response. After
    that, the connection closes."""
    is_over = False

    async def counting_receive() -> Message:
        nonlocal is_over
        message = await receive()
        is_over = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message

    async def recording_send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and not is_over:
            await _discard_body(receive)
            message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
        await send(message)

    await app(scope, counting_receive, recording_send)


async def _authenticate_or_refuse(scope: Scope, receive: Receive) -> None:
    try:
        await authenticate(scope)
    except (CallerError, LimitReached) as error:
        refused = _refusal_of(scope, error)
        # The client waits before it sends its body, and may or may not send it after this response.
        if _single_header(scope, b"expect"):
            refused.headers = (*refused.headers, (b"connection", b"close"))
        elif _single_header(scope, b"content-length") or _single_header(scope, b"transfer-encoding"):
            await _discard_body(receive)
        raise refused from error
    except PART_ERRORS as error:
        code = outage_code(error)
        if not code:
            raise
        log_outage(error, scope["path"])
        retry_after = (b"retry-after", str(RETRY_AFTER_SECONDS).encode())
        raise RequestRefused(503, code, UNAVAILABLE_MESSAGE, retry_after) from error


def _refusal_of(scope: Scope, error: CallerError | LimitReached) -> RequestRefused:
    if isinstance(error, LimitReached):
        retry_after = (b"retry-after", str(error.details["retry_after_seconds"]).encode())
        return RequestRefused(error.http_status, error.code, error.message, retry_after)
    if error.http != 401:
        return RequestRefused(error.http, error.code, error.message)
    headers = [(b"www-authenticate", b"Bearer")]
    secure = uses_tls(scope["app"].state.services, scope)
    session_token = credentials.read_cookie(_single_header(scope, b"cookie"), credentials.SESSION_COOKIE, secure=secure)
    if session_token and not _single_header(scope, b"authorization"):
        headers.append(credentials.clear_cookie_header(credentials.SESSION_COOKIE, secure=secure))
    return RequestRefused(error.http, error.code, error.message, *headers)


def _is_form(scope: Scope) -> bool:
    """Returns whether the body is a form. Pages send forms; below `/v1`, every body is JSON."""
    return not scope["path"].startswith(AUTHENTICATED_PREFIX) and _single_header(scope, b"content-type").startswith(
        FORM_MEDIA_TYPE
    )


def _check_sender(scope: Scope, body: bytes) -> None:
    try:
        check_csrf(scope["app"].state.services, scope, dict(scope["headers"]), body)
    except CallerError as error:
        raise RequestRefused(error.http, error.code, error.message) from error


def _single_header(scope: Scope, name: bytes) -> str:
    values = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1") if values else ""


async def _discard_body(receive: Receive) -> None:
    """Discards what still arrives, for some time: a client that is disconnected while it sends does not read the
    response."""
    bytes_left = _MAX_DISCARDED_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while bytes_left > 0:
                message = await receive()
                bytes_left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


def _count_request(scope: Scope, status: int, seconds: float) -> None:
    """Counts by route and not by path, since paths contain ids. Measures to the first byte, since streams stay open."""
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if scope["method"] in _METHODS else "other"
    REQUESTS.labels(method=method, route=route, status=status).observe(seconds)


def _check_head(scope: Scope) -> None:
    path = unquote_to_bytes(scope.get("raw_path") or scope["path"].encode("utf-8", "replace"))
    query = unquote_to_bytes(scope["query_string"].replace(b"+", b" "))
    for raw, part in ((path, "path"), (query, "query")):
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise RequestRefused(400, "not_utf8", f"The {part} is not valid UTF-8") from None
        if not is_clean(text):
            raise RequestRefused(400, "text_not_storable", f"The {part} contains a NUL character")
    for name, value in scope["headers"]:
        if name in (b"idempotency-key", b"last-event-id") and (len(value) > 255 or not value.isascii()):
            raise RequestRefused(
                400, "header_invalid", f"The header {name.decode()} must have at most 255 ASCII characters"
            )
        if name == b"idempotency-key" and not value.strip():
            raise RequestRefused(
                400, "header_invalid", "The header idempotency-key is empty; set a value or omit the header"
            )


def _replay_body(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def receive_again() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return receive_again


async def _send_refusal(send: Send, refused: RequestRefused, request_id: str) -> None:
    body = json.dumps(error_body(refused.code, refused.message, refused.details, request_id)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += refused.headers
    if refused.status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
