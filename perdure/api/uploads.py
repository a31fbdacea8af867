"""Receives uploaded files: writes them to the disk as they arrive, has another process check them, and reads them into
memory last.

A file has no name while it arrives, so nothing remains if the process is killed. At most one large file at a time is in
memory, while it is sent to Postgres.
"""

import asyncio
import hashlib
import json
import mmap
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import structlog
from starlette.requests import ClientDisconnect

from perdure.contracts.errors import CallerError, LimitReached, UpstreamUnavailable
from perdure.contracts.memory import MAX_COLUMNS, MAX_ROWS
from perdure.core.memory.files import MIN_BYTES_PER_SECOND, is_too_slow, too_large

SIZE_VARIABLE, COUNT_VARIABLE = "PERDURE_UPLOAD_BYTES", "PERDURE_UPLOADS_PER_USER"
CHECK_SECONDS = 30.0
CHECK_MEMORY_BYTES = 128 * 2**20
"""A check needs 15 MiB. A row as long as the file needs more."""
_PROGRAM = Path(__file__).with_name("content_check.py")
_MAX_PARALLEL_CHECKS = 2
_IDLE_SECONDS = 30.0
_WRITE_BLOCK_BYTES = 256 * 1024
"""The block that a thread writes and hashes in one step."""
_LARGE_BYTES = 2**20
_SPARE_BYTES = 256 * 2**20
"""The free space that uploads leave on their disk, which Postgres may share."""
_RETRY_AFTER_SECONDS = 15
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SpooledFile:
    """A file that has arrived completely."""

    file: BinaryIO
    size_bytes: int
    sha256: str


class Uploads:
    """Receives the uploads of one API process."""

    def __init__(self, folder: Path, max_bytes: int, per_user: int) -> None:
        self.max_bytes = max_bytes
        self._folder = folder
        self._per_user = per_user
        self._uploads_by_user: Counter[tuple[str, str]] = Counter()
        self._reserved_bytes = 0
        self._checks = asyncio.Semaphore(_MAX_PARALLEL_CHECKS)
        self._large_file_lock = asyncio.Lock()

    def check_length(self, announced: str) -> int | None:
        """Returns the announced length of a file, or None if the request does not announce it.

        Raises: CallerError 413 `too_large`.
        """
        length = int(announced) if announced.isdecimal() else None
        if length is not None and length > self.max_bytes:
            raise too_large(self.max_bytes, SIZE_VARIABLE)
        return length

    @asynccontextmanager
    async def receive(
        self, tenant_id: str, user_id: str, length: int | None, chunks: AsyncGenerator[bytes, None]
    ) -> AsyncIterator[SpooledFile]:
        """Writes a body to the disk and yields the file, which is deleted after the block.

        Raises: CallerError 413 `too_large`, 408 `body_too_slow`, 400 `client_disconnected`; LimitReached
        `too_many_uploads`; UpstreamUnavailable `disk_full`.
        """
        with self._count_upload(tenant_id, user_id), self._reserve_space(self.max_bytes if length is None else length):
            with cast(BinaryIO, tempfile.TemporaryFile(dir=self._folder, buffering=0)) as file:
                async with aclosing(chunks):
                    yield await self._spool(file, chunks)

    async def check(self, spooled: SpooledFile, media_type: str) -> None:
        """Checks the content in a separate process.

        Raises: CallerError 422 with the codes of `check_stream`, and `table_too_costly` if the process did not finish.
        """
        limits = (MAX_COLUMNS, MAX_ROWS, CHECK_MEMORY_BYTES, int(CHECK_SECONDS))
        async with self._checks:
            verdict = await _run_check(spooled.file, media_type, *limits)
        if verdict is None:
            raise CallerError(
                "table_too_costly",
                f"The file check exceeded {CHECK_MEMORY_BYTES >> 20} MiB of memory or {CHECK_SECONDS:.0f} s; "
                "split the file, or check for a very long line",
                {"memory_bytes": CHECK_MEMORY_BYTES, "seconds": CHECK_SECONDS},
                status=422,
            )
        if not verdict["fit"]:
            raise CallerError(verdict["code"], verdict["message"], verdict["details"], status=422)

    @asynccontextmanager
    async def content(self, spooled: SpooledFile) -> AsyncIterator[memoryview]:
        """Yields the bytes, mapped and not copied. Large files are handled one at a time: sending one to Postgres needs
        twice its size."""
        async with self._large_file_lock if spooled.size_bytes > _LARGE_BYTES else nullcontext():
            with mmap.mmap(spooled.file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                yield view

    async def _spool(self, file: BinaryIO, chunks: AsyncGenerator[bytes, None]) -> SpooledFile:
        digest, size, buffer, started_at = hashlib.sha256(), 0, bytearray(), time.monotonic()

        def write(block: bytes) -> None:
            digest.update(block)
            unwritten = memoryview(block)
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]

        async for chunk in _with_idle_limit(chunks):
            size += len(chunk)
            buffer += chunk
            if size > self.max_bytes:
                raise too_large(self.max_bytes, SIZE_VARIABLE)
            if is_too_slow(size, time.monotonic() - started_at):
                raise _upload_too_slow(f"the upload was slower than {MIN_BYTES_PER_SECOND // 1024} KiB/s")
            if len(buffer) >= _WRITE_BLOCK_BYTES:
                await asyncio.to_thread(write, bytes(buffer))
                buffer.clear()
        await asyncio.to_thread(write, bytes(buffer))
        return SpooledFile(file, size, digest.hexdigest())

    @contextmanager
    def _count_upload(self, tenant_id: str, user_id: str) -> Iterator[None]:
        user = (tenant_id, user_id)
        if self._uploads_by_user[user] >= self._per_user:
            message = (
                f"You have {self._per_user} uploads in progress, the limit ({COUNT_VARIABLE}); wait until one ends"
            )
            details: dict[str, object] = {"limit": self._per_user, "variable": COUNT_VARIABLE}
            raise LimitReached("too_many_uploads", message, {**details, "retry_after_seconds": _RETRY_AFTER_SECONDS})
        self._uploads_by_user[user] += 1
        try:
            yield
        finally:
            self._uploads_by_user[user] -= 1
            if not self._uploads_by_user[user]:
                del self._uploads_by_user[user]

    @contextmanager
    def _reserve_space(self, length: int) -> Iterator[None]:
        """Reserves space before the first byte, so that concurrent uploads fit on the disk together."""
        disk = os.statvfs(self._folder)
        if disk.f_bavail * disk.f_frsize < self._reserved_bytes + length + _SPARE_BYTES:
            _log.error("upload_refused_disk_full", folder=str(self._folder), free_bytes=disk.f_bavail * disk.f_frsize)
            raise UpstreamUnavailable(
                "disk_full", "The server has no disk space left for this file; ask an operator to free some"
            )
        self._reserved_bytes += length
        try:
            yield
        finally:
            self._reserved_bytes -= length


def upload_folder(configured: Path | None, home: Path) -> Path:
    """Returns the private folder of uploads: the one that the operator sets, else `uploads` in the data folder. If the
    data folder is not writable, returns the system's temporary folder.

    Raises: SystemExit if the configured folder cannot be used.
    """
    folder = configured or home / "uploads"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if configured is not None:
            raise SystemExit(f"PERDURE_UPLOAD_FOLDER: cannot write to {configured} ({error.strerror})") from None
        folder = Path(tempfile.gettempdir())
        _log.info("uploads_in_temporary_folder", folder=str(folder))
    return folder


async def _with_idle_limit(chunks: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yields the chunks, and raises if one takes longer than half a minute after the one before it."""
    while True:
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise _upload_too_slow(f"no data arrived for {_IDLE_SECONDS:.0f} s") from None
        except ClientDisconnect:
            raise CallerError(
                "client_disconnected", "The connection closed before the request was complete", status=400
            ) from None
        if chunk is None:
            return
        yield chunk


def _upload_too_slow(reason: str) -> CallerError:
    return CallerError("body_too_slow", f"The upload was cancelled: {reason}", status=408)


async def _run_check(file: BinaryIO, *arguments: object) -> dict[str, Any] | None:
    """Returns the result of the checking program; None if it ended without a result."""
    file.seek(0)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_PROGRAM), *map(str, arguments)),
        stdin=file,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    output = b""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            output, _ = await child.communicate()
    except TimeoutError:
        pass
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    try:
        return dict(json.loads(output))
    except ValueError:
        _log.warning("content_check_failed", returncode=child.returncode)
        return None
