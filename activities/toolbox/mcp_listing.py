"""A server's list of tools, read from the protocol's own types."""

from typing import Any

from mcp.client.session import ClientSession
from mcp_types import PaginatedRequestParams, Tool, ToolAnnotations

from activities.toolbox.mcp_cards import MOST_TOOLS
from contracts.mcp import IDEMPOTENCY_KEY, McpHints, McpToolListing

_MOST_PAGES = 50
_MOST_BYTES = 16 * 1024 * 1024
"""Of all pages together: what is kept of them stays in memory for as long as the session."""


async def listed_tools(session: ClientSession) -> list[McpToolListing]:
    """Every tool that the server lists, page by page, as far as anybody would look.

    Raises: MCPError; ValueError where a page does not read, or the pages are too large together.
    """
    found: list[McpToolListing] = []
    cursor: str | None = None
    size = 0
    for _ in range(_MOST_PAGES):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        size += sum(len(tool.model_dump_json()) for tool in page.tools)
        if size > _MOST_BYTES:
            raise ValueError(f"the list of tools has more than {_MOST_BYTES} bytes")
        found += [listing_of(tool) for tool in page.tools]
        cursor = page.next_cursor
        if not cursor or len(found) > MOST_TOOLS:
            break
    return found


def listing_of(tool: Tool) -> McpToolListing:
    """What is kept of a listed tool."""
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


def _hints(said: ToolAnnotations | None) -> McpHints:
    if said is None:
        return McpHints()
    return McpHints(
        read_only=said.read_only_hint,
        destructive=said.destructive_hint,
        idempotent=said.idempotent_hint,
        open_world=said.open_world_hint,
    )


def _tags(meta: dict[str, Any]) -> tuple[str, ...]:
    """From the places where servers put them: `tags`, or the like under the name of FastMCP."""
    for holder in (meta, meta.get("fastmcp"), meta.get("_fastmcp")):
        tags = holder.get("tags") if isinstance(holder, dict) else None
        if isinstance(tags, list | tuple):
            return tuple(tag for tag in tags if isinstance(tag, str))
    return ()


def _key_ttl(said: object) -> float | None:
    ttl = said.get("ttl_seconds") if isinstance(said, dict) else None
    return float(ttl) if isinstance(ttl, int | float) and not isinstance(ttl, bool) and 0 < ttl < 1e9 else None
