"""A long-lived session with an MCP server, opened on first use and reopened after the connection ends.

A separate task holds the connection open, because the library requires that the same task enters and leaves it. Any
number of calls share the connection concurrently.

A call that did not return in time makes the session suspect. Before the next call, the server must list its tools;
otherwise it is restarted. The restart waits until no other call is open: many servers answer one request at a time and
cannot list tools during a long call.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

import structlog
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ResourceLink,
    TextContent,
)
from pydantic import JsonValue

from perdure.activities.toolbox.mcp.answers import CALL_RESULT, checked_streams, is_deeper
from perdure.activities.toolbox.mcp.faults import reason_of
from perdure.activities.toolbox.mcp.listing import Offer, list_tools, offer_of
from perdure.activities.toolbox.mcp.transports import Child, http_streams, stdio_streams
from perdure.activities.toolbox.mcp.wire import ATTEMPT_FIELD, Note, Wire
from perdure.contracts.mcp import SECRET_PATTERN, McpServer
from perdure.contracts.values import canonical_json
from perdure.core.calls.secrets import without_secrets
from perdure.core.egress import Outbound, named_by_url
from perdure.core.json_schema import answer_fault
from perdure.core.text import clean
from perdure.sdk.outcomes import result_of

LISTING_SECONDS = 60.0
"""A list of tools that is older is fetched again before a call, so that a changed tool is noticed."""
_DISCONNECT_SECONDS = 5.0
_NO_JSON = object()
MAX_OUTPUT_CHARACTERS = 48 * 1024
"""Maximum length of one answer as the model reads it. It is below the limit of a tool message
(perdure/activities/tool_answers.py), so that the cut is marked where it happens."""
MAX_SEARCHED_CHARACTERS = 20_000
"""The part of a server's error that is searched for secrets."""
MAX_ERROR_CHARACTERS = 2_000
MAX_BLOCKS = 100
_MAX_DEPTH = 64
_NAME_CHARACTERS = 300
_log = structlog.get_logger(__name__)
# The library logs messages that it cannot parse verbatim, and a server's messages can contain anything.
logging.getLogger("mcp").setLevel(logging.CRITICAL)

SecretOf = Callable[[str], str | None]
ReportAttempt = Callable[[str], Awaitable[None]]
"""Called after each attempt to reach the server: with the reason if it could not be used, or an empty text if it
answered."""


async def _ignore_report(_: str) -> None:
    """The report of sessions whose owner keeps no record of attempts."""


class Unreachable(Exception):
    """The server could not be started or reached, or did not list its tools. Nothing was sent."""


class MissingSecret(Exception):
    """A secret that the server needs is not set on the worker that runs tools."""


@dataclass(slots=True)
class Connection:
    """An open session: the server's tools, and the way to call them."""

    client: Client
    wire: Wire
    keeper: asyncio.Task[None]
    offer: Offer
    listed_at: float
    suspect: bool = False

    @property
    def alive(self) -> bool:
        """Returns whether calls can use the connection."""
        return not self.keeper.done() and not self.wire.ended.is_set()

    async def call(
        self, tool: str, args: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> tuple[CallToolResult | InputRequiredResult | MCPError | ValueError, Note]:
        """Sends one call. Returns the response, and what the transport recorded about it.

        A response that breaks the protocol is returned as the error. If the call is cancelled, the server is notified.
        If the connection has ended, nothing is sent.
        """
        token, note = token_hex(8), Note()
        if not self.alive:
            return ValueError("the connection has ended"), note
        self.wire.notes[token] = note
        request = CallToolRequest(
            params=CallToolRequestParams(name=tool, arguments=dict(args), _meta={**meta, ATTEMPT_FIELD: token})
        )
        try:
            # `call_tool` would check the result against the output schema and raise after the effect was made.
            return await self.client.session.send_request(request, CALL_RESULT), note
        except (MCPError, ValueError) as error:
            return error, note
        except asyncio.CancelledError:
            self.suspect = True
            raise
        finally:
            self.wire.notes.pop(token, None)


@dataclass(slots=True)
class McpSession:
    """The session with one MCP server of an app."""

    server: McpServer
    folder: Path
    """The app's folder; a command is started there."""
    home: Path
    """The server's own data folder; created when needed."""
    secret_of: SecretOf
    report: ReportAttempt = _ignore_report
    outbound: Outbound = field(default_factory=Outbound)
    """The addresses that it can reach, besides the one that its file names."""
    _connection: Connection | None = field(default=None, init=False)
    _opening: asyncio.Task[Connection] | None = field(default=None, init=False)

    async def connection(self) -> Connection:
        """Returns an open connection with a list of tools that is at most `LISTING_SECONDS` old.

        If this call is cancelled, the opening continues. The next caller finds it in progress or complete.

        Raises: Unreachable; MissingSecret.
        """
        connection = self._connection
        if connection is not None and connection.alive and not self._is_stale(connection):
            return connection
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._refresh())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._opening)

    def secrets(self) -> tuple[str, ...]:
        """Returns the values of the secrets that the server's settings name, if they are set."""
        return tuple(secret for name in self.server.secrets() if (secret := self.secret_of(name)))

    async def close(self) -> None:
        """Closes the session. A server that was started as a process is stopped too."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        if self._connection is not None:
            await _disconnect(self._connection.wire, self._connection.keeper)
        self._connection = self._opening = None

    def _is_stale(self, connection: Connection) -> bool:
        return connection.suspect or asyncio.get_running_loop().time() - connection.listed_at > LISTING_SECONDS

    async def _refresh(self) -> Connection:
        """Renews the session and passes the result to `report`.

        Raises: Unreachable; MissingSecret.
        """
        try:
            connection = await self._renew()
        except (Unreachable, MissingSecret) as error:
            await self.report(str(error))
            raise
        await self.report("")
        return connection

    async def _renew(self) -> Connection:
        """Returns the session with a fresh list of tools. Opens a new one if the old one does not respond and has no
        open calls.

        Raises: Unreachable; MissingSecret.
        """
        connection = self._connection
        if connection is not None and connection.alive:
            try:
                connection.offer = await self._list_offer(connection.client, connection.wire)
            except Unreachable:
                _log.warning("mcp_server_silent", server=self.server.name, calls=len(connection.wire.notes))
                if connection.wire.notes:  # open calls still have time; a restart would lose them
                    raise
            else:
                connection.listed_at, connection.suspect = asyncio.get_running_loop().time(), False
                return connection
        if connection is not None:
            self._connection = None
            await _disconnect(connection.wire, connection.keeper)
        self._connection = await self._connect()
        return self._connection

    async def _connect(self) -> Connection:
        wire = Wire()
        connected: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        connected.add_done_callback(lambda future: future.cancelled() or future.exception())
        streams = checked_streams(self._streams(wire), wire)
        keeper = asyncio.create_task(_hold_open(streams, wire, connected))
        try:
            client = await asyncio.wait_for(asyncio.shield(connected), self.server.start_seconds)
            wire.protocol = client.protocol_version
            offer = await self._list_offer(client, wire)
        except BaseException as error:
            await _disconnect(wire, keeper)
            if isinstance(error, asyncio.CancelledError) or (isinstance(error, Unreachable) and wire.exit_code is None):
                raise
            cause = _root_cause(error)
            if wire.refused:
                raise Unreachable(
                    f"requests to the server {self.server.name} are not allowed: "
                    f"{without_secrets(wire.refused, self.secrets())}"
                ) from error
            raise Unreachable(f"the server {self.server.name} is unreachable: {self._reason(cause, wire)}") from error
        for sentence in offer.left_out:
            _log.warning("mcp_tool_left_out", why=sentence)
        _log.info("mcp_session_open", server=self.server.name, tools=len(offer.tools))
        return Connection(client, wire, keeper, offer, asyncio.get_running_loop().time())

    async def _list_offer(self, client: Client, wire: Wire) -> Offer:
        """Returns what the server offers now.

        An unchanged list is not checked again. A changed one is checked on a thread, because its schemas have no limit
        in number or size.
        """
        wire.left_out.clear()
        try:
            listed = tuple(await asyncio.wait_for(list_tools(client.session, wire.left_out), self.server.start_seconds))
            known = self._connection.offer if self._connection is not None else None
            broken = dict(wire.left_out)
            if known is not None and (known.listed, known.broken) == (listed, broken):
                return known
            return await asyncio.to_thread(offer_of, self.server, listed, broken)
        except (MCPError, ValueError, TimeoutError) as error:
            message = f"the server {self.server.name} does not list its tools: {self._reason(error, wire)}"
            raise Unreachable(message) from error

    def _reason(self, error: BaseException, wire: Wire) -> str:
        return reason_of(error, wire, self.home / "stderr.log", self.secrets())

    def _streams(self, wire: Wire) -> Any:
        """Returns the server's transport, with secrets filled in.

        Raises: MissingSecret; Unreachable if the server's folder cannot be created.
        """
        if self.server.url:
            headers = {name: self._with_secrets(value) for name, value in self.server.headers.items()}
            url = self._with_secrets(self.server.url)
            outbound = self.outbound.with_hosts(named_by_url(url, by_operator=False))
            if self.server.max_answer_bytes is not None:
                outbound = replace(outbound, answer_bytes=self.server.max_answer_bytes)
            return http_streams(url, headers, wire, outbound)
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unreachable(f"the server {self.server.name} cannot be started: its folder: {error}") from error
        program, *arguments = self.server.command
        environ = {name: self._with_secrets(value) for name, value in self.server.env.items()}
        child = Child(
            (sys.executable if program == "python" else program, *arguments),
            self.folder,
            {"PERDURE_MCP_HOME": str(self.home), **environ},
            self.home / "stderr.log",
        )
        return stdio_streams(child, wire)

    def _with_secrets(self, text: str) -> str:
        def value(name: str) -> str:
            secret = self.secret_of(name)
            if not secret:
                raise MissingSecret(f"the secret {name} is not set in the worker's environment")
            return secret

        return SECRET_PATTERN.sub(lambda match: value(match.group(1)), text)


def _root_cause(error: BaseException) -> BaseException:
    """Returns the first cause. The library's tasks raise groups, whose name is not useful."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _hold_open(streams: Any, wire: Wire, connected: asyncio.Future[Client]) -> None:
    """Holds the connection open until it ends or must close."""
    try:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(streams, cache=None))
            if not connected.done():
                connected.set_result(client)
            await wire.ended.wait()
    except Exception as error:  # any end of the connection; the library ends the open calls
        if not connected.done():
            connected.set_exception(error)
    finally:
        wire.ended.set()
        if not connected.done():
            connected.cancel()


async def _disconnect(wire: Wire, keeper: asyncio.Task[None]) -> None:
    """Closes the connection and waits until it has ended."""
    wire.ended.set()
    _, waiting = await asyncio.wait({keeper}, timeout=_DISCONNECT_SECONDS)
    if waiting:
        keeper.cancel()
        await asyncio.wait({keeper}, timeout=_DISCONNECT_SECONDS)


def output_of(answer: CallToolResult) -> JsonValue:
    """Returns the result that the model reads, bounded, storable and text only.

    It is the structured content if there are only texts that repeat it, or the text if that is all. Otherwise it is
    both, as `content` and `structured`. Images, audio and binary resources are described and never passed on.
    """
    others = [block for block in answer.content if not isinstance(block, TextContent)]
    structured = answer.structured_content
    if structured is not None and not others and _fits(structured) and _repeats(answer, structured):
        return cast(JsonValue, dict(structured))
    if structured is None and len(answer.content) == 1 and not others:
        return _cut(_text(answer), MAX_OUTPUT_CHARACTERS)
    share = max(1, MAX_OUTPUT_CHARACTERS // max(1, min(len(answer.content), MAX_BLOCKS)))
    blocks: list[JsonValue] = [_block(block, share) for block in answer.content[:MAX_BLOCKS]]
    if len(answer.content) > MAX_BLOCKS:
        blocks.append(f"[cut: {len(answer.content)} blocks of content]")
    output: dict[str, JsonValue] = {"content": blocks}
    if structured is not None:
        output["structured"] = dict(structured) if _fits(structured) else "[cut: too long to show]"
    return output


def _repeats(answer: CallToolResult, structured: Mapping[str, Any]) -> bool:
    """Returns whether the texts are only the structured content again, as JSON or as plain text. Servers put a value
    that is not an object under `result`, and a list into one text for each of its items."""
    texts = [block.text for block in answer.content if isinstance(block, TextContent)]
    value = structured["result"] if structured.keys() == {"result"} else structured
    items = value if isinstance(value, list) and len(texts) == len(value) != 1 else [value]
    return not any(text.strip() for text in texts) or (
        len(texts) == len(items)
        and all(
            text == str(item) or _json_form(_strict_json(text)) in (_json_form(item), _json_form(structured))
            for text, item in zip(texts, items, strict=True)
        )
    )


def _json_form(value: object) -> str:
    """Returns the value as JSON, in which 1 and `true` are different. In Python they are equal."""
    return "" if value is _NO_JSON else json.dumps(value, sort_keys=True)


def _strict_json(text: str) -> object:
    """Returns the value of a text of the tool; `_NO_JSON` if it is not JSON, because null is a value too."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON


async def schema_mismatch(answer: CallToolResult, schema: Mapping[str, JsonValue] | None) -> str | None:
    """Returns how structured content violates the output schema that the server gave with the tool.

    Returns None if it is valid, if the schema or the content is missing, or if the content is cut anyway.
    """
    structured = answer.structured_content
    if schema is None or structured is None or not _fits(structured):
        return None
    return await asyncio.to_thread(answer_fault, structured, schema)  # the validator can need seconds for a long answer


def error_of(answer: CallToolResult, secrets: Collection[str] = ()) -> str:
    """Returns the tool's own error text, and its structured content unless the text repeats it. Without `secrets`."""
    text, structured = _text(answer).strip(), answer.structured_content
    if structured and _fits(structured) and not (text and _repeats(answer, structured)):
        text = f"{text} {canonical_json(result_of(dict(structured)).output)}".strip()
    return (
        _cut(without_secrets(text, secrets, MAX_SEARCHED_CHARACTERS), MAX_ERROR_CHARACTERS)
        or "the tool failed without a message"
    )


def _text(answer: CallToolResult) -> str:
    return "\n".join(block.text for block in answer.content if isinstance(block, TextContent))


def _block(block: object, max_characters: int) -> JsonValue:
    if isinstance(block, TextContent):
        return _cut(block.text, max_characters)
    if isinstance(block, ImageContent | AudioContent):
        return _described(block.type, block.mime_type, block.data)
    if isinstance(block, ResourceLink):
        return {"type": "resource_link", "uri": _name(block.uri), "name": _name(block.name)}
    if isinstance(block, EmbeddedResource):
        resource = block.resource
        if isinstance(resource, BlobResourceContents):
            return {**_described("resource", resource.mime_type, resource.blob), "uri": _name(resource.uri)}
        return {"type": "resource", "uri": _name(resource.uri), "text": _cut(resource.text, max_characters)}
    return {"type": _name(getattr(block, "type", "unknown"))}


def _described(kind: str, mime_type: str | None, base64: str) -> dict[str, JsonValue]:
    """Describes binary content without decoding it. The number of bytes is computed from the base64 form."""
    size = len(base64) * 3 // 4 - base64[-2:].count("=")
    digest = sha256(base64.encode(errors="replace")).hexdigest()[:16]
    return {
        "type": kind,
        "mime_type": _name(mime_type or "unknown"),
        "bytes": max(size, 0),
        "sha256_of_base64": digest,
        "note": "binary content is not shown",
    }


def _name(value: object) -> str:
    return clean(str(value))[:_NAME_CHARACTERS]


def _cut(text: str, max_characters: int, length: int | None = None) -> str:
    """Returns the start of a text, with a note of its length if it is too long. `length` is that of all of it."""
    note = f"… [cut: {length or len(text)} characters]"
    return clean(text if len(text) <= max_characters else f"{text[:max_characters]}{note}")


def _fits(structured: Mapping[str, Any]) -> bool:
    """Returns whether the content is small and shallow enough to be passed on whole and parsed again."""
    if is_deeper(structured, _MAX_DEPTH + 1):
        return False
    try:
        return len(canonical_json(structured)) <= MAX_OUTPUT_CHARACTERS
    except ValueError:  # NaN or infinity: the recorded result is made storable later, but it cannot be measured here
        return len(repr(structured)) <= MAX_OUTPUT_CHARACTERS
