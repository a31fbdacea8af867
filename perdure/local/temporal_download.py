"""Runs the SDK's own download of the Temporal server in its own process, so that giving up really ends it.

`python -m perdure.local.temporal_download FOLDER VERSION` leaves one executable in FOLDER. It is given up after 15 s
without a new byte: a slow network can continue, and a blocked one costs little compared with the minutes of a build.
"""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from perdure.local.output import Console
from perdure.local.processes import kill_group, spawn
from perdure.local.temporal_binary import CLI_VERSION, Source

_SILENT_SECONDS = 15.0
_TOTAL_SECONDS = 300.0
_ROOT = Path(__file__).parents[2]


def downloaded(
    environ: Mapping[str, str],
    command: tuple[str, ...] = (sys.executable, "-m", "perdure.local.temporal_download"),
    silent_seconds: float = _SILENT_SECONDS,
) -> Source:
    """The source that runs the SDK's download."""

    async def source(folder: Path, console: Console) -> bool:
        console.say(f"  no Temporal server found; downloading {CLI_VERSION}")
        process = await spawn((*command, str(folder), f"v{CLI_VERSION}"), environ=environ, cwd=_ROOT)
        assert process.stdout is not None
        output = asyncio.create_task(process.stdout.read())
        ended = asyncio.create_task(process.wait())
        try:
            reason = await _wait(ended, folder, silent_seconds, console)
        finally:
            kill_group(process.pid)
            await ended
        if reason is None and process.returncode == 0 and _adopt(folder):
            return True
        lines = (await output).decode("utf-8", "replace").strip().splitlines()
        console.say(f"  the download did not work: {reason or (lines[-1][:160] if lines else 'it printed nothing')}")
        return False

    return source


async def _wait(task: asyncio.Task[int], folder: Path, silent_seconds: float, console: Console) -> str | None:
    """Waits for the end as long as bytes arrive; returns why it was aborted, or None."""
    began = moved_at = time.monotonic()
    size_bytes = 0
    while not task.done():
        await asyncio.wait({task}, timeout=0.25)
        now = time.monotonic()
        grown = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
        if grown != size_bytes:
            size_bytes, moved_at = grown, now
            console.live(f"  downloading the Temporal server: {size_bytes / 1e6:.0f} MB")
        if now - moved_at > silent_seconds or now - began > _TOTAL_SECONDS:
            return f"cancelled after {silent_seconds:.0f} s without data"
    return None


def _adopt(folder: Path) -> bool:
    """Renames the one file that the SDK left to `temporal`."""
    files = [path for path in folder.iterdir() if path.is_file()]
    if len(files) != 1:
        return False
    files[0].rename(folder / "temporal")
    return True


async def _download(folder: str, version: str) -> None:
    from temporalio.testing import WorkflowEnvironment

    server = await WorkflowEnvironment.start_local(download_dest_dir=folder, dev_server_download_version=version)
    await server.shutdown()


def main() -> None:
    """Downloads, then exits without the interpreter's own shutdown, in which the SDK may crash (sdk-python#300)."""
    code = 0
    try:
        asyncio.run(_download(sys.argv[1], sys.argv[2]))
    except Exception as error:
        print(error, flush=True)
        code = 1
    os._exit(code)


if __name__ == "__main__":
    main()
