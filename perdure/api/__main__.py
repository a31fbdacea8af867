"""`python -m perdure.api`: one process for the API and the pages, which drains on SIGTERM."""

import logging
import os
import resource
import sys
import tempfile
from types import FrameType

import uvicorn
from fastapi import FastAPI

from perdure.api.app import create_app
from perdure.api.perimeter import ConnectionSlots, Perimeter, connection_class
from perdure.api.rate_limits import PageApi
from perdure.api.uploads import upload_folder
from perdure.pages.app import ApiAndPages, create_pages
from perdure.settings import Settings, log_from
from perdure.telemetry.heartbeat import wait_for_gate
from perdure.telemetry.metrics import metrics_addresses, serve_metrics

KEEP_ALIVE_SECONDS = 30
DRAIN_SECONDS = 10
MAX_OPEN_FILES = 65_536


class Server(uvicorn.Server):
    """Uvicorn, without waiting for open event streams during the whole drain."""

    def __init__(self, api: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._api = api

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the streams, then drains. The readers reconnect to the next process with their last id."""
        services = getattr(self._api.state, "services", None)
        if services is not None:
            services.wakes.close()
        super().handle_exit(sig, frame)


def raise_file_limit() -> int:
    """Raises the number of files that the process can open, and returns it. Each reader of a stream is an open file.
    Most systems start with 1,024 for each process, far below what they allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def front_door(api: FastAPI, settings: Settings, max_files: int) -> Perimeter:
    """Returns API and pages behind the layer that every request passes first.

    Raises: SystemExit if hosts or proxies are malformed, or if the server listens on all addresses without a public
    URL.
    """
    return Perimeter(
        ApiAndPages(api, create_pages(PageApi(api), settings.upload_bytes)),
        settings.hosts(),
        settings.trusted_proxies(),
        ConnectionSlots(settings.connections_per_address, max_files),
        tls=settings.public_url.startswith("https://"),
    )


def server_config(api: FastAPI, settings: Settings, max_files: int = MAX_OPEN_FILES) -> uvicorn.Config:
    """Returns uvicorn's configuration for API and pages. The perimeter determines the client's address behind a proxy,
    since uvicorn would trust every process of this machine.

    Raises: SystemExit, as `front_door`.
    """
    slots = ConnectionSlots(settings.connections_per_address, max_files)
    return uvicorn.Config(
        front_door(api, settings, max_files),
        host=settings.host,
        port=settings.port,
        http=connection_class(slots, settings.trusted_proxies()),
        ws="none",
        loop="uvloop" if settings.uvloop else "asyncio",
        log_level=settings.log_level.value,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )


class ExitMessageFilter(logging.Filter):
    """Shortens uvicorn's traceback of a SystemExit at startup to its message for the operator."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replaces a traceback of SystemExit with its message; returns True."""
        _, marker, line = record.getMessage().rpartition("\nSystemExit: ")
        if marker:
            record.msg, record.args = line.strip(), ()
        return True


def main() -> None:
    """Serves until a signal stops it, then exits without the interpreter's own shutdown (temporalio/sdk-python#300)."""
    settings = Settings.read()
    log_from(settings.log_level)
    max_files = raise_file_limit()
    api = create_app(settings)
    # Forms of the pages store long files in the same folder as uploads.
    tempfile.tempdir = str(upload_folder(settings.upload_folder, settings.home))
    config = server_config(api, settings, max_files)
    wait_for_gate(settings.start_gate)  # Before the server installs its own SIGTERM handler.
    settings.check()
    logging.getLogger("uvicorn.error").addFilter(ExitMessageFilter())
    metrics_address, _ = metrics_addresses(settings.metrics_port, settings.metrics_host, "api")
    serve_metrics(metrics_address)
    Server(api, config).run()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
