"""Failures on command: a file next to the cluster's own states which call fails next, and how.

`python -m cluster fault hang --tool k8s_pods_list --seconds 30` arms one. It is a file, not a tool, so that no model
can reach it. Every server of the cluster reads it, and each use counts as one of its times.
"""

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

_Armed = dict[str, Any]


class FaultKind(StrEnum):
    """Kinds of failures."""

    HANG = "hang"
    """No answer for `seconds`."""
    DIE = "die"
    """The server kills itself, as SIGKILL does."""
    ERROR = "error"
    """The tool answers with an error."""
    HUGE = "huge"
    """10 MB of text."""
    BINARY = "binary"
    """An image of random bytes, and a text with NUL and control characters."""
    WRONG_TYPE = "wrong_type"
    """Structured content that is not what the tool's output schema says."""
    NOISE = "noise"
    """A line on standard output that is not a message, then the true answer (stdio)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure that is armed."""

    kind: FaultKind
    tool: str = ""
    """The tool whose calls fail; empty for any tool."""
    when: str = "after"
    """`before` the effect, or `after` the effect and before the answer."""
    seconds: float = 30.0
    times: int = 1


class Faults:
    """The armed failures, stored in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def arm(self, fault: Fault) -> None:
        """Adds a failure."""
        self._rewrite(lambda armed: [*armed, asdict(fault)])

    def clear(self) -> None:
        """Removes all failures."""
        self._rewrite(lambda _: [])

    def take(self, tool: str, when: str) -> Fault | None:
        """Returns the failure that is armed for this moment, if any, and counts one of its times."""
        if not self._path.exists():
            return None
        taken: list[Fault] = []

        def use(armed: list[_Armed]) -> list[_Armed]:
            for each in armed:
                if each["tool"] in ("", tool) and each["when"] == when:
                    fault = Fault(**{**each, "kind": FaultKind(each["kind"])})
                    taken.append(fault)
                    each["times"] = fault.times - 1
                    break
            return [each for each in armed if each["times"]]

        self._rewrite(use)
        return taken[0] if taken else None

    def _rewrite(self, change: Callable[[list[_Armed]], list[_Armed]]) -> None:
        with self._path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            armed = json.loads(file.read() or "[]")
            file.seek(0)
            file.truncate()
            file.write(json.dumps(change(armed)))


def hang_or_die(fault: Fault) -> None:
    """Lets the server hang or die. Runs in a separate thread."""
    if fault.kind is FaultKind.HANG:
        time.sleep(fault.seconds)
    elif fault.kind is FaultKind.DIE:
        os.kill(os.getpid(), signal.SIGKILL)
