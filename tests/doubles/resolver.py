"""Names that resolve as a test says: the resolver of this process, replaced at its lowest."""

import socket
from typing import Any

import pytest


class Names:
    """The hosts that a test makes up; every other one is resolved as ever."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._real = socket.getaddrinfo
        self._table: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        patch.setattr(socket, "getaddrinfo", self._look_up)

    def __call__(self, host: str, *answers: list[str]) -> list[str]:
        """Answers look-ups of `host` one after the other, the last for good. Returns the hosts that are looked up."""
        self._table[host] = [*answers]
        return self.asked

    def _look_up(self, host: Any, port: Any, *more: Any, **given: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in self._table:
            return self._real(host, port, *more, **given)
        self.asked.append(name)
        answers = self._table[name]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET6 if ":" in each else socket.AF_INET, 1, 6, "", (each, port)) for each in found]
