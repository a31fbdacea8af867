"""A receiver of notices on a port of its own: it verifies what comes, keeps it, and answers as it is told."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.sdk.webhooks import InvalidDelivery, read
from tests.doubles.local_server import LocalServer


@dataclass(slots=True)
class Receiver:
    url: str = ""
    secret: str = ""
    answers: list[int] = field(default_factory=list)
    """What the next requests are answered; then 204."""
    stalls: bool = False
    notices: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _listening: LocalServer | None = None

    async def start(self) -> "Receiver":
        app = Starlette(routes=[Route("/{path:path}", self._take, methods=["POST", "GET"])])
        self._listening = LocalServer(app, lifespan="off")
        self.url = f"{self._listening.url}/hook"
        await self._listening.start()
        return self

    async def stop(self) -> None:
        assert self._listening is not None
        await self._listening.stop()

    async def _take(self, request: Request) -> Response:
        body = await request.body()
        self.requests.append((dict(request.headers), body))
        if self.stalls:
            await asyncio.sleep(3_600)
        status = self.answers.pop(0) if self.answers else 204
        if status >= 300:
            return Response(status_code=status, headers={"location": self.url} if status < 400 else {})
        try:
            self.notices.append(read(self.secret, request.headers, body))
        except InvalidDelivery as error:
            self.refused.append(str(error))
            return Response(status_code=400)
        return Response(status_code=status)
