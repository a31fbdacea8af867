"""A receiver of notices on a port of its own: it verifies what comes, keeps it, and answers as it is told."""

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.webhooks import NotANotice, read


@dataclass(slots=True)
class Receiver:
    """One."""

    url: str = ""
    secret: str = ""
    answers: list[int] = field(default_factory=list)
    """What the next requests are answered; then 204."""
    stalls: bool = False
    notices: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _server: uvicorn.Server | None = None
    _running: asyncio.Task[None] | None = None

    async def start(self) -> "Receiver":
        """Serve."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
        app = Starlette(routes=[Route("/{path:path}", self._take, methods=["POST", "GET"])])
        config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._running = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:  # noqa: ASYNC110 - uvicorn says it by this alone
            await asyncio.sleep(0.02)
        return self

    async def stop(self) -> None:
        """End."""
        assert self._server is not None and self._running is not None
        self._server.should_exit = True
        await self._running

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
        except NotANotice as error:
            self.refused.append(str(error))
            return Response(status_code=400)
        return Response(status_code=status)
