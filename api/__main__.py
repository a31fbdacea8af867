"""`python -m api`: one API process, drained on SIGTERM."""

import os
import sys

import uvicorn

from api.app import create_app
from settings import Settings

KEEP_ALIVE_SECONDS = 30
DRAIN_SECONDS = 10


def main() -> None:
    """Serve until told to stop; leave without the interpreter's own shutdown (temporalio/sdk-python#300)."""
    settings = Settings()
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level.value,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
