"""Lists of tools that MCP servers send, and the cards that agents get from them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import JsonValue
from pydantic_core import to_json

from perdure.contracts.agents import ToolCard
from perdure.contracts.mcp import IDEMPOTENCY_KEY, McpHints, McpServer, McpToolListing
from perdure.contracts.values import canonical_json, digest_of, sha256_hex
from perdure.core.agents.mcp_tools import ToolTreatment, toolset_of, treatment_of
from perdure.core.agents.tool_versions import with_version
from perdure.core.calls.jsonb import InvalidArguments, jsonb_form
from perdure.core.json_schema import mistakes_in_schema, without_keywords
from perdure.core.text import clean

if TYPE_CHECKING:
    from mcp.client.session import ClientSession  # takes a second of CPU, in every process that reads app folders
    from mcp_types import Tool, ToolAnnotations

_log = structlog.get_logger(__name__)
_MAX_PAGES = 50
_MAX_BYTES = 16 * 1024 * 1024
"""Limit of all tools together, because they stay in memory as long as the session."""
_MAX_TOOL_BYTES = 1024 * 1024
MAX_TEXT_CHARACTERS = 20_000
"""Limit of a tool's title and of its description; a longer one is cut."""
MAX_TOOLS = 500
"""Maximum number of tools of one server in its toolsets; further tools are left out."""
MAX_SCHEMA_CHARACTERS = 32 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_DESCRIPTION_CHARACTERS = 4_000
NOTHING_BROKEN: Mapping[str, str] = MappingProxyType({})
_NAME_CHARACTERS = 64
_SHOWN_CHARACTERS = 80
_DIGEST_CHARACTERS = 8


async def list_tools(session: "ClientSession", faults: dict[str, str]) -> list[McpToolListing]:
    """Returns the tools that the server lists, page by page, up to the limits on pages and bytes.

    A tool that is cut or left out because of its size is added to `faults`, with the reason. So is the last tool that
    is read, if there are more pages.

    Raises: MCPError; ValueError if a page cannot be read.
    """
    from mcp_types import PaginatedRequestParams

    kept = _Kept(faults)
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(_MAX_PAGES):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        for tool in page.tools:
            kept.add(listing_of(tool))
        cursor = page.next_cursor
        if not cursor or kept.beyond:
            return kept.tools
        if cursor in seen:
            _log.warning("mcp_list_repeats", why="the server repeats a page of its tools", cursor=cursor[:80])
            return [tool for number, tool in enumerate(kept.tools) if tool not in kept.tools[:number]]
        seen.add(cursor)
    if kept.tools:
        faults[kept.tools[-1].name[:_SHOWN_CHARACTERS]] = (
            f"is the last one that is read: the list has more than {_MAX_PAGES} pages"
        )
    return kept.tools


@dataclass(slots=True)
class _Kept:
    """The tools of the pages that were read, up to the limits in bytes."""

    faults: dict[str, str]
    tools: list[McpToolListing] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    """The names of the tools that exceed the limit of all tools together."""
    _size: int = 0

    def add(self, tool: McpToolListing) -> None:
        """Adds a tool, unless it is too large. Cuts its title and its description."""
        name = tool.name[:_SHOWN_CHARACTERS]
        for part, text in (("title", tool.title), ("description", tool.description)):
            if len(text) > MAX_TEXT_CHARACTERS:
                self.faults[name] = f"has a {part} of {len(text)} characters, of which {MAX_TEXT_CHARACTERS} are kept"
                tool = tool.model_copy(update={part: text[:MAX_TEXT_CHARACTERS]})
        size = len(to_json([tool, tool.output]))
        if size > _MAX_TOOL_BYTES:
            self.faults[name] = f"exceeds {_MAX_TOOL_BYTES} bytes and is left out"
        elif self._size + size > _MAX_BYTES:
            self.beyond.append(name)
            self.faults[self.beyond[0]] = (
                f"is left out: the list exceeds {_MAX_BYTES} bytes (tools left out: {len(self.beyond)})"
            )
        else:
            self._size += size
            self.tools.append(tool)


def listing_of(tool: "Tool") -> McpToolListing:
    """Returns the stored fields of a listed tool."""
    meta = tool.meta or {}
    return McpToolListing(
        name=tool.name,
        title=tool.title or "",
        description=tool.description or "",
        parameters=tool.input_schema,
        output=tool.output_schema,
        hints=_hints(tool.annotations),
        tags=_tags(meta),
        key_ttl_seconds=_key_ttl(meta.get(IDEMPOTENCY_KEY)),
    )


def _hints(annotations: "ToolAnnotations | None") -> McpHints:
    if annotations is None:
        return McpHints()
    return McpHints(
        read_only=annotations.read_only_hint,
        destructive=annotations.destructive_hint,
        idempotent=annotations.idempotent_hint,
        open_world=annotations.open_world_hint,
    )


def _tags(meta: dict[str, Any]) -> tuple[str, ...]:
    """Reads the tags where servers put them: in `tags`, or under FastMCP's own names."""
    for holder in (meta, meta.get("fastmcp"), meta.get("_fastmcp")):
        tags = holder.get("tags") if isinstance(holder, dict) else None
        if isinstance(tags, list | tuple):
            return tuple(tag for tag in tags if isinstance(tag, str))
    return ()


def _key_ttl(metadata: object) -> float | None:
    ttl = metadata.get("ttl_seconds") if isinstance(metadata, dict) else None
    return float(ttl) if isinstance(ttl, int | float) and not isinstance(ttl, bool) and 0 < ttl < 1e9 else None


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A server's tool in the form that agents get."""

    card: ToolCard
    tool: str
    """The server's own name of the tool."""
    treatment: ToolTreatment
    output: Mapping[str, JsonValue] | None = None
    """The output schema of the tool, if the server lists a usable one."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools that one server offers to agents."""

    tools: Mapping[str, OfferedTool]
    """Tools by the names of their cards, in the server's order."""
    left_out: tuple[str, ...] = ()
    """A sentence for each tool that cannot be offered although its toolset is, or that is cut."""
    listed: tuple[McpToolListing, ...] = ()
    """The listed tools from which the offer was made."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Tools of the list that break the protocol or are too large, each with the reason."""

    @property
    def cards(self) -> tuple[ToolCard, ...]:
        """The cards of all offered tools."""
        return tuple(offered.card for offered in self.tools.values())


def offer_of(server: McpServer, listed: Iterable[McpToolListing], broken: Mapping[str, str] = NOTHING_BROKEN) -> Offer:
    """Returns the offer of `server` for the tools that it lists. `broken` are tools of the list that break the
    protocol or are too large, with the reasons: each costs only itself.

    Names are adapted, schemas are reduced, and unusable tools are left out. A card's version is the digest of
    everything the server lists about the tool and the app declares about the server. Any change makes a new version,
    and a call that was planned or approved under the old one is void. The output schema is not part of the digest,
    because no call depends on it.
    """
    tools: dict[str, OfferedTool] = {}
    left_out = [f"{server.name}: the tool {name!r} {reason}" for name, reason in broken.items()]
    listed = tuple(listed)
    for tool in listed:
        toolset = toolset_of(server, tool)
        if not toolset:
            continue
        name = card_name(server, tool.name)
        reason = _unusable(tool)
        if len(tools) >= MAX_TOOLS:
            left_out.append(f"{server.name}: only its first {MAX_TOOLS} tools are offered")
            break
        if name in tools:
            reason = f"has the same name as {tools[name].tool[:80]!r} here, {name}"
        if reason:
            left_out.append(f"{server.name}: the tool {tool.name[:_SHOWN_CHARACTERS]!r} {reason}")
            continue
        treatment = treatment_of(server, tool)
        output = tool.output if tool.output and not _schema_fault(tool.output) else None
        tools[name] = OfferedTool(_card(server, tool, name, toolset, treatment), tool.name, treatment, output)
    return Offer(tools, tuple(left_out), listed, broken)


def card_name(server: McpServer, tool: str) -> str:
    """Returns `<server>_<tool>`, with letters, digits, _ and - only. A long name is cut and ends in a digest of the
    whole name."""
    name = server.prefix + re.sub(r"[^a-zA-Z0-9_-]", "_", tool)
    if len(name) <= _NAME_CHARACTERS:
        return name
    return f"{name[: _NAME_CHARACTERS - _DIGEST_CHARACTERS - 1]}_{sha256_hex(tool)[:_DIGEST_CHARACTERS]}"


def _unusable(tool: McpToolListing) -> str:
    """Returns why the tool's schema cannot be used; empty if it can."""
    if tool.parameters.get("type") != "object":
        return "does not accept an object of arguments"
    return _schema_fault(tool.parameters)


def _schema_fault(schema: dict[str, JsonValue]) -> str:
    try:
        jsonb_form(schema, MAX_SCHEMA_DEPTH)
    # a schema that Postgres rejects in one card would prevent all agents from being published
    except InvalidArguments:
        return "has a schema that cannot be stored"
    if len(canonical_json(schema)) > MAX_SCHEMA_CHARACTERS:
        return f"has a schema of more than {MAX_SCHEMA_CHARACTERS} characters"
    mistakes = mistakes_in_schema(schema)
    return f"has an invalid schema: {mistakes[0][1][:120]}" if mistakes else ""


def _card(server: McpServer, tool: McpToolListing, name: str, toolset: str, treatment: ToolTreatment) -> ToolCard:
    settings = server.tools.get(tool.name)
    unversioned = ToolCard(
        name=name,
        description=clean(tool.description or tool.title or name)[:MAX_DESCRIPTION_CHARACTERS],
        parameters=_schema_for_model(tool.parameters, treatment.key_argument),
        effect=treatment.effect,
        needs_approval=treatment.needs_approval,
        capability=settings.capability if settings else "",
        risk=treatment.risk,
        timeout_seconds=(settings and settings.timeout_seconds) or server.timeout_seconds,
        key_ttl_seconds=treatment.key_ttl_seconds,
        toolset=toolset,
        version="",
    )
    place = {"command": list(server.command), "url": server.url, "key_argument": treatment.key_argument}
    versioned = {**unversioned.model_dump(mode="json"), "server": place, "listed": tool.model_dump(mode="json")}
    own = {"server": place, "listed": versioned["listed"]}  # with its words: a lock pins them too
    return with_version(unversioned, parameters=unversioned.parameters, code={}, own=own, first=digest_of(versioned))


def _schema_for_model(schema: Mapping[str, JsonValue], key_argument: str) -> dict[str, JsonValue]:
    """Returns the schema for the model: without titles, which repeat names and cost tokens in every call, and without
    the argument for the idempotency key."""
    reduced: dict[str, Any] = without_keywords(dict(schema), ("title",))
    properties = reduced.get("properties")
    if key_argument and isinstance(properties, dict):
        reduced["properties"] = {name: subschema for name, subschema in properties.items() if name != key_argument}
        if isinstance(reduced.get("required"), list):
            reduced["required"] = [name for name in reduced["required"] if name != key_argument]
    return reduced
