"""The pages in front of an API that a test writes, called without a socket."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from perdure.pages.app import ApiAndPages, create_pages

Said = tuple[int, Mapping[str, Any]]
KNOWN: Mapping[str, Said] = {
    "/v1/auth/me": (200, {"name": "rita", "roles": ["reviewer"], "form_token": "f-1"}),
    "/v1/approvals/counts": (200, {"waiting": 0, "mine": 0, "expiring": 0, "by": {}}),
    "/v1/effects": (200, {"items": []}),
}
"""The answers to the requests of every page."""
Browse = Callable[..., Awaitable[httpx.Response]]


@dataclass(slots=True)
class SpokenApi:
    """Answers by path; everything that was asked of it is kept."""

    answers: dict[str, Said] = field(default_factory=lambda: {**KNOWN})
    asked: list[Request] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    """The JSON of what was posted, in its order."""

    def app(self) -> FastAPI:
        app = FastAPI(openapi_url=None)

        @app.api_route("/{path:path}", methods=["GET", "POST"])
        async def answer(request: Request) -> JSONResponse:
            self.asked.append(request)
            if request.method == "POST" and (sent := await request.body()):
                self.bodies.append(json.loads(sent))
            status, body = self.answers.get(request.url.path, (404, problem("not_found", "there is no such thing")))
            return JSONResponse(body, status)

        return app


def ok(body: Mapping[str, Any]) -> Said:
    return 200, body


def problem(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "details": {}, "request_id": "r-1"}}


@pytest.fixture
def api() -> SpokenApi:
    """An API that knows who asks, and nothing else yet."""
    return SpokenApi()


@pytest.fixture
def browse(api: SpokenApi) -> Browse:
    app = api.app()
    front = ApiAndPages(app, create_pages(app))

    async def ask(path: str, method: str = "GET", **given: Any) -> httpx.Response:
        transport = httpx.ASGITransport(front, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://perdure.example") as client:
            return await client.request(method, path, **given)

    return ask
