"""The ports on which the processes of a deployment serve metrics for Prometheus."""

from typing import Final

import structlog
from prometheus_client import start_http_server

ROLES: Final = ("turns", "llm", "tools", "memory", "approvals", "relay", "api")
"""The roles in the order of their ports."""
Address = tuple[str, int] | None
_log = structlog.get_logger(__name__)


def metrics_addresses(first_port: int, host: str, role: str) -> tuple[Address, Address]:
    """Returns the addresses of Perdure's and the Temporal SDK's metrics for a role, or None for both if none are
    served."""
    if not first_port:
        return None, None
    port = first_port + 2 * ROLES.index(role)
    return (host, port), (host, port + 1)


def serve_metrics(address: Address) -> None:
    """Serves the metrics on a separate thread. If the port is in use, that is logged and the process continues without
    them."""
    if address is None:
        return
    try:
        start_http_server(address[1], address[0])
    except OSError as error:
        _log.warning("metrics_not_served", port=address[1], error=type(error).__name__)


class LastingProblem:
    """The current faults that one process has logged. Each is logged when it begins and when it ends, not at every
    attempt in between."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def is_on(self, event: str, subject: str = "", *, error: BaseException | None = None) -> None:
        """Logs a fault, unless it has been logged and still persists."""
        if (event, subject) not in self._logged:
            self._logged.add((event, subject))
            _log.error(event, subject=subject, error=type(error).__name__ if error is not None else "")

    def is_over(self, event: str, subject: str = "") -> None:
        """Logs the end of a fault, if its start was logged."""
        if (event, subject) in self._logged:
            self._logged.remove((event, subject))
            _log.info(f"{event}_resolved", subject=subject)
