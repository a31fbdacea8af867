"""Answers of MCP servers that the library cannot parse, or would reject.

An answer proves that a call was made. A list of tools therefore loses only the tools that break the protocol, and the
answer of a call reaches the model as its text.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    PARSE_ERROR,
    CallToolResult,
    ErrorData,
    InputRequiredResult,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    ListToolsResult,
    jsonrpc_message_adapter,
)
from mcp_types.methods import validate_server_result
from pydantic import TypeAdapter, ValidationError

from perdure.activities.toolbox.mcp.wire import CLOSED_MESSAGES, Note, Wire, is_same_id, whole_id

_WHITESPACE = " \t\r\n\ufeff"
EXCERPT_BYTES = 512
"""The bytes at both ends of a line in which the id of its request is looked for."""
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID = rb'"id"\s*:\s*(-?(?:0|[1-9][0-9]{0,17})(?:\.0)?|"[^"\\\x00-\x1f\x80-\xff]{1,200}")\s*'
"""Pattern of an id that is valid JSON, with its key."""
_ANSWER = rb'"(?:result|error)"\s*:'
ANSWER_START = re.compile(
    rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?(?:" + _ID + rb",\s*(?:" + _VERSION + rb",\s*)?)?" + _ANSWER
)
_ANSWER_END = re.compile(rb",\s*" + _ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*\Z")
_ESCAPE = re.compile(
    rb"\\(?:(u[dD][89abAB][0-9a-fA-F]{2})(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|(u[dD][c-fC-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_PAIR_BYTES = 12
"""Length of two escaped halves of a character."""
CALL_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)
_LIST = TypeAdapter(ListToolsResult)
_MAX_FAULT_CHARACTERS = 200
Inbound = SessionMessage | Exception
_Reading = MemoryObjectReceiveStream[Inbound]
_Writing = MemoryObjectSendStream[SessionMessage]
_UNREAD = "perdure/unread"
"""The field of a result with the text of an answer that is not an object."""
_NO_OBJECT = "result: it is not an object"
_TOO_DEEP = "result: it is nested too deep"
_TOO_LARGE = "it is too large"
_NOT_READ = "[not read]"
_LIBRARY_MESSAGES = (
    *CLOSED_MESSAGES, "Failed to parse", "Unexpected content type", "Server returned an error", "Session terminated",
    "Not Found", "server answered a request with",
)  # fmt: skip
"""Beginnings of the errors that the library makes itself."""
_WORDS = ("error", "message", "detail", "error_description", "title")
"""The fields of an HTTP error in which servers write why."""
_OWN_VALUES = ("structuredContent", "inputSchema", "outputSchema", "_meta")
_MAX_TOOL_DEPTH = 80
"""A limit above that of a schema (`MAX_SCHEMA_DEPTH`) and below that of the library."""
_MAX_PAGE_TOOLS = 1_000
"""Tools of a page that are read: more than are offered (`MAX_TOOLS`), because some can break the protocol."""
_MAX_ANSWER_DEPTH = 250
"""A limit below that of the library."""
_log = structlog.get_logger(__name__)
_MAX_DIGITS = 4_300
_NAME_CHARACTERS = 80
_FIRST_NO_SUCCESS = 300
_DATA = re.compile(r"^data: ?(.*)$", re.MULTILINE)
_LINE_END = re.compile(r"\r\n?")


class UnmatchedLine(Exception):
    """A line is too long and cannot be matched to a call, or it has no end."""


def mend_halves(text: bytes) -> bytes:
    """Returns JSON text with each half of a character replaced, because the library cannot read it."""
    return _ESCAPE.sub(lambda each: each[0] if each[2] or not (each[1] or each[3]) else rb"\ufffd", text)


def whole_escapes(text: bytes) -> int:
    """Returns the length of the text before an escape that its end may have cut."""
    start = len(text) - _PAIR_BYTES
    for each in _ESCAPE.finditer(text, 0) if b"\\" in text[-_PAIR_BYTES:] else ():
        if each.end() > start and (each.start() + _PAIR_BYTES > len(text)):
            return each.start()
    return len(text) - text.endswith(b"\\")


@asynccontextmanager
async def checked_streams(
    streams: AbstractAsyncContextManager[tuple[_Reading, _Writing]], wire: Wire
) -> AsyncIterator[tuple[_Reading, _Writing]]:
    """Yields the two streams of a transport without the listed tools that break the protocol. The library would reject
    the whole page for one of them."""
    async with streams as (received, writing):
        inbound, reading = anyio.create_memory_object_stream[Inbound](0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_pass_checked, received, inbound, wire)
            try:
                yield reading, writing
            finally:
                tasks.cancel_scope.cancel()
                for stream in (inbound, reading):
                    stream.close()


async def _pass_checked(received: _Reading, inbound: MemoryObjectSendStream[Inbound], wire: Wire) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for each in received:
            if isinstance(each, SessionMessage):
                each.message = _checked(each.message, wire)
            await inbound.send(each)
        inbound.close()


def _checked(message: JSONRPCMessage, wire: Wire) -> JSONRPCMessage:
    if isinstance(message, JSONRPCError) and message.id is not None:
        note = wire.note_of(message.id) or wire.others.get(message.id)
        if note is not None:
            is_from_library = message.error.message.startswith(_LIBRARY_MESSAGES) and not _has_error(note)
            if is_from_library and note.status is not None:
                succeeded = note.status < _FIRST_NO_SUCCESS
                answer = _answer_of(note, message.id) if succeeded else _answer_of_failure(note, message)
                message, is_from_library = answer or message, answer is None
            note.has_error = isinstance(message, JSONRPCError) and not is_from_library
    if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
        other = wire.others.pop(message.id, None)
        is_own = isinstance(message, JSONRPCError) and (other is None or other.has_error)
        wire.words = message.error.message if is_own and isinstance(message, JSONRPCError) else ""
    if isinstance(message, JSONRPCResponse):
        _mend(message, wire)
    return message


def _answer_of(note: Note, request_id: int | str) -> JSONRPCResponse | JSONRPCError | None:
    """Returns the response over HTTP that the library could not parse, or that was not read as a whole. Returns None if
    it is not an answer: then the library made the error."""
    if note.too_large and not note.body:
        return unread_result(_NOT_READ, request_id)
    messages = _messages(note.body.decode("utf-8", "replace"), with_cut_event=note.too_large)
    answers = (unread_answer(text, request_id) for text in messages if text.strip())
    return next((answer for answer in answers if answer is not None), None)


def _answer_of_failure(note: Note, error: JSONRPCError) -> JSONRPCResponse | JSONRPCError | None:
    """Returns the result in a response whose status is that of a failure, or the error with the server's own words."""
    text = note.body.decode("utf-8", "replace").strip(_WHITESPACE)
    message = message_of(text)
    if isinstance(message, JSONRPCResponse) and is_same_id(error.id, message.id):
        return message
    value = _tolerant_json(text)
    while isinstance(value, dict):
        value = next((value[name] for name in _WORDS if value.get(name)), None)
    words = text if value is None and not text.startswith(("{", "[", "<")) else value
    if not isinstance(words, str) or not words:
        return None
    return error.model_copy(update={"error": error.error.model_copy(update={"message": words})})


def is_for_nobody(note: Note) -> bool:
    """Returns whether a successful response over HTTP is a message that the library reads but matches to no request."""
    if note.request_id is None or note.status is None or note.status >= _FIRST_NO_SUCCESS:
        return False
    message = message_of(note.body.decode("utf-8", "replace"))
    if message is None or not isinstance(message, JSONRPCResponse | JSONRPCError):
        return message is not None
    return not is_same_id(note.request_id, message.id)


def _has_error(note: Note) -> bool:
    """Returns whether the response over HTTP contains a valid error, which the library passed on."""
    texts = _messages(note.body.decode("utf-8", "replace"))
    messages = (message_of(text) for text in texts)
    return any(isinstance(each, JSONRPCError) and is_same_id(note.request_id, each.id) for each in messages)


def _mend(answer: JSONRPCResponse, wire: Wire) -> None:
    """Changes an answer that the library would reject. A list of tools loses those that break the protocol. The result
    of a call becomes its text, and the call's note gets the reason."""
    note = wire.note_of(answer.id)
    if note is None:
        if isinstance(answer.result.get("tools"), list):
            _mend_page(answer.result, wire)
        return
    unread = answer.result.get(_UNREAD)
    fault = _NO_OBJECT if unread is not None else _fault("tools/call", wire.protocol, answer.result, CALL_RESULT)
    if fault and unread is None and not is_deeper(answer.result, _MAX_ANSWER_DEPTH):
        mended = without_nulls(answer.result)
        if not _fault("tools/call", wire.protocol, mended, CALL_RESULT):
            answer.result, fault = mended, ""
    if fault:
        note.misfit = _TOO_LARGE if note.too_large else f"it breaks the protocol at {fault}"
        text = unread if unread is not None else _json_text(answer.result)
        is_error = answer.result.get("isError") is True
        answer.result = {"content": [{"type": "text", "text": text}], "isError": is_error}


def _mend_page(page: dict[str, Any], wire: Wire) -> None:
    """Leaves out what breaks the protocol: fields of a page of tools, and tools."""
    tools = page["tools"]
    for name in [name for name, field in page.items() if name != "tools" and is_deeper(field, _MAX_TOOL_DEPTH)]:
        del page[name]
        _log.warning("mcp_list_field_left_out", field=name[:_NAME_CHARACTERS], why="it is nested too deep")
    while fault := _list_fault(page, [], wire):
        wrong = next((name for name in fault.split(": ")[0].split(".") if name in page and name != "tools"), None)
        if wrong is None:
            return
        if page.pop(wrong) is not None:
            _log.warning("mcp_list_field_left_out", field=wrong, why=fault)
    bare = _bare(page, wire)
    page["tools"] = [kept for tool in tools[:_MAX_PAGE_TOOLS] if (kept := _kept(tool, bare, wire)) is not None]
    beyond = len(tools) - _MAX_PAGE_TOOLS
    if beyond > 0:
        wire.left_out[_name_of(tools[_MAX_PAGE_TOOLS])] = (
            f"is left out: its page has more than {_MAX_PAGE_TOOLS} tools (tools left out: {beyond})"
        )


def _bare(page: dict[str, Any], wire: Wire) -> dict[str, Any]:
    """Returns the fields that a page must have. With the others, each check of a tool would take longer."""
    bare: dict[str, Any] = {}
    while fault := _list_fault(bare, [], wire):
        name = fault.split(": ")[0]
        if name not in page or name in bare:
            return page
        bare[name] = page[name]
    return bare


def _kept(tool: Any, bare: dict[str, Any], wire: Wire) -> Any:
    """Returns the listed tool as the library accepts it; None otherwise, and the tool is noted."""
    if is_deeper(tool, _MAX_TOOL_DEPTH):
        wire.left_out[_name_of(tool)] = "is nested too deep"
        return None
    fault = _list_fault(bare, [tool], wire)
    if fault and isinstance(tool, dict):
        tool = without_nulls(tool)
        fault = _list_fault(bare, [tool], wire)
    if fault:
        wire.left_out[_name_of(tool)] = f"breaks the protocol: {fault}"
        return None
    return tool


def _name_of(tool: Any) -> str:
    return str(tool.get("name", ""))[:_NAME_CHARACTERS] if isinstance(tool, Mapping) else ""


def is_deeper(value: Any, levels: int) -> bool:
    """Returns whether the value is nested deeper. It does not recurse."""
    layer = [value]
    for _ in range(levels):
        parts = [each.values() if isinstance(each, dict) else each for each in layer if isinstance(each, dict | list)]
        layer = [part for each in parts for part in each]
    return bool(layer)


def without_nulls(value: Any) -> Any:
    """Returns the object without its fields that are null, which count as absent. Values that the protocol does not
    define stay as they are."""
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: field if name in _OWN_VALUES else without_nulls(field)
        for name, field in value.items()
        if field is not None
    }


def _list_fault(result: dict[str, Any], tools: list[Any], wire: Wire) -> str:
    return _fault("tools/list", wire.protocol, {**result, "tools": tools}, _LIST)


def _fault(method: str, version: str, result: dict[str, Any], kind: TypeAdapter[Any]) -> str:
    """Returns why the library rejects a result; empty if it accepts it."""
    try:
        with suppress(KeyError):  # a version of the protocol without this method, for which the library checks less
            validate_server_result(method, version, result)
        kind.validate_python(result, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:_MAX_FAULT_CHARACTERS]
    except (ValueError, RecursionError):
        return _TOO_DEEP
    return ""


def parse_messages(line: bytes) -> list[SessionMessage]:
    """Returns the messages in a line of a process, or what the line answers if it is not valid; none for noise. Old
    versions of the protocol allow several messages in a line, as a list."""
    text = mend_halves(line).decode("utf-8", "replace").strip(_WHITESPACE)
    batch = _tolerant_json(text) if text.startswith("[") else None
    texts = [_json_text(each) for each in batch] if isinstance(batch, list) else [text]
    messages = [_parsed(each, is_whole=line.endswith(b"\n")) for each in texts if each]
    return [SessionMessage(message) for message in messages if message is not None]


def _parsed(text: str, *, is_whole: bool) -> JSONRPCMessage | None:
    message = message_of(text)
    if message is None:
        request_id = _answered_request(text, is_whole=is_whole)
        message = unread_answer(text, request_id) if request_id is not None else None
    return message


def error_message(request_id: int | str, reason: str) -> SessionMessage:
    """Returns an error as the answer of a request."""
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=PARSE_ERROR, message=reason)))


def _messages(body: str, *, with_cut_event: bool = False) -> list[str]:
    """Returns the messages in a response over HTTP. The body is one message, or a stream of events, whose last one
    counts only if it is whole."""
    if body.lstrip().startswith(("{", "[")):
        return [body]
    events = _LINE_END.sub("\n", body).split("\n\n")
    return [data_of(event) for event in (events if with_cut_event else events[:-1])]


def data_of(event: str) -> str:
    """Returns the data of one event."""
    return "\n".join(_DATA.findall(_LINE_END.sub("\n", event)))


def unread_answer(text: str, request_id: int | str) -> JSONRPCResponse | JSONRPCError | None:
    """Returns what a text that the library cannot parse answers to this request; None if it is not an answer.

    The text can be broken JSON, a batch, a message without its version, a result that is not an object, or an error
    without its code. A result that is not an object becomes its text (`_mend`). A text counts as an answer only if
    `result` or `error` is one of its own fields, and if its other fields are those of an answer to this request. A log
    line or the page of a gateway can contain the same words.
    """
    answer = _tolerant_json(text)
    if isinstance(answer, list):
        answer = next((each for each in answer if isinstance(each, dict) and _answers(each, request_id)), None)
        if answer is None:
            return None
    if answer is None:
        return _broken_answer(text, request_id)
    if not isinstance(answer, dict) or not _answers(answer, request_id):
        return _no_answer(answer, request_id)
    if answer.get("error") is not None:
        return JSONRPCError(jsonrpc="2.0", id=request_id, error=_error(answer["error"]))
    result = answer["result"]
    if isinstance(result, dict):
        return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result)
    return unread_result(result if isinstance(result, str) else _json_text(result), request_id)


def _answers(answer: Mapping[str, Any], request_id: int | str) -> bool:
    """Returns whether an object answers the request."""
    if "method" in answer or ("result" not in answer and answer.get("error") is None):
        return False
    if "jsonrpc" in answer:
        return answer.get("id") is None or is_same_id(request_id, answer["id"])
    return is_same_id(request_id, answer.get("id")) and not answer.keys() - {"id", "result", "error"}


def _no_answer(answer: object, request_id: int | str) -> JSONRPCError | None:
    """Returns an error for a message to this request that has neither a result nor an error; None for any other."""
    if not isinstance(answer, dict) or "method" in answer or "jsonrpc" not in answer:
        return None
    error = ErrorData(code=INTERNAL_ERROR, message="the server sent a message that is not valid in the protocol")
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=error) if is_same_id(request_id, answer.get("id")) else None


def _broken_answer(text: str, request_id: int | str) -> JSONRPCResponse | JSONRPCError | None:
    """Returns what broken JSON answers, if it begins as an answer does."""
    head = text[:EXCERPT_BYTES].encode()
    start = ANSWER_START.match(head)
    if start is None or (start[1] and not is_same_id(request_id, json.loads(start[1]))):
        return None
    if start[0].rstrip(b" :\t\r\n").endswith(b'"error"'):
        error = ErrorData(code=INTERNAL_ERROR, message=text)
        return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
    return unread_result(text, request_id)


def unread_result(text: str, request_id: int | str) -> JSONRPCResponse:
    """Returns a result that becomes this text."""
    return JSONRPCResponse(jsonrpc="2.0", id=request_id, result={_UNREAD: text})


def _error(error: object) -> ErrorData:
    """Returns an error that breaks the protocol, with the server's words."""
    code = error.get("code") if isinstance(error, dict) else None
    words = error.get("message") if isinstance(error, dict) else error
    text = words if isinstance(words, str) and words else _json_text(error)
    return ErrorData(code=code if isinstance(code, int) else INTERNAL_ERROR, message=text)


def message_of(text: str) -> JSONRPCMessage | None:
    """Returns the message as the library reads it; None if it cannot."""
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return None


def _tolerant_json(text: str) -> Any:
    """Returns the value, also of JSON with raw control characters or too long integers; None if it is not JSON."""
    try:
        return json.loads(text, parse_int=_integer, strict=False)
    except (ValueError, RecursionError):
        return None


def _json_text(value: object) -> str:
    """Returns the value as JSON. Python cannot write all that it can read, if it is nested deep."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return _NOT_READ


def _integer(digits: str) -> int | str:
    """Returns the integer. One that is too long for Python stays text."""
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


def _answered_request(text: str, *, is_whole: bool) -> int | str | None:
    """Returns the id of the request that a line answers, or None. It is read from broken JSON too if the line is whole:
    otherwise the server died while it answered."""
    message = _tolerant_json(text)
    if message is None and is_whole:
        with suppress(UnmatchedLine):
            return request_id_of(text.encode(), text.encode())
    if isinstance(message, list):
        message = next((each for each in message if isinstance(each, dict)), None)
    request_id = whole_id(message.get("id")) if isinstance(message, dict) and "method" not in message else None
    return request_id if isinstance(request_id, int | str) and not isinstance(request_id, bool) else None


def request_id_of(head: bytes, tail: bytes) -> int | str:
    """Returns the request's id. Raises: UnmatchedLine if it cannot be found."""
    start, end = ANSWER_START.match(head), _ANSWER_END.search(tail[-EXCERPT_BYTES:])
    digits = (start and start[1]) or (end and end[1])
    if not digits:
        raise UnmatchedLine
    request_id: int | str = whole_id(json.loads(digits))  # type: ignore[assignment]
    return request_id
