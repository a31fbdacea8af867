"""Names that resolve as a test says."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

Resolves = Callable[..., list[str]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Replaces the resolver at its lowest: `names(host=[address, ...])`. Returns the hosts that were looked up."""
    real, table, asked = socket.getaddrinfo, dict[str, list[list[str]]](), list[str]()

    def look_up(host: Any, port: Any, *more: Any, **given: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in table:
            return real(host, port, *more, **given)
        asked.append(name)
        answers = table[name]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET6 if ":" in each else socket.AF_INET, 1, 6, "", (each, port)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    def tell(host: str, *answers: list[str]) -> list[str]:
        table[host] = [*answers]
        return asked

    return tell
