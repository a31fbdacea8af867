"""Trouble that lasts: said in the log when it begins and when it is over, not at every try between."""

import structlog

_log = structlog.get_logger(__name__)


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
