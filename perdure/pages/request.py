"""A visit: one request of one browser, and the API as the person at it may use it.

The pages hold no credential and no data. What the browser brings (session cookie, bearer, origin) goes on to the API
unread; the API says who it is and what that person may do. What changes something comes from a form of ours: another
site's page can make a browser post, but it cannot read the session's form token (and is refused by its origin already).
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

from perdure.client import ApiError, AsyncClient, Me
from perdure.core.request_origin import is_foreign
from perdure.core.text import is_clean, size

# --- What a plain form posts: pairs of names and values, read whole, with a limit, before any page looks at them.

MOST_BYTES = 2 * 1024 * 1024
"""Percent-encoding makes three bytes of one; what is sent on to the API has the API's own limit."""
_CHUNK_BYTES = 256 * 1024
_FORM_BYTES = 65_536
"""What a form has beside its file."""
_THROWN_AWAY_BYTES = 512 * 1024 * 1024
"""Of a file that is too long: a browser that is cut off while it sends does not read why."""
_MOST_FIELDS = 2_000
_WORDS = frozenset({"comment", "message", "reason_code", "option", "to"})
_UPLOAD_SECONDS = 300.0
_BODY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form in their order; a name may come more than once."""

    pairs: Sequence[tuple[str, str]]

    def get(self, name: str, default: str = "") -> str:
        """The first value of this name, without blanks around it."""
        return next((value.strip() for key, value in self.pairs if key == name), default)

    def whole(self, name: str) -> str | None:
        """The first value of this name as it was typed, with the line ends that JSON and programs have."""
        return next((value.replace("\r\n", "\n") for key, value in self.pairs if key == name), None)

    def all(self, name: str) -> list[str]:
        """Every value of this name."""
        return [value for key, value in self.pairs if key == name]


def written(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """What a person wrote into a form: words, and the fields of arguments."""
    return [value for name, value in pairs if value and (name in _WORDS or name.startswith("arg."))]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that came with a form."""

    name: str
    media_type: str
    size_bytes: int
    file: UploadFile

    async def chunks(self) -> AsyncIterator[bytes]:
        """The content from its beginning, which lies on the disk if it is long."""
        await self.file.seek(0)
        while chunk := await self.file.read(_CHUNK_BYTES):
            yield chunk


def most_upload_bytes(request: Request) -> int:
    """How long a file may be here."""
    most: int = request.app.state.most_upload_bytes
    return most


@asynccontextmanager
async def read_upload(request: Request) -> AsyncIterator[tuple[Form, Upload | None]]:
    """Yields the fields and the file of a request's body; None if no file was chosen. Read only after it is known who
    sends it. A long file is on the disk, and is gone after the block.

    Raises: PageProblem 4xx.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        raise PageProblem(415, "This page takes what its own form sends, and nothing else.")
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        raise PageProblem(411, "Say how long the file is.")
    most = most_upload_bytes(request)
    if int(announced) > most + _FORM_BYTES:
        await _throw_away(request)
        raise PageProblem(413, f"A file may have {size(most)} at most; this one has {size(int(announced))}.")
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(_UPLOAD_SECONDS):
                read = await stack.enter_async_context(request.form(max_files=1, max_fields=10))
        except TimeoutError:
            raise PageProblem(408, f"The file did not come within {_UPLOAD_SECONDS:.0f} s.") from None
        except HTTPException:
            raise PageProblem(400, "The form cannot be read.") from None
        pairs = [(name, text) for name, text in read.multi_items() if isinstance(text, str)]
        file = next((each for _, each in read.multi_items() if isinstance(each, UploadFile)), None)
        upload = None
        if file is not None and file.filename:
            upload = Upload(file.filename, file.content_type or "", file.size or 0, file)
        _check_texts([*pairs, ("", upload.name if upload else "")])
        yield Form(pairs), upload


async def _throw_away(request: Request) -> None:
    left = _THROWN_AWAY_BYTES
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    return


def _check_texts(pairs: Sequence[tuple[str, str]]) -> None:
    if not all(is_clean(name) and is_clean(value) for name, value in pairs):
        raise PageProblem(422, "A text in the form holds a NUL or half a character, which nobody can store.")


async def read_form(request: Request) -> Form:
    """The form in a request's body.

    Raises: PageProblem 4xx.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise PageProblem(415, "This page takes what its own form sends, and nothing else.")
    body = b""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise PageProblem(413, f"That is too much for one form: it may have {MOST_BYTES:,} bytes at most.")
    except TimeoutError:
        raise PageProblem(408, f"The form did not come within {_BODY_SECONDS:.0f} s.") from None
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS, encoding="utf-8", errors="strict"
        )
    except ValueError:
        raise PageProblem(400, "The form cannot be read.") from None
    _check_texts(pairs)
    return Form(pairs)


# --- What a person is told where a page cannot be shown: in words, with a way on, and never with an inside of ours.

TITLES = {
    400: "That cannot be read",
    401: "Please sign in",
    403: "This is not yours to do",
    404: "There is nothing here",
    405: "That is not how this page is used",
    408: "That took too long",
    409: "It has changed meanwhile",
    410: "Too late",
    411: "That cannot be read",
    413: "That is too much at once",
    415: "That cannot be read",
    422: "That does not fit",
    429: "Too much at once",
    503: "A part of the service is away",
}
TITLES_BY_CODE = {"quota_reached": "Quota reached"}
_OTHERWISE = "Something went wrong"
AGAIN = "It is not certain whether this was taken. Send it again: it counts once."
"""Of what was sent as a part of the service went away: its key is the same."""


@dataclass(eq=False)
class PageProblem(Exception):
    """A page's own refusal."""

    status: int
    message: str
    code: str = "page_refused"


@dataclass(eq=False)
class StaleForm(PageProblem):
    """A form of an earlier session: nothing was sent, and what was typed is not lost."""


@dataclass(frozen=True, slots=True)
class Told:
    """A problem as a page shows it."""

    status: int
    title: str
    message: str
    code: str
    request_id: str = ""
    retry_after_seconds: float | None = None


def told(error: PageProblem | ApiError) -> Told:
    """A refusal, of the API or of a page, for a person."""
    if isinstance(error, PageProblem):
        return Told(error.status, title(error.status), error.message, error.code)
    status = error.status or 503
    headline = TITLES_BY_CODE.get(error.code) or title(status)
    return Told(status, headline, error.message, error.code, error.request_id, error.retry_after_seconds)


def title(status: int) -> str:
    """The headline of a problem."""
    return TITLES.get(status, _OTHERWISE)


_CARRIED = ("cookie", "authorization", "origin", "sec-fetch-site", "host", "user-agent")
"""Headers of the browser's request by which the API knows who asks, and from where."""
_OUR_OWN = "x-perdure-request"
"""By this header the API knows that a page of ours made the request, which is so once the form's token was right."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What a page works with."""

    request: Request
    api: AsyncClient
    me: Me | None = None
    """Who is at the browser; None where a script asks for a part of a page, or nobody is signed in."""

    @property
    def is_live(self) -> bool:
        """Whether a script of a page asks for a part of it, and not a person for the whole."""
        return "hx-request" in self.request.headers

    @property
    def here(self) -> str:
        """The path and query of this page."""
        return place_of(self.request)


@dataclass(frozen=True, slots=True)
class Post:
    """A form that a person sent from a page of ours."""

    visit: Visit
    form: Form
    upload: Upload | None = None
    """The file that came along, where the form takes one."""


async def arrived(request: Request) -> AsyncIterator[Visit]:
    """A visit of anybody, for as long as the request lasts."""
    async with client_for(request) as api:
        yield Visit(request, api)


async def entered(request: Request) -> AsyncIterator[Visit]:
    """A visit of somebody who is signed in.

    Raises: ApiError 401.
    """
    async with client_for(request) as api:
        live = Visit(request, api).is_live
        yield Visit(request, api, None if live else await api.auth.me())


async def typed(request: Request) -> AsyncIterator[Post]:
    """A form that changes nothing by itself; no other site may fill it in.

    Raises: PageProblem, ApiError 401.
    """
    form = request.state.form = await read_form(request)
    _check_origin(request)
    async with client_for(request, {_OUR_OWN: "page"}) as api:
        yield Post(Visit(request, api, await api.auth.me()), form)


async def posted(post: Annotated[Post, Depends(typed)]) -> Post:
    """A form that may change something.

    Raises: StaleForm where it is of another session than this one; PageProblem, ApiError 401.
    """
    _check_token(post.visit.me, post.form)
    return post


async def uploaded(request: Request) -> AsyncIterator[Post]:
    """A form with a file. Nothing of it is read before it is known who sends it.

    Raises: StaleForm, PageProblem, ApiError 401.
    """
    _check_origin(request)
    async with client_for(request, {_OUR_OWN: "page"}) as api:
        me = await api.auth.me()
        async with read_upload(request) as (form, upload):
            _check_token(me, form)
            yield Post(Visit(request, api, me), form, upload)


def _check_origin(request: Request) -> None:
    host, origin, site = (request.headers.get(name, "") for name in ("host", "origin", "sec-fetch-site"))
    if is_foreign(host, origin, site):
        raise PageProblem(403, "A page of another site sent this.", "foreign_origin")


def _check_token(me: Me | None, form: Form) -> None:
    token = me.form_token if me else None
    if token is not None and not hmac.compare_digest(token.encode(), form.get("csrf").encode()):
        raise StaleForm(403, "This form was made before you signed in again.", "form_stale")


def place_of(request: Request) -> str:
    """The path and query that a request is for."""
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


def client_for(request: Request, more: dict[str, str] | None = None) -> AsyncClient:
    """The API's client with this browser's credentials, in this process and without a socket."""
    caller = request.client
    transport = httpx.ASGITransport(
        request.app.state.api,
        raise_app_exceptions=False,
        client=(caller.host, caller.port) if caller else ("127.0.0.1", 0),
    )
    carried = {name: value for name in _CARRIED if (value := request.headers.get(name)) is not None}
    base_url = f"{request.url.scheme}://127.0.0.1"
    return AsyncClient(base_url, patience_seconds=0.0, transport=transport, headers={**carried, **(more or {})})


Stranger = Annotated[Visit, Depends(arrived)]
Visitor = Annotated[Visit, Depends(entered)]
Typed = Annotated[Post, Depends(typed)]
Posted = Annotated[Post, Depends(posted)]
Uploaded = Annotated[Post, Depends(uploaded)]
