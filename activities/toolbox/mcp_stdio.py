"""A server as a child process, spoken to over its standard input and output, a message a line.

The library's own transport reads lines of any length, and copies what it has at every piece; this one reads none that
is longer than `MOST_MESSAGE_BYTES`. A line that answers a call and is no answer, or too long a one, ends that call at
once instead of at its time-out, and no other call.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from activities.toolbox.mcp_lines import TooLong, Unreadable, lines
from activities.toolbox.mcp_wire import MOST_MESSAGE_BYTES, Wire

_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "TMPDIR")
"""What a server gets of this process's environment: nothing that could be a credential."""
_GRACE_SECONDS = 1.0
"""For a server to leave after its input was closed, and once more after SIGTERM."""

_TOO_LONG = f"it is larger than {MOST_MESSAGE_BYTES // 1024 // 1024} MiB"
_LOOK_SECONDS = 0.01
MOST_LOG_BYTES = 1024 * 1024
LOG_SECONDS = 10.0
"""Between looks at how long a server's standard error has grown."""

_Inbound = SessionMessage | Exception


@dataclass(frozen=True, slots=True)
class Child:
    """How a server's process is started."""

    command: Sequence[str]
    folder: Path
    environ: Mapping[str, str]
    """Beside what every server inherits."""
    log: Path
    """Its standard error: of its last start only, and emptied where it is longer than `MOST_LOG_BYTES`."""


@asynccontextmanager
async def stdio_streams(
    child: Child, wire: Wire
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[_Inbound], MemoryObjectSendStream[SessionMessage]]]:
    """The process and the two streams that the library's client speaks on; it is ended with the block.

    Raises: OSError where it cannot be started.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    child.log.write_bytes(b"")
    with child.log.open("ab") as log:  # what is written after it was emptied comes at its beginning
        process = await asyncio.create_subprocess_exec(
            *child.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**inherited, **child.environ},
            cwd=child.folder,
            start_new_session=True,
            limit=MOST_MESSAGE_BYTES,
        )
    heard, reading = anyio.create_memory_object_stream[_Inbound](0)
    writing, said = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_hear, process, heard, wire)
            tasks.start_soon(_say, process, said, wire)
            tasks.start_soon(_keep_short, child.log)
            try:
                yield reading, writing
            finally:
                tasks.cancel_scope.cancel()
    finally:
        wire.ended.set()
        for stream in (heard, reading, writing, said):
            stream.close()
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _hear(process: asyncio.subprocess.Process, heard: MemoryObjectSendStream[_Inbound], wire: Wire) -> None:
    """Pass its lines on until there are no more, or one is too long and nobody knows whose it is."""
    assert process.stdout is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            async for line in lines(process.stdout):
                message = _fault(line.answers, _TOO_LONG) if isinstance(line, TooLong) else _message(line)
                if message is not None:
                    await heard.send(message)
        except Unreadable:
            if len(wire.notes) == 1:  # of several calls the others' may have done well, and a read is made again
                next(iter(wire.notes.values())).too_large = True
        finally:
            wire.ended.set()
            heard.close()


async def _say(
    process: asyncio.subprocess.Process, said: MemoryObjectReceiveStream[SessionMessage], wire: Wire
) -> None:
    assert process.stdin is not None
    async for message in said:
        body = message.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
        note = wire.note(body)
        if note is not None:
            note.sent = True
        try:
            process.stdin.write(json.dumps(body, ensure_ascii=True).encode() + b"\n")
            await process.stdin.drain()
        except OSError:
            wire.ended.set()
            return


async def _keep_short(log: Path) -> None:
    """A server may say as much as it likes for as long as it lives; it says it on this machine's disk."""
    while True:
        await anyio.sleep(LOG_SECONDS)
        _shorten(log)


def _shorten(log: Path) -> None:
    with suppress(OSError):
        if log.stat().st_size > MOST_LOG_BYTES:
            os.truncate(log, 0)


def _message(line: bytes) -> SessionMessage | None:
    """The message in a line; an error for the call that it answers, where it is none; None for other noise."""
    text = line.decode("utf-8", "replace").strip()
    if not text:
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError:
        number = _number_of(text)
    return None if number is None else _fault(number, "the server's answer is not one of the protocol")


def _fault(number: int | str, why: str) -> SessionMessage:
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=PARSE_ERROR, message=why)))


def _number_of(text: str) -> int | str | None:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    number = found.get("id") if isinstance(found, dict) and "method" not in found else None
    return number if isinstance(number, int | str) and not isinstance(number, bool) else None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask it to leave, then make it; whatever it has started goes with it."""
    if process.stdin is not None:
        process.stdin.close()
    if not await _left(process, _GRACE_SECONDS):
        _signal(process, signal.SIGTERM)
        if not await _left(process, _GRACE_SECONDS):
            _signal(process, signal.SIGKILL)
            await _left(process, _GRACE_SECONDS)
    # Public API has no way to close the pipes of a process whose own children keep them open.
    process._transport.close()  # type: ignore[attr-defined]


async def _left(process: asyncio.subprocess.Process, seconds: float) -> bool:
    # Not `wait()`: on this Python it also waits for the pipes, which the server's own children may keep open.
    for _ in range(int(seconds / _LOOK_SECONDS)):
        if process.returncode is not None:
            return True
        await asyncio.sleep(_LOOK_SECONDS)
    return process.returncode is not None


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
