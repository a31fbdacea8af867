"""The heartbeat of a process: its event loop touches a file every second, so that a hanging process is detected.

The supervisor of the embedded stack checks the file (perdure/local/ports.py). A process can also end itself
(perdure/telemetry/hangs.py). In a container, the health check is
`python -m perdure.telemetry.heartbeat FILE`. Its exit code is 0 if the process of FILE responds, and 1 if it hangs or
is not ready yet. A touch needs no disk space.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

HEARTBEAT_SECONDS = 1.0
MAX_SILENT_SECONDS = 20.0
"""The age of a file after which its process counts as hanging."""
_POLL_SECONDS = 0.02


@asynccontextmanager
async def beating(file: Path | None, beat: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    """Creates the file, which marks the process as ready, and touches it from this event loop until the block ends.
    `beat` is called each time."""
    beat()
    if file is not None:
        _touch(file)
    task = asyncio.create_task(_beat(file, beat))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _touch(file: Path) -> None:
    file.touch()


async def _beat(file: Path | None, beat: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        beat()
        if file is not None:
            with suppress(OSError):
                os.utime(file)


def heartbeat_fault(file: Path) -> str:
    """Returns what is wrong with the process of the file, or an empty string."""
    try:
        silent_seconds = time.time() - file.stat().st_mtime
    except OSError as error:
        return f"not ready: cannot read {file}: {error.strerror}"
    return f"not responding: no heartbeat for {silent_seconds:.0f} s" if silent_seconds > MAX_SILENT_SECONDS else ""


def silent_processes(gate: Path, seconds: float) -> list[str]:
    """Returns the names of the files in the folder of an embedded stack's gate whose processes have been silent for
    longer than this. A file from before the gate was opened is of an earlier start, and does not count. Files with a
    suffix do not count, such as `.hang` (perdure/core/calls/hangs.py)."""
    beats: dict[str, float] = {}
    for file in gate.parent.iterdir() if gate.exists() else ():
        if file.suffix:
            continue
        with suppress(OSError):  # its process has ended
            beats[file.name] = file.stat().st_mtime
    opened_at = beats.pop(gate.name, None)
    if opened_at is None:
        return []
    return sorted(name for name, at in beats.items() if opened_at <= at < time.time() - seconds)


def wait_for_gate(gate: Path | None) -> None:
    """Returns when `gate` exists. Without a gate it returns at once, as in a deployment that prepares the database
    first.

    It blocks, so it must be called before anything else runs in the process.

    The database is prepared while this process imports its modules.
    """
    while gate is not None and not gate.exists():
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m perdure.telemetry.heartbeat FILE, the process's PERDURE_READY_FILE")
    found = heartbeat_fault(Path(sys.argv[1]))
    sys.stdout.write(f"{found or 'well'}\n")
    sys.exit(1 if found else 0)
