"""A tool of an MCP server, as the engine runs any other; and the servers of a worker's apps.

A call is for the card that its turn pinned. Before it is sent, that card's version must be the one of what the server
lists: a tool that has drifted is refused, and nothing is sent. What comes back is read by this table:

| what came back                                              | read      | keyed, opaque |
|-------------------------------------------------------------|-----------|---------------|
| no connection: the server is down, or cannot be started     | unavailable | unavailable |
| the server has forgotten the session (404)                  | unavailable | unavailable |
| a credential is missing; the tool is gone or has drifted    | refused   | refused       |
| the rules of outgoing requests forbid its address           | refused   | refused       |
| a result                                                    | result    | result        |
| a result that the tool's own output schema forbids          | refused   | result, told so |
| a result that says it is an error (`isError`)               | refused   | refused       |
| the protocol's own no: no such method, bad request or parameters | refused | refused     |
| an HTTP status                                              | by the table of perdure/sdk/outcomes.py | same |
| any other error of the server; an answer that does not read, or is too large | refused | ambiguous |
| a question back (the server wants input)                    | refused   | ambiguous     |
| the connection ended after the call went out                | ambiguous | ambiguous     |
| nothing within the tool's time                              | ambiguous (perdure/activities/tool_execution.py) | same
|

refused = ToolRefused, unavailable = ToolUnavailable: nothing was sent; ambiguous = any other exception.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import JsonValue

from perdure.contracts.agents import AgentDefinition, ToolCard
from perdure.contracts.calls import EffectClass
from perdure.contracts.mcp import IDEMPOTENCY_KEY, McpServer, server_of
from perdure.core.egress import Named, Outbound
from perdure.sdk.context import ToolContext
from perdure.sdk.outcomes import Meaning, ToolRefused, ToolResult, ToolUnavailable, meaning_of_status, result_of

if TYPE_CHECKING:  # the library takes a second of CPU to import, which a worker without such calls need not spend
    from perdure.activities.toolbox.mcp.session import Connection, McpSession, SecretOf
    from perdure.activities.toolbox.mcp.transports import Note, Wire

_BAD_REQUEST = -32600
_SAID_NO = frozenset({_BAD_REQUEST, -32601, -32602})
"""JSON-RPC: not a request, no such method, wrong parameters."""
_MOST_CHARACTERS = 300
NOTHING_NAMED = Outbound()
AFTER_START_SECONDS = 5.0
"""By then the other programs of a stack are up."""
_OPENING_SHARE = 0.8
"""Of a call's time: for opening a session. Past it nothing was sent, which the call's own time-out could not tell."""


ServerMet = Callable[[str, str, str], Awaitable[None]]
"""Is told how a server was met: its app, its name, why it could not be used (empty where it answered)."""


class ServerLost(Exception):
    """The call went out and no answer to it came back that could be read: it may have happened."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """A server's tool under the card that a turn pinned."""

    card: ToolCard
    session: "McpSession" = field(repr=False)

    async def run(self, args: Mapping[str, JsonValue], context: ToolContext) -> ToolResult:
        """Call it once.

        Raises: ToolRefused, ToolUnavailable, ServerLost, by the table above.
        """
        from mcp_types import CallToolResult

        from perdure.activities.toolbox.mcp.session import error_of, misfit_of, output_of

        connection = await self._connection(context)
        offered = connection.offer.tools.get(self.card.name)
        if offered is None:
            raise ToolRefused(f"the server {self.session.server.name} has no such tool any more")
        if offered.card.version != self.card.version:
            raise ToolRefused("the tool has changed since the call was made; make a new call")
        given: dict[str, Any] = dict(args)
        meta: dict[str, Any] = {}
        if self.card.effect is EffectClass.KEYED and offered.standing.key_argument:
            given[offered.standing.key_argument] = context.idempotency_key
        elif self.card.effect is EffectClass.KEYED:
            meta[IDEMPOTENCY_KEY] = context.idempotency_key
        answer, note = await connection.call(offered.tool, given, meta)
        if _session_is_gone(answer, note):
            connection.wire.ended.set()  # the next attempt opens another
        if isinstance(answer, CallToolResult) and not note.too_large:
            if answer.is_error:
                raise ToolRefused(error_of(answer))
            return self._read(output_of(answer), await misfit_of(answer, offered.output))
        raise self._failure(answer, note, connection.wire)

    def _read(self, output: JsonValue, misfit: str | None) -> ToolResult:
        """An answer as the model reads it. One that does not fit is no result of a read; of a call that has changed
        something it is still what is known of it.

        Raises: ToolRefused.
        """
        if misfit is None:
            return result_of(output)
        server = self.session.server.name
        told = f"the server {server} was asked, and its answer does not fit the tool's own output schema: {misfit}"
        if self.card.effect is EffectClass.READ:
            raise ToolRefused(told)
        return result_of({"status": "answer_misfit", "message": told, "answer": output})

    async def _connection(self, context: ToolContext) -> "Connection":
        """The way to the server, in a part of the call's time.

        Raises: ToolRefused, ToolUnavailable; nothing was sent.
        """
        from perdure.activities.toolbox.mcp.session import MissingSecret, Unreachable

        left = (context.deadline - datetime.now(UTC)).total_seconds()
        try:
            async with asyncio.timeout(_OPENING_SHARE * max(left, 0.0)):
                return await self.session.connection()
        except MissingSecret as error:
            raise ToolRefused(str(error)) from error
        except Unreachable as error:
            raise ToolUnavailable(str(error)) from error
        except TimeoutError as error:
            told = f"the server {self.session.server.name} was not ready in time; nothing was sent"
            raise ToolUnavailable(told) from error

    def _failure(self, answer: object, note: "Note", wire: "Wire") -> Exception:
        """What an answer means that is no result."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        server = self.session.server.name
        code = answer.error.code if isinstance(answer, MCPError) else None
        if wire.refused and not note.sent:
            return ToolRefused(f"the server {server} may not be reached: {wire.refused}")
        if not note.sent:
            return ToolUnavailable(f"the server {server} cannot be reached", note.retry_after_seconds)
        if _session_is_gone(answer, note):
            return ToolUnavailable(f"the server {server} had ended the session")
        if note.status is not None and note.status >= 300:
            told = f"the server {server} answered {note.status}{_reason(answer)}"
            meaning = meaning_of_status(self.card.effect, note.status, names_wait=note.retry_after_seconds is not None)
            if meaning is Meaning.REFUSED:
                return ToolRefused(told)
            if meaning is Meaning.UNAVAILABLE:
                return ToolUnavailable(told, note.retry_after_seconds)
            return ServerLost(told)
        if code in _SAID_NO:
            return ToolRefused(f"the server {server} refused the call{_reason(answer)}")
        # A server may use the same number for a no of its own, which says more than that somebody hung up.
        if note.lost or (code == CONNECTION_CLOSED and not note.too_large and not _is_of_server(answer)):
            return ServerLost(f"the connection to the server {server} ended before it answered")
        told = "its answer is too large to be read" if note.too_large else f"its answer is no result{_reason(answer)}"
        if self.card.effect is EffectClass.READ:
            return ToolRefused(f"the server {server} was asked, and {told}")
        return ServerLost(told)


_MADE_HERE = ("Connection closed", "SSE stream failed", "SSE stream ended")
"""How the library begins what it says of a call whose answer can never come; it has no other mark."""


def _is_of_server(answer: object) -> bool:
    """Whether an error is what the server said, and none that the library made for want of an answer."""
    from mcp.shared.exceptions import MCPError

    return isinstance(answer, MCPError) and not answer.error.message.startswith(_MADE_HERE)


def _session_is_gone(answer: object, note: "Note") -> bool:
    """Whether an older server forgot the session, by which it did nothing; the library says so in these words."""
    from mcp.shared.exceptions import MCPError

    return note.status == 404 and isinstance(answer, MCPError) and answer.error.code == _BAD_REQUEST


def _reason(answer: object) -> str:
    from mcp.shared.exceptions import MCPError

    if not isinstance(answer, MCPError):
        return ""
    text = " ".join(answer.error.message.split())
    return f": {text[:_MOST_CHARACTERS]}" if text else ""


async def _import_later() -> None:
    await asyncio.sleep(AFTER_START_SECONDS)
    await asyncio.to_thread(import_module, "perdure.activities.toolbox.mcp.session")


class AppServers(Protocol):
    """An app, as far as its MCP servers need to know it."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def agents(self) -> Sequence[AgentDefinition]: ...
    @property
    def servers(self) -> Mapping[str, McpServer]: ...
    @property
    def egress(self) -> Sequence[Named]: ...


class McpServers:
    """The servers of the apps of one process, each with one session."""

    def __init__(
        self,
        apps: Iterable[AppServers],
        secret_of: "SecretOf",
        home: Path,
        met: ServerMet | None = None,
        outbound: Outbound = NOTHING_NAMED,
    ) -> None:
        self._apps = {app.name: app for app in apps}
        self._of_agent = {agent.id: app.name for app in self._apps.values() for agent in app.agents}
        self._secret_of = secret_of
        self._home = home
        self._met = met
        self._outbound = outbound
        self._sessions: dict[tuple[str, str], McpSession] = {}
        self._importing: asyncio.Task[object] | None = None

    def import_soon(self) -> None:
        """Import what the first call needs once the start is over: half a second of CPU, which a start on two cores has
        not to spare, and a first call that imports holds up its whole worker."""
        if any(app.servers for app in self._apps.values()):
            self._importing = asyncio.create_task(_import_later())

    def find(self, agent_id: str, pinned: ToolCard | None) -> McpTool | None:
        """The tool behind a card that a turn of this agent pinned; None where no server of its app has such names."""
        app = self._apps.get(self._of_agent.get(agent_id, ""))
        if app is None or pinned is None:
            return None
        server = server_of(pinned.name, app.servers)
        return McpTool(pinned, self.session(app.name, server)) if server is not None else None

    def session(self, app_name: str, server: McpServer) -> "McpSession":
        """The session with `server`, not opened yet where nobody needed it."""
        from perdure.activities.toolbox.mcp.session import McpSession

        app, key = self._apps[app_name], (app_name, server.name)
        if key not in self._sessions:
            home = self._home / "mcp" / f"{app_name}-{server.name}"
            session = McpSession(server, app.folder, home, self._secret_of, outbound=self._outbound.naming(*app.egress))
            if self._met is not None:
                session.met = partial(self._met, *key)
            self._sessions[key] = session
        return self._sessions[key]

    async def close(self) -> None:
        """End every session."""
        if self._importing is not None:
            self._importing.cancel()
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()
