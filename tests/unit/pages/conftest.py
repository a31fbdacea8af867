"""The pages in front of an API that a test writes, called without a socket."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from perdure.pages.app import Front, create_pages

Said = tuple[int, Mapping[str, Any]]


KNOWN: Mapping[str, Said] = {
    "/v1/auth/me": (200, {"name": "rita", "roles": ["reviewer"], "form_token": "f-1"}),
    "/v1/approvals/counts": (200, {"waiting": 0, "mine": 0, "expiring": 0, "by": {}}),
    "/v1/effects": (200, {"items": []}),
}
"""What every page asks for."""


@dataclass(slots=True)
class SpokenApi:
    """Answers by path; everything that was asked of it is kept."""

    answers: dict[str, Said] = field(default_factory=lambda: {**KNOWN})
    asked: list[Request] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    """The JSON of what was posted, in its order."""

    def app(self) -> FastAPI:
        """It as an application."""
        app = FastAPI(openapi_url=None)

        @app.api_route("/{path:path}", methods=["GET", "POST"])
        async def answer(request: Request) -> JSONResponse:
            self.asked.append(request)
            if request.method == "POST" and (sent := await request.body()):
                self.bodies.append(json.loads(sent))
            status, body = self.answers.get(request.url.path, (404, problem("not_found", "there is no such thing")))
            return JSONResponse(body, status)

        return app


def problem(code: str, message: str) -> dict[str, Any]:
    """An error in the API's one form."""
    return {"error": {"code": code, "message": message, "details": {}, "request_id": "r-1"}}


class _Words(HTMLParser):
    """The text of a page below its head. A time is told as TIME: how long ago it was differs from run to run."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._apart: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("head", "script", "svg", "time"):
            self._apart.append(tag)
        if tag == "time":
            self.lines.append("TIME")

    def handle_endtag(self, tag: str) -> None:
        if self._apart and self._apart[-1] == tag:
            self._apart.pop()

    def handle_data(self, data: str) -> None:
        if not self._apart and (words := " ".join(data.split())):
            self.lines.append(words)


def words_of(page: str) -> list[str]:
    """What a user reads on a page, piece by piece."""
    reader = _Words()
    reader.feed(page)
    return reader.lines


@pytest.fixture
def api() -> SpokenApi:
    """An API that knows who asks, and nothing else yet."""
    return SpokenApi()


Browse = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def browse(api: SpokenApi) -> Browse:
    """Ask for a path as a browser would."""
    app = api.app()
    front = Front(app, create_pages(app))

    async def ask(path: str, method: str = "GET", **given: Any) -> httpx.Response:
        transport = httpx.ASGITransport(front, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://perdure.example") as client:
            return await client.request(method, path, **given)

    return ask
