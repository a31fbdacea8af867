"""The heartbeat of a process: its event loop touches a file every second, so that one that hangs is found.

The supervisor of the embedded stack looks at the file (perdure/local/ports.py). In a container the health check is
`python -m perdure.telemetry.heartbeat FILE`: exit code 0 while the process behind FILE lives, 1 when it hangs or is not
ready yet. A touch needs no room on the disk.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

BEAT_SECONDS = 1.0
HANG_SECONDS = 20.0
"""A file that was touched longer ago than this belongs to a process that hangs."""


@asynccontextmanager
async def beating(file: Path | None) -> AsyncIterator[None]:
    """Make the file, which says that the process is ready, and touch it from this event loop until the block ends."""
    if file is None:
        yield
        return
    _touch(file)
    task = asyncio.create_task(_beat(file))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _touch(file: Path) -> None:
    file.touch()


async def _beat(file: Path) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        with suppress(OSError):
            os.utime(file)


def fault(file: Path) -> str:
    """What is wrong with the process behind the file, in words; empty while it lives."""
    try:
        silent = time.time() - file.stat().st_mtime
    except OSError as error:
        return f"not ready: {file}: {error.strerror}"
    return f"hangs: no heartbeat for {silent:.0f} s" if silent > HANG_SECONDS else ""


# --- The wait for a database that is being prepared beside this process's imports.

_LOOK_SECONDS = 0.02


def wait_for_gate(gate: Path | None) -> None:
    """Return once `gate` is there; at once where nobody named one, as in a deployment that prepares first.

    It blocks: call it before anything else runs in the process.
    """
    while gate is not None and not gate.exists():
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m perdure.telemetry.heartbeat FILE, the process's PERDURE_READY_FILE")
    found = fault(Path(sys.argv[1]))
    sys.stdout.write(f"{found or 'well'}\n")
    sys.exit(1 if found else 0)
