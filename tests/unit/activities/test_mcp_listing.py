"""A server's list of tools: page by page, and no more than is kept in memory."""

from typing import cast

import pytest
from mcp.client.session import ClientSession
from mcp_types import ListToolsResult, PaginatedRequestParams, Tool

from perdure.activities.toolbox.mcp.listing import listed_tools

MEBI = 1024 * 1024


class Pages:
    """A session whose server lists one tool a page, each with so long a description."""

    def __init__(self, characters: int, last: int = 1_000) -> None:
        self._characters, self._last = characters, last
        self.asked = 0

    async def list_tools(self, *, params: PaginatedRequestParams) -> ListToolsResult:
        self.asked += 1
        tool = Tool(name=f"t{self.asked}", description="x" * self._characters, input_schema={"type": "object"})
        return ListToolsResult(tools=[tool], next_cursor=None if self.asked == self._last else str(self.asked))


async def test_pages_are_read_until_the_server_has_no_more() -> None:
    pages = Pages(10, last=3)
    assert [tool.name for tool in await listed_tools(cast(ClientSession, pages))] == ["t1", "t2", "t3"]


async def test_pages_end_somewhere() -> None:
    pages = Pages(10)
    assert len(await listed_tools(cast(ClientSession, pages))) == pages.asked == 50


async def test_pages_that_are_too_large_together_are_refused() -> None:
    pages = Pages(5 * MEBI)
    with pytest.raises(ValueError, match="16777216"):
        await listed_tools(cast(ClientSession, pages))
    assert pages.asked == 4
