"""A visit: one request of one browser, and the API as the person at it may use it.

The pages hold no credential and no data. What the browser brings (session cookie, bearer, origin) goes on to the API
unread; the API says who it is and what that person may do. What changes something comes from a form of ours: another
site's page can make a browser post, but it cannot read the session's form token (and is refused by its origin already).
"""

import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import httpx
from fastapi import Depends, Request

from perdure.client import AsyncClient, Me
from policy.same_site import is_foreign
from reviewer.forms import Form, Upload, read_form, read_upload
from reviewer.problems import PageProblem, StaleForm

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
