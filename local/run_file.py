"""`run.json`: what is where while the stack is up, for the command line, the demo and outside checks (api.md).

Invariants: mode 0600 (it holds tokens); replaced whole; there from the moment that everything is healthy until
everything has ended.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from local.home import write_private


@dataclass(frozen=True, slots=True)
class RunFile:
    """The part of run.json that stays the same while the stack is up."""

    path: Path
    addresses: Mapping[str, str | None]
    """`api`, `temporal`, `temporal_ui`, `temporal_metrics`, `postgres`, `redis`."""
    tokens: Mapping[str, str] = field(repr=False)
    companions: Mapping[str, str]
    supervisor_pid: int
    routing: str
    left_out: Sequence[str] = ()
    """Lines that tell which agents are not there, and why."""
    setup_code_file: Path | None = None
    """Holds the setup code until it is used."""

    def write(self, pids: Mapping[str, int], ready: list[str], ports: Mapping[str, int]) -> None:
        """Write it with the live processes, those of them that are ready, and every port that is open."""
        content: dict[str, object] = {
            **self.addresses,
            "pids": dict(pids),
            "tokens": dict(self.tokens),
            "ready": ready,
            "ports": dict(ports),
            "companions": dict(self.companions),
            "supervisor": self.supervisor_pid,
            "routing": self.routing,
            "left_out": [*self.left_out],
        }
        if code := self._setup_code():
            content["setup_code"] = code
        write_private(self.path, json.dumps(content, indent=2) + "\n")

    def _setup_code(self) -> str:
        try:
            return self.setup_code_file.read_text().strip() if self.setup_code_file else ""
        except FileNotFoundError:
            return ""

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
