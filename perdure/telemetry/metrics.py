"""The ports on which the processes of a deployment serve metrics for Prometheus."""

from typing import Final

import structlog
from prometheus_client import start_http_server

ROLES: Final = ("turns", "llm", "tools", "memory", "approvals", "relay", "api")
"""In the order of their ports."""
Address = tuple[str, int] | None
_log = structlog.get_logger(__name__)


def metrics_addresses(first_port: int, host: str, role: str) -> tuple[Address, Address]:
    """Where a process of that role serves our metrics and the Temporal SDK's; None for both if none are served."""
    if not first_port:
        return None, None
    port = first_port + 2 * ROLES.index(role)
    return (host, port), (host, port + 1)


def serve_metrics(address: Address) -> None:
    """Serve them on a thread of their own. A port that is taken is logged, and the process works without."""
    if address is None:
        return
    try:
        start_http_server(address[1], address[0])
    except OSError as error:
        _log.warning("metrics_not_served", port=address[1], error=type(error).__name__)


# --- Trouble that lasts: said in the log when it begins and when it is over, not at every try between.


class Trouble:
    """What is wrong now, as one process has said it."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def is_on(self, event: str, where: str = "", *, error: BaseException | None = None) -> None:
        """Say it, unless it has been said and is not over."""
        if (event, where) not in self._said:
            self._said.add((event, where))
            _log.error(event, where=where, error=type(error).__name__ if error is not None else "")

    def is_over(self, event: str, where: str = "") -> None:
        """Say that it has passed, where it had been said."""
        if (event, where) in self._said:
            self._said.remove((event, where))
            _log.info(f"{event}_no_more", where=where)
