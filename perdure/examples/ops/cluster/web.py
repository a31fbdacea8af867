"""The server over streamable HTTP, with a bearer token if one is set."""

import secrets

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .server import ClusterServer


class Guard:
    """ASGI middleware: 401 without the credential."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allowed(scope):
            await Response("a bearer token is required", 401)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return secrets.compare_digest(given, self._wanted)


def serve(server: ClusterServer, port: int, token: str) -> int:
    """Serve until SIGTERM."""
    app: ASGIApp = server.streamable_http_app()
    if token:
        app = Guard(app, token)
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=2)
    running = uvicorn.Server(config)
    running.run()
    return 0 if running.started else 1
