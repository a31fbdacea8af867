"""A visit: one request of one browser, and the API as the person at it may use it.

The pages hold no credential and no data. What the browser brings (session cookie, bearer, form token, origin) goes on
to the API unread; the API says who it is and what that person may do.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import httpx
from fastapi import Depends, Request

from perdure.client import AsyncClient

_CARRIED = ("cookie", "authorization", "origin", "referer", "sec-fetch-site", "host", "user-agent")
"""Headers of the browser's request by which the API knows who asks, and from where."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What a page works with."""

    request: Request
    api: AsyncClient

    @property
    def is_live(self) -> bool:
        """Whether a script of a page asks for a part of it, and not a person for the whole."""
        return "hx-request" in self.request.headers

    @property
    def here(self) -> str:
        """The path and query of this page."""
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")


async def opened(request: Request) -> AsyncIterator[Visit]:
    """A visit, for as long as the request lasts."""
    async with client_for(request) as api:
        yield Visit(request, api)


def client_for(request: Request) -> AsyncClient:
    """The API's client with this browser's credentials, in this process and without a socket."""
    caller = request.client
    transport = httpx.ASGITransport(
        request.app.state.api,
        raise_app_exceptions=False,
        client=(caller.host, caller.port) if caller else ("127.0.0.1", 0),
    )
    carried = {name: value for name in _CARRIED if (value := request.headers.get(name)) is not None}
    base_url = f"{request.url.scheme}://127.0.0.1"
    return AsyncClient(base_url, patience_seconds=0.0, transport=transport, headers=carried)


Visitor = Annotated[Visit, Depends(opened)]
