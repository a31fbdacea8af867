"""Tools of MCP servers, which the engine runs like any other tool, and the MCP servers of a worker's apps.

A call is for the card that its turn pinned. Before the call is sent, the card's version must match the tool that the
server lists. If the tool has changed, the call is refused and nothing is sent; an approved call then waits for its
version (`tools.run`). This table interprets the response:

| answer                                                       | read        | keyed, opaque |
|--------------------------------------------------------------|-------------|---------------|
| no connection: the server is down, or cannot be started      | unavailable | unavailable   |
| the server has forgotten the session (404)                   | unavailable | unavailable   |
| a secret is missing; the tool was removed or has changed     | refused     | refused       |
| the rules for outgoing requests forbid the address           | refused     | refused       |
| a result                                                     | result      | result        |
| a result that does not match the tool's output schema or the protocol | refused | result with a note |
| a result that reports an error (`isError`)                   | refused     | refused       |
| the server's error: unknown method, bad request or parameters | refused    | refused       |
| an HTTP status            | by the table of perdure/sdk/outcomes.py | by the same table |
| any other server error; an unreadable or too large answer    | refused     | ambiguous     |
| a question (the server requests input)                       | refused     | ambiguous     |
| the connection ended after the call was sent                 | ambiguous   | ambiguous     |
| no answer within the tool's time limit (perdure/activities/author_code.py) | ambiguous | ambiguous |

refused = ToolRefused; unavailable = ToolUnavailable: nothing was sent; ambiguous = any other exception.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import JsonValue

from perdure.activities.toolbox.mcp.wire import CLOSED_MESSAGES
from perdure.contracts.agents import AgentDefinition, ToolCard
from perdure.contracts.calls import EffectClass, KnownEnd
from perdure.contracts.mcp import IDEMPOTENCY_KEY, McpServer, server_of
from perdure.core.calls.secrets import without_secrets
from perdure.core.egress import NamedHost, Outbound
from perdure.sdk.context import ToolContext
from perdure.sdk.outcomes import Meaning, ToolRefused, ToolResult, ToolUnavailable, meaning_of_status, result_of

if TYPE_CHECKING:  # the library takes a second of CPU to import, which a worker without MCP calls can save
    from perdure.activities.toolbox.mcp.listing import OfferedTool
    from perdure.activities.toolbox.mcp.session import Connection, McpSession, SecretOf
    from perdure.activities.toolbox.mcp.wire import Note, Wire

_BAD_REQUEST = -32600
_REJECTION_CODES = frozenset({_BAD_REQUEST, -32601, -32602})
"""JSON-RPC codes: invalid request, method not found, invalid params."""
_MAX_REASON_CHARACTERS = 300
NO_NAMED_HOSTS = Outbound()
AFTER_START_SECONDS = 5.0
"""The delay before the import. After it the other processes of a stack have started."""
_OPENING_SHARE = 0.8
"""Share of a call's time limit for opening a session. If this part times out, nothing was sent; the call's own timeout
could not tell."""

ReportServer = Callable[[str, str, str], Awaitable[None]]
"""Callback with the app, the server's name, and why it could not be used (empty if it responded)."""


class ServerLost(Exception):
    """The call was sent, but no readable response arrived. The effect may have happened."""

    def __init__(self, message: str, known: KnownEnd = KnownEnd.NO_ANSWER) -> None:
        super().__init__(message)
        self.known = known


class ServerToolChanged(ToolRefused):
    """The server no longer lists the tool, or lists another version of it. Nothing was sent."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """A server's tool with the card that a turn pinned."""

    card: ToolCard
    session: "McpSession" = field(repr=False)

    async def run(self, args: Mapping[str, JsonValue], context: ToolContext) -> ToolResult:
        """Calls the tool once.

        Raises: ToolRefused, ToolUnavailable, ServerLost, by the table above.
        """
        from mcp_types import CallToolResult

        from perdure.activities.toolbox.mcp.session import error_of, output_of, schema_mismatch

        connection, offered = await self._offered(context.deadline)
        arguments: dict[str, Any] = dict(args)
        meta: dict[str, Any] = {}
        if self.card.effect is EffectClass.KEYED and offered.treatment.key_argument:
            arguments[offered.treatment.key_argument] = context.idempotency_key
        elif self.card.effect is EffectClass.KEYED:
            meta[IDEMPOTENCY_KEY] = context.idempotency_key
        answer, note = await connection.call(offered.tool, arguments, meta)
        if _session_is_gone(answer, note):
            connection.suspect = True  # the next attempt opens another connection, unless calls are open on this one
        if isinstance(answer, CallToolResult) and (note.misfit or not note.too_large):
            if answer.is_error:
                raise ToolRefused(error_of(answer, self.session.secrets()))
            return self._result(output_of(answer), note.misfit or await schema_mismatch(answer, offered.output))
        raise self._failure(answer, note, connection.wire)

    async def check_listed(self, seconds: float) -> None:
        """Checks, within so many seconds, that the server lists the tool in the version of the card. Nothing is called.

        Raises: ServerToolChanged, and as `_connection`.
        """
        await self._offered(datetime.now(UTC) + timedelta(seconds=seconds))

    def _result(self, output: JsonValue, mismatch: str | None) -> ToolResult:
        """Returns the result for the model. A read whose response breaks the protocol or its output schema fails. For
        other tools, the response is still returned with a note, because it is all that is known about the effect.

        Raises: ToolRefused.
        """
        if mismatch is None:
            return result_of(output)
        server = self.session.server.name
        message = f"the server {server} received the call, but its answer is not valid: {self._shown(mismatch)}"
        if self.card.effect is EffectClass.READ:
            raise ToolRefused(message)
        return result_of({"status": "answer_misfit", "message": message, "answer": output})

    async def _offered(self, deadline: datetime) -> "tuple[Connection, OfferedTool]":
        """Returns the connection, and the server's tool in the version of the card. An older list without it is read
        again.

        Raises: ServerToolChanged, and as `_connection`.
        """
        began, connection = asyncio.get_running_loop().time(), await self._connection(deadline)
        offered = connection.offer.tools.get(self.card.name)
        if connection.listed_at < began and (offered is None or not offered.card.is_version(self.card.version)):
            connection.suspect = True
            connection = await self._connection(deadline)
            offered = connection.offer.tools.get(self.card.name)
        if offered is None:
            raise ServerToolChanged(f"the server {self.session.server.name} no longer has this tool")
        if not offered.card.is_version(self.card.version):
            raise ServerToolChanged("the tool has changed since the call was made; make a new call")
        return connection, offered

    async def _connection(self, deadline: datetime) -> "Connection":
        """Opens the connection within a share of the time until `deadline`.

        Raises: ToolRefused, ToolUnavailable; nothing was sent.
        """
        from perdure.activities.toolbox.mcp.session import MissingSecret, Unreachable

        seconds_left = (deadline - datetime.now(UTC)).total_seconds()
        try:
            async with asyncio.timeout(_OPENING_SHARE * max(seconds_left, 0.0)):
                return await self.session.connection()
        except MissingSecret as error:
            raise ToolRefused(str(error)) from error
        except Unreachable as error:
            raise ToolUnavailable(str(error)) from error
        except TimeoutError as error:
            message = f"the server {self.session.server.name} was not ready in time; nothing was sent"
            raise ToolUnavailable(message) from error

    def _failure(self, answer: object, note: "Note", wire: "Wire") -> Exception:
        """Returns the exception for a response that is not a result."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        server = self.session.server.name
        code = answer.error.code if isinstance(answer, MCPError) else None
        if wire.refused and not note.sent:
            return ToolRefused(f"requests to the server {server} are not allowed: {self._shown(wire.refused)}")
        if not note.sent:
            return ToolUnavailable(f"the server {server} is unreachable", note.retry_after_seconds)
        if _session_is_gone(answer, note):
            return ToolUnavailable(f"the server {server} ended the session")
        if note.status is not None and note.status >= 300:
            message = f"the server {server} answered {note.status}{self._reason(answer)}"
            meaning = meaning_of_status(self.card.effect, note.status, names_wait=note.retry_after_seconds is not None)
            if meaning is Meaning.REFUSED:
                return ToolRefused(message)
            if meaning is Meaning.UNAVAILABLE:
                return ToolUnavailable(message, note.retry_after_seconds)
            return ServerLost(message, KnownEnd.ANSWERED_ERROR)
        if code in _REJECTION_CODES and (note.has_error or note.status is None):
            return ToolRefused(f"the server {server} rejected the call{self._reason(answer)}")
        # Servers can use the same code for their own errors, whose message is more specific than a closed connection.
        if note.lost or (code == CONNECTION_CLOSED and not note.too_large and not _is_of_server(answer)):
            return ServerLost(f"the server {server} closed the connection before it answered")
        message = (
            "the answer is too large" if note.too_large else f"the answer is not a valid result{self._reason(answer)}"
        )
        if self.card.effect is EffectClass.READ:
            return ToolRefused(f"the server {server} received the call, but {message}")
        return ServerLost(message, KnownEnd.ANSWERED_ERROR if _is_of_server(answer) else KnownEnd.ANSWER_NOT_READ)

    def _reason(self, answer: object) -> str:
        from mcp.shared.exceptions import MCPError

        if not isinstance(answer, MCPError):
            return ""
        text = " ".join(self._shown(answer.error.message).split())
        return f": {text[:_MAX_REASON_CHARACTERS]}" if text else ""

    def _shown(self, text: str) -> str:
        """Returns a text of a failure, which the model and people read, without the server's secrets."""
        from perdure.activities.toolbox.mcp.session import MAX_SEARCHED_CHARACTERS

        return without_secrets(text, self.session.secrets(), MAX_SEARCHED_CHARACTERS)


def _is_of_server(answer: object) -> bool:
    """Returns whether the error is from the server. Otherwise the library raised it because there was no response."""
    from mcp.shared.exceptions import MCPError

    return isinstance(answer, MCPError) and not answer.error.message.startswith(CLOSED_MESSAGES)


def _session_is_gone(answer: object, note: "Note") -> bool:
    """Returns whether an older server has forgotten the session, so that it did nothing. The library reports it in this
    form."""
    from mcp.shared.exceptions import MCPError

    return note.status == 404 and isinstance(answer, MCPError) and answer.error.code == _BAD_REQUEST


async def _import_later() -> None:
    await asyncio.sleep(AFTER_START_SECONDS)
    await asyncio.to_thread(import_module, "perdure.activities.toolbox.mcp.session")


class AppServers(Protocol):
    """The parts of an app that its MCP servers need."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def agents(self) -> Sequence[AgentDefinition]: ...
    @property
    def servers(self) -> Mapping[str, McpServer]: ...
    @property
    def egress(self) -> Sequence[NamedHost]: ...


class McpServers:
    """The MCP servers of the apps in one process, each with one session."""

    def __init__(
        self,
        apps: Iterable[AppServers],
        secret_of: "SecretOf",
        home: Path,
        report: ReportServer | None = None,
        outbound: Outbound = NO_NAMED_HOSTS,
    ) -> None:
        self._apps = {app.name: app for app in apps}
        self._app_of_agent = {agent.id: app.name for app in self._apps.values() for agent in app.agents}
        self._secret_of = secret_of
        self._home = home
        self._report = report
        self._outbound = outbound
        self._sessions: dict[tuple[str, str], McpSession] = {}
        self._importing: asyncio.Task[object] | None = None

    def import_soon(self) -> None:
        """Imports the MCP library after the start. The import takes half a second of CPU, too much while a stack starts
        on two cores, and during the first call it would block the whole worker."""
        if any(app.servers for app in self._apps.values()):
            self._importing = asyncio.create_task(_import_later())

    def find(self, agent_id: str, pinned: ToolCard | None) -> McpTool | None:
        """Returns the tool for a card that a turn of this agent pinned; None if no server of its app has such names."""
        app = self._apps.get(self._app_of_agent.get(agent_id, ""))
        if app is None or pinned is None:
            return None
        server = server_of(pinned.name, app.servers)
        return McpTool(pinned, self.session(app.name, server)) if server is not None else None

    def session(self, app_name: str, server: McpServer) -> "McpSession":
        """Returns the session with `server`. It is opened on first use."""
        from perdure.activities.toolbox.mcp.session import McpSession

        app, key = self._apps[app_name], (app_name, server.name)
        if key not in self._sessions:
            home = self._home / "mcp" / f"{app_name}-{server.name}"
            session = McpSession(
                server, app.folder, home, self._secret_of, outbound=self._outbound.with_hosts(*app.egress)
            )
            if self._report is not None:
                session.report = partial(self._report, *key)
            self._sessions[key] = session
        return self._sessions[key]

    async def close(self) -> None:
        """Ends every session."""
        if self._importing is not None:
            self._importing.cancel()
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()
