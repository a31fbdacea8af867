"""`python -m api`: one API process, drained on SIGTERM."""

import os
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from api.app import create_app
from settings import Settings
from store.start_gate import wait_for_gate

KEEP_ALIVE_SECONDS = 30
DRAIN_SECONDS = 10


class Server(uvicorn.Server):
    """Uvicorn, which would wait for open event streams for as long as the drain lasts."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Send stream readers away, then drain; they come back to the next process with their last id."""
        services = getattr(self._app.state, "services", None)
        if services is not None:
            services.wakes.close()
        super().handle_exit(sig, frame)


def main() -> None:
    """Serve until told to stop; leave without the interpreter's own shutdown (temporalio/sdk-python#300)."""
    settings = Settings()
    app = create_app(settings)
    wait_for_gate(settings.start_gate)  # before the server takes SIGTERM for its own
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level.value,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    Server(app, config).run()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
