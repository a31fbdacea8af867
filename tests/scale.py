"""How large a test is: a sample in `make test`, the whole in `make soak`."""

import os
import time

from tests.acceptance.machine import Others

FULL_VARIABLE = "PERDURE_FIGURES"
FULL = os.environ.get(FULL_VARIABLE) == "full"
PATIENCE_SECONDS = 3_600 if FULL else 180
"""For one figure, with the making of its turns; what bounds a figure is in the figure itself."""
NO_RATE_LIMIT = {"PERDURE_DECISIONS_PER_MINUTE": "100000", "RATE_LIMITING_ENABLED": "false"}
"""For an API whose few deciders ask and decide in seconds what people do in weeks."""


def sized(full: int, sample: int) -> int:
    return full if FULL else sample


class Clocked:
    """`with Clocked() as clocked:`; afterwards the seconds it took and what others used of the machine meanwhile."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._others = Others()
        self._began = 0.0

    def __enter__(self) -> "Clocked":
        self._others.__enter__()
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._began
        self._others.__exit__()

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, others {self._others.share:.0%} of the machine"
