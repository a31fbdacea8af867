"""A visit: one request of a browser, and the API with that user's permissions.

The pages hold no credentials and no data. The browser's session cookie, bearer token and origin are passed on to the
API unread. The API identifies the user and decides what they can do. Changes require a form of these pages. Another
site's page can make a browser post, but it cannot read the session's form token. Its origin is already rejected.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qsl

import httpx
from fastapi import Depends, Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from perdure.client import ApiError, AsyncClient
from perdure.core.request_origin import is_foreign
from perdure.core.text import format_size, is_clean
from perdure.schemas.identity import Me

MAX_FORM_BYTES = 2 * 1024 * 1024
"""Percent-encoding makes three bytes from one. The API applies its own limit to what it receives."""
_CHUNK_BYTES = 256 * 1024
_MAX_FIELD_BYTES = 65_536
"""Maximum bytes of a form without its file."""
_MAX_DISCARDED_BYTES = 512 * 1024 * 1024
"""Bytes of a file above the limit that are read and discarded. A browser that is disconnected while it sends does not
show the error page."""
_MAX_FIELDS = 2_000
_TEXT_FIELDS = frozenset({"comment", "message", "reason_code", "option", "to"})
_UPLOAD_SECONDS = 300.0
_BODY_SECONDS = 30.0
TITLES = {
    400: "Invalid request",
    401: "Please sign in",
    403: "Not allowed",
    404: "Not found",
    405: "Not supported",
    408: "Request timed out",
    409: "Changed since you opened it",
    410: "No longer possible",
    411: "Invalid request",
    413: "Too large",
    415: "Invalid request",
    422: "Invalid input",
    429: "Too many requests",
    503: "Service temporarily unavailable",
}
TITLES_BY_CODE = {"quota_reached": "Quota reached"}
_DEFAULT_TITLE = "Something went wrong"
SEND_AGAIN_MESSAGE = "It is unclear whether your input was saved. Send it again; it counts only once."
"""Message for a form that was sent while a service was unavailable. Its idempotency key stays the same."""
_FORWARDED_HEADERS = ("cookie", "authorization", "origin", "sec-fetch-site", "host", "user-agent")
"""Headers of the browser's request that identify the user and the origin for the API."""
_PAGE_REQUEST_HEADER = "x-perdure-request"
"""Header that marks a request to the API as made by one of these pages. It is set once the form's token was checked."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form in their order. A name can occur several times."""

    pairs: Sequence[tuple[str, str]]

    def get(self, name: str, default: str = "") -> str:
        """Returns the first value of this name, without surrounding blanks."""
        return next((value.strip() for key, value in self.pairs if key == name), default)

    def raw(self, name: str) -> str | None:
        """Returns the first value of this name as it was typed, with line feeds as line ends."""
        return next((value.replace("\r\n", "\n") for key, value in self.pairs if key == name), None)

    def all(self, name: str) -> list[str]:
        """Returns every value that the form has under this name, in order."""
        return [value for key, value in self.pairs if key == name]


def typed_texts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Returns what a user typed into a form: words, and the fields of arguments."""
    return [value for name, value in pairs if value and (name in _TEXT_FIELDS or name.startswith("arg."))]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was sent with a form."""

    name: str
    media_type: str
    size_bytes: int
    file: UploadFile

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields the content from its beginning. A long file is on the disk."""
        await self.file.seek(0)
        while chunk := await self.file.read(_CHUNK_BYTES):
            yield chunk


def max_upload_bytes(request: Request) -> int:
    """Returns the maximum size of a file."""
    limit: int = request.app.state.most_upload_bytes
    return limit


@asynccontextmanager
async def read_upload(request: Request) -> AsyncIterator[tuple[Form, Upload | None]]:
    """Yields the fields and the file of a request's body; None if no file was chosen.

    Call it only after the sender is authenticated. A long file is on the disk, and is deleted after the block.

    Raises: PageProblem with a 4xx status.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        raise PageProblem(415, "This page accepts only its own form. Reload the page and send the form again.")
    announced_length = request.headers.get("content-length", "")
    if not announced_length.isdecimal():
        raise PageProblem(411, "The request has no Content-Length header. Reload the page and upload the file again.")
    max_bytes = max_upload_bytes(request)
    if int(announced_length) > max_bytes + _MAX_FIELD_BYTES:
        await _discard_rest(request)
        raise PageProblem(
            413, f"The file has {format_size(int(announced_length))}; the limit is {format_size(max_bytes)}."
        )
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(_UPLOAD_SECONDS):
                form = await stack.enter_async_context(request.form(max_files=1, max_fields=10))
        except TimeoutError:
            raise PageProblem(
                408, f"The upload took longer than {_UPLOAD_SECONDS:.0f} s. Try again, or use a smaller file."
            ) from None
        except HTTPException:
            raise PageProblem(400, "The form data is malformed. Reload the page and try again.") from None
        pairs = [(name, text) for name, text in form.multi_items() if isinstance(text, str)]
        file = next((each for _, each in form.multi_items() if isinstance(each, UploadFile)), None)
        upload = None
        if file is not None and file.filename:
            upload = Upload(file.filename, file.content_type or "", file.size or 0, file)
        _check_texts([*pairs, ("", upload.name if upload else "")])
        yield Form(pairs), upload


async def _discard_rest(request: Request) -> None:
    bytes_left = _MAX_DISCARDED_BYTES
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                bytes_left -= len(chunk)
                if bytes_left < 0:
                    return


def _check_texts(pairs: Sequence[tuple[str, str]]) -> None:
    if not all(is_clean(name) and is_clean(value) for name, value in pairs):
        raise PageProblem(
            422,
            (
                "The form contains a NUL character or a lone surrogate, which cannot be stored. Remove it and send "
                "the form again."
            ),
        )


async def read_form(request: Request) -> Form:
    """Returns the form in a request's body.

    Raises: PageProblem with a 4xx status.

    A form is read whole up to a limit before a page uses it. It has pairs of names and values.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise PageProblem(415, "This page accepts only its own form. Reload the page and send the form again.")
    body = b""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_FORM_BYTES:
                    raise PageProblem(413, f"The form exceeds {MAX_FORM_BYTES:,} bytes. Shorten it and send it again.")
    except TimeoutError:
        raise PageProblem(408, f"The form took longer than {_BODY_SECONDS:.0f} s to arrive. Try again.") from None
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS, encoding="utf-8", errors="strict"
        )
    except ValueError:
        raise PageProblem(400, "The form data is malformed. Reload the page and try again.") from None
    _check_texts(pairs)
    return Form(pairs)


@dataclass(eq=False)
class PageProblem(Exception):
    """A rejection by a page."""

    status: int
    message: str
    code: str = "page_refused"


@dataclass(eq=False)
class StaleForm(PageProblem):
    """A form of an earlier session. Nothing was sent, and the typed text is kept."""


@dataclass(frozen=True, slots=True)
class ShownProblem:
    """A problem as a page shows it: a plain message with a next step, without internal details."""

    status: int
    title: str
    message: str
    code: str
    request_id: str = ""
    retry_after_seconds: float | None = None


def problem_of(error: PageProblem | ApiError) -> ShownProblem:
    """Returns an error of the API or of a page as users see it."""
    if isinstance(error, PageProblem):
        return ShownProblem(error.status, title_of(error.status), error.message, error.code)
    status = error.status or 503
    headline = TITLES_BY_CODE.get(error.code) or title_of(status)
    return ShownProblem(status, headline, error.message, error.code, error.request_id, error.retry_after_seconds)


def title_of(status: int) -> str:
    """Returns the headline of a problem."""
    return TITLES.get(status, _DEFAULT_TITLE)


@dataclass(frozen=True, slots=True)
class BrowserRequest:
    """The context of a page."""

    request: Request
    api: AsyncClient
    me: Me | None = None
    """The signed-in user; None if a script requests a part of a page, or if no user is signed in."""

    @property
    def is_live(self) -> bool:
        """True if a page's script requests a part of a page, false if the browser requests a whole page."""
        return "hx-request" in self.request.headers

    @property
    def here(self) -> str:
        """The path and query of this page."""
        return address_of(self.request)


@dataclass(frozen=True, slots=True)
class Post:
    """A form that a user sent from one of these pages."""

    visit: BrowserRequest
    form: Form
    upload: Upload | None = None
    """The file of the form, if it takes one."""


async def open_visit(request: Request) -> AsyncIterator[BrowserRequest]:
    """Yields a visit without a sign-in check, for the duration of the request."""
    async with client_for(request) as api:
        yield BrowserRequest(request, api)


async def signed_in_visit(request: Request) -> AsyncIterator[BrowserRequest]:
    """Yields a visit of a signed-in user.

    Raises: ApiError 401 if no user is signed in.
    """
    async with client_for(request) as api:
        is_live = BrowserRequest(request, api).is_live
        yield BrowserRequest(request, api, None if is_live else await api.auth.me())


async def read_post(request: Request) -> AsyncIterator[Post]:
    """Yields a form that does not change anything. Forms from other sites are rejected.

    Raises: PageProblem, and ApiError 401.
    """
    form = request.state.form = await read_form(request)
    _check_origin(request)
    async with client_for(request, {_PAGE_REQUEST_HEADER: "page"}) as api:
        yield Post(BrowserRequest(request, api, await api.auth.me()), form)


async def check_post(post: Annotated[Post, Depends(read_post)]) -> Post:
    """Returns a form that can change something.

    Raises: StaleForm if it belongs to another session, PageProblem, and ApiError 401.
    """
    _check_token(post.visit.me, post.form)
    return post


async def read_upload_post(request: Request) -> AsyncIterator[Post]:
    """Yields a form with a file. Its body is read only after the sender is authenticated.

    Raises: StaleForm, PageProblem, and ApiError 401.
    """
    _check_origin(request)
    async with client_for(request, {_PAGE_REQUEST_HEADER: "page"}) as api:
        me = await api.auth.me()
        async with read_upload(request) as (form, upload):
            _check_token(me, form)
            yield Post(BrowserRequest(request, api, me), form, upload)


def _check_origin(request: Request) -> None:
    host, origin, site = (request.headers.get(name, "") for name in ("host", "origin", "sec-fetch-site"))
    if is_foreign(host, origin, site):
        raise PageProblem(
            403, "A page of another site sent this form. Open the page here and send the form again.", "foreign_origin"
        )


def _check_token(me: Me | None, form: Form) -> None:
    token = me.form_token if me else None
    if token is not None and not hmac.compare_digest(token.encode(), form.get("csrf").encode()):
        raise StaleForm(
            403, "You have signed in again since this form was opened. Check it and send it again.", "form_stale"
        )


def address_of(request: Request) -> str:
    """Returns the path and query of a request."""
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


def client_for(request: Request, extra_headers: dict[str, str] | None = None) -> AsyncClient:
    """Returns an API client with this browser's credentials. It calls the API in this process, without a socket."""
    peer = request.client
    transport = httpx.ASGITransport(
        request.app.state.api,
        raise_app_exceptions=False,
        client=(peer.host, peer.port) if peer else ("127.0.0.1", 0),
    )
    forwarded = {name: value for name in _FORWARDED_HEADERS if (value := request.headers.get(name)) is not None}
    base_url = f"{request.url.scheme}://127.0.0.1"
    return AsyncClient(
        base_url, patience_seconds=0.0, transport=transport, headers={**forwarded, **(extra_headers or {})}
    )


AnonymousVisit = Annotated[BrowserRequest, Depends(open_visit)]
SignedInVisit = Annotated[BrowserRequest, Depends(signed_in_visit)]
DraftPost = Annotated[Post, Depends(read_post)]
CheckedPost = Annotated[Post, Depends(check_post)]
UploadPost = Annotated[Post, Depends(read_upload_post)]
