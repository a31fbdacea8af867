"""Transports to MCP servers: streamable HTTP and child processes.

HTTP uses the library's transport over a client of Perdure. That client records each call, limits sizes, and reaches the
server only by the rules of outgoing requests (perdure/egress/).

A failed HTTP request becomes a response with a status, never an exception. An exception would end the library's
connection, and with it every other open call.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    CallToolResult,
    ErrorData,
    InputRequiredResult,
    JSONRPCError,
    JSONRPCResponse,
    ListToolsResult,
    jsonrpc_message_adapter,
)
from mcp_types.methods import validate_server_result
from pydantic import TypeAdapter, ValidationError

from perdure.core.calls.retries import retry_after_seconds
from perdure.core.egress import Outbound
from perdure.egress import AnswerWithheld, Call, EgressRefused, calling
from perdure.egress.httpx2_transport import Transport2

ATTEMPT_FIELD = "perdure/attempt"
"""The field of a call's `_meta` with the token of this attempt. It has no meaning for the server."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The largest line of a process and the largest event of a stream that is read. A larger one ends the call that it
answers. Answers over HTTP have a separate limit (PERDURE_ANSWER_BYTES)."""
_CONNECT_SECONDS = 5.0
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_BAD_GATEWAY = 502
"""The status for a request that got no answer."""
_UNLIMITED_BYTES = 2**62
"""Byte limit of the stream for messages that no call requested. It stays open for the whole session."""
_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "TMPDIR")
"""The environment variables that a server inherits. None of them can contain a secret."""
_GRACE_SECONDS = 1.0
"""Time for a server to exit after its input was closed, and again after SIGTERM."""
_TOO_LONG = f"it exceeds {MAX_MESSAGE_BYTES // 1024 // 1024} MiB"
_POLL_SECONDS = 0.01
MAX_LOG_BYTES = 1024 * 1024
LOG_SECONDS = 10.0
"""Seconds between checks of the size of a server's standard error."""
MAX_SKIPPED_BYTES = 8 * MAX_MESSAGE_BYTES
_EXCERPT_BYTES = 512
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID = rb'"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]{1,200}")\s*'
_ANSWER = rb'"(?:result|error)"\s*:'
_ANSWER_START = re.compile(
    rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?(?:" + _ID + rb",\s*(?:" + _VERSION + rb",\s*)?)?" + _ANSWER
)
_ANSWER_END = re.compile(rb",\s*" + _ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*\Z")


@dataclass(slots=True)
class Note:
    """The record of one call on the wire."""

    sent: bool = False
    """True if any part of the call may have reached the server."""
    status: int | None = None
    """The HTTP status of the response, if there was one."""
    retry_after_seconds: float | None = None
    lost: bool = False
    """True if the call was sent and the connection broke before a response began."""
    request_id: int | str | None = None
    misfit: str = ""
    """The reason if the response is a result that breaks the protocol. Its text then replaces it."""
    too_large: bool = False
    """True if the response was cut off: it exceeds the limit, or its encoding is not supported here."""


@dataclass(slots=True)
class Wire:
    """The state of one connection. It records for each call whether it was sent, and how it came back. The library
    distinguishes only partly between a call that was never sent and one that was lost. For an `opaque` tool that
    difference decides. Both transports therefore record each call here, by a token in its `_meta`. Without a note,
    nothing was sent."""

    notes: dict[str, Note] = field(default_factory=dict)
    """Notes of the open calls, by token."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection has ended or must end."""
    refused: str = ""
    """The rule of outgoing requests that forbids this server; empty if it is allowed."""
    protocol: str = "2025-11-25"
    """The version of the protocol that client and server use."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Listed tools that break the protocol, with the reason, which follows the name."""

    def note(self, message: Mapping[str, Any]) -> Note | None:
        """Returns the note of the call in this message, or None if the message is not a recorded call."""
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, Mapping) else None
        token = meta.get(ATTEMPT_FIELD) if isinstance(meta, Mapping) else None
        note = self.notes.get(token) if isinstance(token, str) else None
        if note is not None:
            note.request_id = message.get("id")
        return note


@asynccontextmanager
async def http_streams(url: str, headers: Mapping[str, str], wire: Wire, outbound: Outbound) -> AsyncIterator[Any]:
    """Opens the two streams of the library's client. The limit of an answer is `answer_bytes` of `outbound`."""
    # No read timeout: each call has its own, and a response can be a stream that stays open during the call.
    timeout = httpx2.Timeout(None, connect=_CONNECT_SECONDS, write=_CONNECT_SECONDS, pool=_CONNECT_SECONDS)
    all_headers = {**headers, "accept-encoding": "identity"}
    transport = _RecordingTransport(wire, outbound)
    async with httpx2.AsyncClient(headers=all_headers, timeout=timeout, transport=transport, trust_env=False) as client:
        async with streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams:
            yield streams


class _RecordingTransport(httpx2.AsyncBaseTransport):
    """A transport that records requests and their responses."""

    def __init__(self, wire: Wire, outbound: Outbound) -> None:
        self._wire = wire
        self._inner = Transport2(outbound)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        note = self._note_of(await request.aread())
        if note is not None:
            note.sent = True
        call = Call() if request.method == "POST" else Call(stream_bytes=_UNLIMITED_BYTES)
        try:
            with calling(call):
                response = await self._inner.handle_async_request(request)
        except EgressRefused as error:
            self._wire.refused = str(error)
            if note is not None:
                note.sent = False
            return httpx2.Response(_BAD_GATEWAY, request=request)
        except httpx2.TransportError as error:
            if note is not None:
                note.sent = note.lost = not isinstance(error, _NEVER_SENT)
            return httpx2.Response(_BAD_GATEWAY, request=request)
        if note is not None:
            note.status = response.status_code
            note.retry_after_seconds = retry_after_seconds(response.headers, datetime.now(UTC))
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        stream = _AnswerStream(response.stream, note or Note())
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=stream, extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _note_of(self, body: bytes) -> Note | None:
        try:
            message = json.loads(body) if body else None
        except ValueError:
            return None
        return self._wire.note(message) if isinstance(message, dict) else None


_ESCAPE = re.compile(
    rb"\\(?:(u[dD][89abAB][0-9a-fA-F]{2})(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|(u[dD][c-fC-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_PAIR_BYTES = 12
"""Length of two escaped halves of a character."""


def mend_halves(text: bytes) -> bytes:
    """Returns JSON text with each half of a character replaced, because the library cannot read it."""
    return _ESCAPE.sub(lambda each: each[0] if each[2] or not (each[1] or each[3]) else rb"\ufffd", text)


def _whole_escapes(text: bytes) -> int:
    """Returns the length of the text before an escape that its end may have cut."""
    start = len(text) - _PAIR_BYTES
    for each in _ESCAPE.finditer(text, 0) if b"\\" in text[-_PAIR_BYTES:] else ():
        if each.end() > start and (each.start() + _PAIR_BYTES > len(text)):
            return each.start()
    return len(text) - text.endswith(b"\\")


class _AnswerStream(httpx2.AsyncByteStream):
    """The bytes of an answer. If it breaks off or is too large, the stream ends without an exception."""

    def __init__(self, inner: httpx2.AsyncByteStream, note: Note) -> None:
        self._inner = inner
        self._note = note

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = b""
        try:
            async for piece in self._inner:
                held += piece
                end = _whole_escapes(held)
                yield mend_halves(held[:end])
                held = held[end:]
        except AnswerWithheld:
            self._note.too_large = True
        except (httpx2.TransportError, httpx2.DecodingError):
            return
        yield mend_halves(held)

    async def aclose(self) -> None:
        await self._inner.aclose()


CALL_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)
_LIST = TypeAdapter(ListToolsResult)
_MAX_FAULT_CHARACTERS = 200
_Inbound = SessionMessage | Exception
_Reading = MemoryObjectReceiveStream[_Inbound]
_Writing = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def checked_streams(
    streams: AbstractAsyncContextManager[tuple[_Reading, _Writing]], wire: Wire
) -> AsyncIterator[tuple[_Reading, _Writing]]:
    """Yields the two streams of a transport without the listed tools that break the protocol. The library would reject
    the whole page for one of them."""
    async with streams as (received, writing):
        inbound, reading = anyio.create_memory_object_stream[_Inbound](0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_pass_checked, received, inbound, wire)
            try:
                yield reading, writing
            finally:
                tasks.cancel_scope.cancel()
                for stream in (inbound, reading):
                    stream.close()


async def _pass_checked(received: _Reading, inbound: MemoryObjectSendStream[_Inbound], wire: Wire) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for each in received:
            answer = each.message if isinstance(each, SessionMessage) else None
            if isinstance(answer, JSONRPCResponse):
                _mend(answer, wire)
            await inbound.send(each)
        inbound.close()


def _mend(answer: JSONRPCResponse, wire: Wire) -> None:
    """Changes an answer that the library would reject. A list of tools loses those that break the protocol. The result
    of a call becomes its text, and the call's note gets the reason."""
    tools = answer.result.get("tools")
    if isinstance(tools, list) and not _list_fault(answer.result, [], wire):
        answer.result["tools"] = [tool for tool in tools if _keeps_protocol(tool, answer.result, wire)]
    note = next((note for note in wire.notes.values() if note.request_id == answer.id), None)
    fault = _fault("tools/call", wire.protocol, answer.result, CALL_RESULT) if note is not None else ""
    if note is not None and fault:
        note.misfit = fault
        text = json.dumps(answer.result, ensure_ascii=False)
        is_error = answer.result.get("isError") is True
        answer.result = {"content": [{"type": "text", "text": text}], "isError": is_error}


def _list_fault(result: dict[str, Any], tools: list[Any], wire: Wire) -> str:
    return _fault("tools/list", wire.protocol, {**result, "tools": tools}, _LIST)


def _keeps_protocol(tool: Any, result: dict[str, Any], wire: Wire) -> bool:
    """Returns whether the library accepts the listed tool; notes the tool otherwise."""
    fault = _list_fault(result, [tool], wire)
    if fault:
        name = str(tool.get("name", "")) if isinstance(tool, Mapping) else ""
        wire.left_out[name[:80]] = f"breaks the protocol: {fault}"
    return not fault


def _fault(method: str, version: str, result: dict[str, Any], kind: TypeAdapter[Any]) -> str:
    """Returns why the library rejects a result; empty if it accepts it."""
    try:
        with suppress(KeyError):  # a version of the protocol without this method, for which the library checks less
            validate_server_result(method, version, result)
        kind.validate_python(result, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:_MAX_FAULT_CHARACTERS]
    return ""


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
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[_Inbound], MemoryObjectSendStream[SessionMessage]]]:
    """Starts the process and yields the two streams of the library's client. The process ends with the block.

    Standard input and output have one message a line. Unlike the library's transport, this one reads no line longer
    than `MAX_MESSAGE_BYTES`. If a line answers a call but is invalid or too long, that call ends at once instead of at
    its timeout. Other calls continue. Raises: OSError if the process cannot be started.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    child.log.write_bytes(b"")
    with child.log.open("ab") as log:  # in append mode, writing continues at the start after the file was emptied
        process = await asyncio.create_subprocess_exec(
            *child.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**inherited, **child.environ},
            cwd=child.folder,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
    inbound, reading = anyio.create_memory_object_stream[_Inbound](0)
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
            await _end(process)


async def _read_lines(
    process: asyncio.subprocess.Process, inbound: MemoryObjectSendStream[_Inbound], wire: Wire
) -> None:
    """Passes the lines on until the stream ends, or until a line is too long and cannot be matched to a call."""
    assert process.stdout is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            async for line in lines(process.stdout):
                message = (
                    _error_message(line.request_id, _TOO_LONG)
                    if isinstance(line, SkippedLine)
                    else _parse_message(line)
                )
                if message is not None:
                    await inbound.send(message)
        except UnmatchedLine:
            if len(wire.notes) == 1:  # With several open calls, the others may have succeeded, and reads are retried.
                next(iter(wire.notes.values())).too_large = True
        finally:
            wire.ended.set()
            inbound.close()


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


def _parse_message(line: bytes) -> SessionMessage | None:
    """Returns the message in a line.

    An invalid message becomes an error for the call that it answers; any other noise becomes None.
    """
    text = mend_halves(line).decode("utf-8", "replace").strip()
    if not text:
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError:
        request_id = _answered_request(text)
    return (
        None
        if request_id is None
        else _error_message(request_id, "the server sent a message that is not valid in the protocol")
    )


def _error_message(request_id: int | str, reason: str) -> SessionMessage:
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=PARSE_ERROR, message=reason)))


def _answered_request(text: str) -> int | str | None:
    try:
        message: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    request_id = message.get("id") if isinstance(message, dict) and "method" not in message else None
    return request_id if isinstance(request_id, int | str) and not isinstance(request_id, bool) else None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Closes the input, then terminates the process and everything that it started."""
    if process.stdin is not None:
        process.stdin.close()
    if not await _has_exited(process, _GRACE_SECONDS):
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


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A skipped line."""

    request_id: int | str
    """The id of the request that it answers."""


class UnmatchedLine(Exception):
    """A line is too long and cannot be matched to a call, or it has no end."""


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes | SkippedLine]:
    """Yields the lines until the stream ends. The stream's limit is the longest line.

    A line that is too long is skipped, so that later lines still count. The call that it answers is read from its first
    and last bytes. This is exact for the ways in which servers write an answer: `id` comes before the result, or is the
    last field except for `jsonrpc`. Any other line cannot be matched to a call.

    Raises: UnmatchedLine.
    """
    head, tail, skipped_bytes = b"", b"", 0
    while True:
        try:
            line = await stream.readuntil()
        except asyncio.LimitOverrunError as overrun:
            piece = await stream.readexactly(overrun.consumed)
            head, tail = head or piece[:_EXCERPT_BYTES], piece[-_EXCERPT_BYTES:]
            skipped_bytes += len(piece)
            if skipped_bytes > MAX_SKIPPED_BYTES or not _ANSWER_START.match(head):
                raise UnmatchedLine from None
            continue
        except asyncio.IncompleteReadError as end:
            line = b"" if skipped_bytes else end.partial
        if not line:
            return
        yield SkippedLine(_request_id(head, tail + line)) if skipped_bytes else line
        head, tail, skipped_bytes = b"", b"", 0


def _request_id(head: bytes, tail: bytes) -> int | str:
    """Returns the request's id. Raises: UnmatchedLine if it cannot be found."""
    start, end = _ANSWER_START.match(head), _ANSWER_END.search(tail[-_EXCERPT_BYTES:])
    digits = (start and start[1]) or (end and end[1])
    if not digits:
        raise UnmatchedLine
    request_id: int | str = json.loads(digits)
    return request_id
