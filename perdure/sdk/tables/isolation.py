"""Processes tables in a separate process, so that limits of time and memory really end the work on uploaded files.

The process has no secret in its environment, writes no file, and is used for one job. Its start takes 0.6 s, most of it
the import of Polars. Therefore the next process is started when a job ends, and waits.
"""

import asyncio
import atexit
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.sdk.tables.plan import TableError

MEMORY_BYTES = 2 * 2**30
"""Limit of the address space, of which Polars uses a part. Plans are limited to 256 MiB of new data (execution.py)."""
MAX_PARALLEL_JOBS = 2
_PROGRAM = Path(__file__).with_name("isolated_program.py")
_ENVIRONMENT = {"POLARS_MAX_THREADS": "2"}


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that contains a table."""

    name: str
    media_type: str
    content: bytes


async def profile_in_subprocess(files: Sequence[TableFile], seconds: float = 50.0) -> list[dict[str, Any] | None]:
    """Returns `rows` and `columns` of each table. Files after the first that are not tables give None.

    Raises: TableError if the first file is not a table, or if the limit of time or memory is reached.
    """
    profiles: list[dict[str, Any] | None] = await _pool.run_job("profile", files, {}, seconds)
    return profiles


async def run_plan_in_subprocess(files: Sequence[TableFile], plan: str, seconds: float = 100.0) -> dict[str, Any]:
    """Runs a plan on the first table, with the others for joins.

    Returns `rows`, `columns`, `warnings`, and in `drawn` the JSON of the rows for a chart.

    Raises: TableError if the plan fails, or if the limit of time or memory is reached.
    """
    result: dict[str, Any] = await _pool.run_job("run", files, {"plan": plan}, seconds)
    return result


@dataclass(slots=True)
class _ProcessPool:
    """The table processes of this process."""

    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(MAX_PARALLEL_JOBS, "tables"))
    """The number of threads limits parallel jobs. No process belongs to an event loop."""
    waiting: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    async def run_job(self, task: str, files: Sequence[TableFile], options: Mapping[str, str], seconds: float) -> Any:
        """Returns the result of one job. If it is cancelled, its process is killed."""
        entries = [{"name": file.name, "media_type": file.media_type, "size": len(file.content)} for file in files]
        job = json.dumps({"work": task, "files": entries, **options}).encode() + b"\n"
        started: list[subprocess.Popen[bytes]] = []
        loop = asyncio.get_running_loop()
        job_input = b"".join([job, *(file.content for file in files)])
        try:
            return await loop.run_in_executor(self.threads, self._exchange, job_input, seconds, started)
        except asyncio.CancelledError:
            for process in started:
                process.kill()
            raise

    def _exchange(self, job_input: bytes, seconds: float, started: list["subprocess.Popen[bytes]"]) -> Any:
        process = self._take_process()
        started.append(process)
        try:
            output, _ = process.communicate(job_input, seconds)
        except subprocess.TimeoutExpired:
            raise TableError(f"the work on the table took longer than {seconds:.0f} s") from None
        finally:
            _kill_process(process)
            self.waiting.append(_start_process())
        try:
            result = json.loads(output)
        except ValueError:  # killed by a limit or from outside
            limit = f"{MEMORY_BYTES >> 30} GiB of memory"
            raise TableError(f"the work on the table exceeded {limit}, or its process was killed") from None
        if "trouble" in result:
            raise TableError(result["trouble"])
        return result["answer"]

    def _take_process(self) -> "subprocess.Popen[bytes]":
        """Returns a waiting process that is still alive, else a new one."""
        with suppress(IndexError):  # the other thread may have taken the last one
            while True:
                process = self.waiting.pop()
                if process.poll() is None:
                    return process
                _kill_process(process)
        return _start_process()

    def close(self) -> None:
        """Ends the waiting processes."""
        while self.waiting:
            _kill_process(self.waiting.pop())


def _start_process() -> "subprocess.Popen[bytes]":
    """Starts a process that waits for its job. When this process ends, the other reads the end of its input and ends
    too."""
    return subprocess.Popen(
        [sys.executable, "-I", str(_PROGRAM), str(MEMORY_BYTES), "110"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT,
    )


def _kill_process(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # unread input
                pipe.close()


_pool = _ProcessPool()
atexit.register(_pool.close)
