"""An application on a port of its own, inside the test process."""

import asyncio
import socket
from typing import Any

import uvicorn


class LocalServer:
    def __init__(self, app: Any, port: int = 0, **config: Any) -> None:
        """`app` may be a whole configuration."""
        # With the protocol named, as uvicorn does it: asyncio then sets TCP_NODELAY; without, every answer takes 40 ms.
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        given = {"log_level": "critical", "timeout_graceful_shutdown": 1, "proxy_headers": False, **config}
        self._server = uvicorn.Server(app if isinstance(app, uvicorn.Config) else uvicorn.Config(app, **given))
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._running = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            assert not self._running.done(), "the application did not start"
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        assert self._running is not None
        self._server.should_exit = True
        await self._running
