"""Transports to MCP servers: streamable HTTP and child processes.

HTTP uses the library's transport over a client of Perdure. That client records each call, limits sizes, and reaches the
server only by the rules of outgoing requests (perdure/egress/).

A failed HTTP request becomes a response with a status, never an exception. An exception would end the library's
connection, and with it every other open call.
"""

import asyncio
import json
import os
import signal
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from perdure.activities.toolbox.mcp.answers import (
    Inbound,
    UnmatchedLine,
    error_message,
    is_for_nobody,
    mend_halves,
    parse_messages,
    unread_answer,
    whole_escapes,
)
from perdure.activities.toolbox.mcp.events import Events
from perdure.activities.toolbox.mcp.lines import MAX_MESSAGE_BYTES, SkippedLine, joined_lines
from perdure.activities.toolbox.mcp.wire import Note, Wire
from perdure.core.calls.retries import retry_after_seconds
from perdure.core.egress import Outbound
from perdure.egress import AnswerWithheld, Call, EgressRefused, calling
from perdure.egress.httpx2_transport import Transport2

_CONNECT_SECONDS = 5.0
_MAX_REDIRECTS = 2
"""Redirects within the server's origin (307, 308): to HTTPS, and to the path with a final slash. Each one sends the
call again, which the server asks for because it did nothing."""
_ANSWER_TYPES = ("application/json", "text/event-stream")
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_BAD_GATEWAY = 502
"""The status for a request that got no answer."""
_LIST_BYTES = 64 * 1024 * 1024
"""Limit of a page of tools, and of the answer of any other request that is not a call."""
_UNLIMITED_BYTES = 2**62
"""Limit of a stream of events. That for messages that no call requested stays open for the whole session, and that of a
call contains its progress too. Each event has the limit of an answer."""
_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "TMPDIR")
"""The environment variables that a server inherits. None of them can contain a secret."""
_NO_JSON = b"?"
_MAX_OTHERS = 8
_GRACE_SECONDS = 1.0
"""Time for a server to exit after its input was closed, and again after SIGTERM."""
_TOO_LONG = f"it exceeds {MAX_MESSAGE_BYTES // 1024 // 1024} MiB"
_POLL_SECONDS = 0.01
MAX_LOG_BYTES = 1024 * 1024
LOG_SECONDS = 10.0
"""Seconds between checks of the size of a server's standard error."""


@asynccontextmanager
async def http_streams(url: str, headers: Mapping[str, str], wire: Wire, outbound: Outbound) -> AsyncIterator[Any]:
    """Opens the two streams of the library's client. The limit of a call's answer is `answer_bytes` of `outbound`."""
    # No read timeout: each call has its own, and a response can be a stream that stays open during the call.
    timeout = httpx2.Timeout(None, connect=_CONNECT_SECONDS, write=_CONNECT_SECONDS, pool=_CONNECT_SECONDS)
    all_headers = {**headers, "accept-encoding": "identity"}
    transport = _RecordingTransport(wire, outbound)
    async with httpx2.AsyncClient(
        headers=all_headers, timeout=timeout, transport=transport, trust_env=False, max_redirects=_MAX_REDIRECTS
    ) as client:
        async with streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams:
            yield streams


class _RecordingTransport(httpx2.AsyncBaseTransport):
    """A transport that records requests and their responses."""

    def __init__(self, wire: Wire, outbound: Outbound) -> None:
        self._wire = wire
        self._inner = Transport2(outbound)
        self._answer_bytes = outbound.answer_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        note = self._note_of(await request.aread())
        if note is not None:
            note.sent = True
        call = Call(stream_bytes=_UNLIMITED_BYTES)
        if note is not None:  # `Events` limits its events
            call = replace(call, answer_bytes=note.answer_bytes, limits_events=False)
        try:
            with calling(call):
                response = await self._inner.handle_async_request(request)
        except EgressRefused as error:
            self._wire.refused = str(error)
            if note is not None:
                note.sent = False
            return httpx2.Response(_BAD_GATEWAY, request=request)
        except httpx2.TransportError as error:
            if request.method == "POST":
                self._wire.http_fault = f"it does not answer ({type(error).__name__}: {error})"
            if note is not None:
                note.sent = note.lost = not isinstance(error, _NEVER_SENT)
            return httpx2.Response(_BAD_GATEWAY, request=request)
        if request.method == "POST":
            self._wire.http_fault = _http_fault(response)
        if note is not None:
            note.body.clear()  # of a redirect
            note.status = response.status_code
            note.retry_after_seconds = retry_after_seconds(response.headers, datetime.now(UTC))
        stream = self._stream(response, note or self._wire.note_resumed(request.headers.get("last-event-id", "")))
        status, headers = _as_answer(response) if note is not None else (response.status_code, response.headers)
        return httpx2.Response(status, headers=headers, stream=stream, extensions=response.extensions)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _stream(self, response: httpx2.Response, note: Note | None) -> "_AnswerStream":
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        has_events = response.headers.get("content-type", "").lower().startswith(_ANSWER_TYPES[1])
        max_bytes = min(MAX_MESSAGE_BYTES, (note and note.answer_bytes) or self._answer_bytes)
        events = Events(note, max_bytes) if note is not None and has_events else None
        return _AnswerStream(response.stream, note or Note(), events)

    def _note_of(self, body: bytes) -> Note | None:
        try:
            message = json.loads(body) if body else None
        except ValueError:
            return None
        if not isinstance(message, dict):
            return None
        note, request_id = self._wire.note(message), message.get("id")
        if note is None and isinstance(request_id, int | str) and "method" in message:
            note = Note(request_id=request_id, max_body_bytes=MAX_MESSAGE_BYTES, answer_bytes=_LIST_BYTES)
            self._wire.others[request_id] = note
            if len(self._wire.others) > _MAX_OTHERS:  # those that were given up have no answer
                self._wire.others.pop(next(iter(self._wire.others)))
        return note


def _http_fault(response: httpx2.Response) -> str:
    """Returns why the response cannot be an answer; empty if it can."""
    kind = response.headers.get("content-type", "")
    if target := response.headers.get("location", ""):
        return f"it answered {response.status_code} with a redirect to {target}"
    if response.is_success and (response.status_code == 202 or kind.lower().startswith(_ANSWER_TYPES)):
        return ""
    return f"it answered {response.status_code} with {kind or 'no content type'}"


def _as_answer(response: httpx2.Response) -> tuple[int, httpx2.Headers]:
    """Returns the status and headers with which the library reads the body. A success of another content type can be an
    answer too, as can a 202; the library would replace it with an error. Of a failure, the library reads only JSON."""
    headers = httpx2.Headers(response.headers)
    if not headers.get("content-type", "").lower().startswith(_ANSWER_TYPES):
        headers["content-type"] = _ANSWER_TYPES[0]
    return (200 if response.is_success else response.status_code), headers


class _AnswerStream(httpx2.AsyncByteStream):
    """The bytes of an answer. If it breaks off or is too large, the stream ends without an exception."""

    def __init__(self, inner: httpx2.AsyncByteStream, note: Note, events: Events | None = None) -> None:
        self._inner = inner
        self._note = note
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held, decoder = b"", getincrementaldecoder("utf-8-sig")("replace")
        try:
            async for piece in self._inner:
                held += decoder.decode(piece).encode()
                end = whole_escapes(held)
                for text in self._read(mend_halves(held[:end])):
                    yield text
                held = held[end:]
                if self._events is not None and self._events.is_full:
                    break
        except AnswerWithheld:
            if self._events is not None:
                self._events.is_full = True
            else:
                self._note.too_large = True
        except (httpx2.TransportError, httpx2.DecodingError):
            self._note.body.clear()  # it is not the server's whole answer
            return
        for text in self._read(mend_halves(held + decoder.decode(b"", final=True).encode())):
            yield text
        if self._events is not None:
            yield self._events.rest()
        elif is_for_nobody(self._note):
            yield _NO_JSON

    def _read(self, text: bytes) -> Iterable[bytes]:
        if self._events is not None:
            return self._events.read(text)
        self._note.keep(text)
        return (text,)

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass(frozen=True, slots=True)
class Child:
    """The command, folder and environment of a server's process."""

    command: Sequence[str]
    folder: Path
    environ: Mapping[str, str]
    """Variables in addition to the inherited ones."""
    log: Path
    """Its standard error since its last start. The file is emptied when it is longer than `MAX_LOG_BYTES`."""


@asynccontextmanager
async def stdio_streams(
    child: Child, wire: Wire
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Inbound], MemoryObjectSendStream[SessionMessage]]]:
    """Starts the process and yields the two streams of the library's client. The process ends with the block.

    Standard input and output have one message a line; one that is spread over several lines is read too. Unlike the
    library's transport, this one reads no message longer than `MAX_MESSAGE_BYTES`. If a line answers a call but is
    invalid or too long, that call ends at once instead of at its timeout. Other calls continue.

    Raises: OSError if the process cannot be started.
    """
    process = await _start(child)
    inbound, reading = anyio.create_memory_object_stream[Inbound](0)
    writing, outbound = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read_lines, process, inbound, wire)
            tasks.start_soon(_write_messages, process, outbound, wire)
            tasks.start_soon(_limit_log, child.log)
            try:
                yield reading, writing
            finally:
                tasks.cancel_scope.cancel()
    finally:
        wire.ended.set()
        for stream in (inbound, reading, writing, outbound):
            stream.close()
        with anyio.CancelScope(shield=True):
            await _end(process, wire)


async def _start(child: Child) -> asyncio.subprocess.Process:
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    child.log.write_bytes(b"")
    with child.log.open("ab") as log:  # in append mode, writing continues at the start after the file was emptied
        return await asyncio.create_subprocess_exec(
            *child.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**inherited, **child.environ},
            cwd=child.folder,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )


async def _read_lines(
    process: asyncio.subprocess.Process, inbound: MemoryObjectSendStream[Inbound], wire: Wire
) -> None:
    """Passes the lines on until the stream ends, or until a line is too long and cannot be matched to a call."""
    assert process.stdout is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            async for line in joined_lines(process.stdout):
                for message in [_too_long(line, wire)] if isinstance(line, SkippedLine) else parse_messages(line):
                    await inbound.send(message)
            wire.has_eof = True
        except UnmatchedLine:
            if len(wire.notes) == 1:  # With several open calls, the others may have succeeded, and reads are retried.
                next(iter(wire.notes.values())).too_large = True
        finally:
            wire.ended.set()
            inbound.close()


def _too_long(line: SkippedLine, wire: Wire) -> SessionMessage:
    """Returns the start of the line as the answer of a call. For any other request it is an error."""
    note = wire.note_of(line.request_id)
    if note is None:
        return error_message(line.request_id, _TOO_LONG)
    note.too_large = True
    answer = unread_answer(line.start.decode("utf-8", "replace"), line.request_id)
    return SessionMessage(answer) if answer is not None else error_message(line.request_id, _TOO_LONG)


async def _write_messages(
    process: asyncio.subprocess.Process, outbound: MemoryObjectReceiveStream[SessionMessage], wire: Wire
) -> None:
    assert process.stdin is not None
    async for message in outbound:
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


async def _limit_log(log: Path) -> None:
    """Limits the log. A server can write any amount to standard error, which is a file on this machine's disk."""
    while True:
        await anyio.sleep(LOG_SECONDS)
        _empty_if_long(log)


def _empty_if_long(log: Path) -> None:
    with suppress(OSError):
        if log.stat().st_size > MAX_LOG_BYTES:
            os.truncate(log, 0)


async def _end(process: asyncio.subprocess.Process, wire: Wire) -> None:
    """Closes the input, then terminates the process and everything that it started."""
    if process.stdin is not None:
        process.stdin.close()
    if await _has_exited(process, _GRACE_SECONDS):
        wire.exit_code = process.returncode if wire.has_eof else None
    else:
        _signal(process, signal.SIGTERM)
        if not await _has_exited(process, _GRACE_SECONDS):
            _signal(process, signal.SIGKILL)
            await _has_exited(process, _GRACE_SECONDS)
    # There is no public API to close the pipes of a process whose children keep them open.
    process._transport.close()  # type: ignore[attr-defined]


async def _has_exited(process: asyncio.subprocess.Process, seconds: float) -> bool:
    # Not `wait()`: on this Python it also waits for the pipes, which the server's children may keep open.
    for _ in range(int(seconds / _POLL_SECONDS)):
        if process.returncode is not None:
            return True
        await asyncio.sleep(_POLL_SECONDS)
    return process.returncode is not None


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
