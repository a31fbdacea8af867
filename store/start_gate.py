"""The wait for a database that is being prepared beside this process's imports."""

import time
from pathlib import Path

_LOOK_SECONDS = 0.02


def wait_for_gate(gate: Path | None) -> None:
    """Return once `gate` is there; at once where nobody named one, as in a deployment that prepares first.

    It blocks: call it before anything else runs in the process.
    """
    while gate is not None and not gate.exists():
        time.sleep(_LOOK_SECONDS)
