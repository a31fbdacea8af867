"""MCP servers: their lists of tools and the cards from them, what they can be asked over HTTP, and when they load."""

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client.session import ClientSession
from mcp_types import ListToolsResult, PaginatedRequestParams, Tool

from perdure.activities.toolbox.mcp import listing
from perdure.activities.toolbox.mcp.listing import (
    MAX_SCHEMA_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    MAX_TOOLS,
    list_tools,
    offer_of,
)
from perdure.activities.toolbox.mcp.session import McpSession, Unreachable
from perdure.contracts.agents import ToolCard
from perdure.contracts.mcp import McpServer, McpToolListing
from perdure.core.egress import Outbound, named_host
from perdure.core.json_schema import without_keywords
from tests.doubles.hostile_target import MEBI, Talk, floods, says, silence, threaded
from tests.doubles.resolver import Names

TITLE: dict[str, Any] = {"type": "string", "title": "Title"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"name": TITLE, "title": TITLE}, "required": ["name"]}
SCHEMA["title"] = "lookArguments"
UNFIT: list[Any] = [{"type": "nothing"}, {"description": "\x00"}, {"maximum": float("inf")}, {"maximum": 10**5_000}]
JSON = "content-type: application/json"


def server(**fields: Any) -> McpServer:
    return McpServer.model_validate({"name": "s", "command": ["x"], **fields})


def listed(**fields: Any) -> McpToolListing:
    return McpToolListing.model_validate({"name": "look", "description": "Look.", "parameters": SCHEMA, **fields})


def nested(depth: int) -> dict[str, Any]:
    return {"not": nested(depth - 1)} if depth else {}


def card(*, of: McpServer | None = None, **fields: Any) -> ToolCard:
    (found,) = offer_of(of or server(), [listed(**fields)]).cards
    return found


def test_a_card_contains_the_servers_description_without_titles() -> None:
    found = card()
    assert (found.name, found.description, found.toolset, found.timeout_seconds) == ("s_look", "Look.", "s", 30)
    plain = {"type": "string"}
    assert found.parameters == {"type": "object", "properties": {"name": plain, "title": plain}, "required": ["name"]}
    assert card(description="", title="A title").description == "A title"
    assert card(description="a\x00b" + "x" * 9_000).description.startswith("a\ufffdb")
    assert card(parameters={"type": "object", "not": nested(listing.MAX_SCHEMA_DEPTH - 2)}).name == "s_look", (
        "as deep as may be"
    )


def test_properties_named_title_are_kept() -> None:
    schema = {"enum": ["title", {"title": "x"}], "default": {"title": "y"}, "items": [{"title": "gone", "const": 1}]}
    assert without_keywords(schema, {"title"}) == {**schema, "items": [{"const": 1}]}
    titled = {"properties": {"title": TITLE}}
    assert without_keywords(titled, {"title"}) == {"properties": {"title": {"type": "string"}}}


@pytest.mark.parametrize("change", [
    *({"description": "Look closer."}, {"title": "Look"}, {"tags": ("k8s",)}, {"key_ttl_seconds": 5.0}),
    *({"parameters": {**SCHEMA, "required": []}}, {"parameters": {**SCHEMA, "title": "other"}}),
    *({"hints": {"read_only": True}}, {"of": server(trust_annotations=True), "hints": {"read_only": True}}),
    *({"of": server(command=["y"])}, {"of": server(tools={"look": {"effect": "read"}})}),
])  # fmt: skip
def test_every_change_of_a_call_changes_its_version(change: dict[str, Any]) -> None:
    assert card().version == card().version
    assert card(**change).version != card().version


def test_a_time_limit_changes_only_the_version_by_rule_1() -> None:
    slower = card(of=server(timeout_seconds=9))
    assert slower.version == card().version and slower.version_1 != card().version_1


@given(st.text(min_size=1, max_size=200))
def test_any_tool_name_is_mapped_to_one_that_models_accept(name: str) -> None:
    made = listing.card_name(server(), name)
    assert ToolCard.model_fields["name"].metadata and len(made) <= 64 and made.startswith("s_")
    offer = offer_of(server(), [listed(name=name)])
    assert [*offer.tools] == [made] and offer.tools[made].tool == name


@pytest.mark.parametrize("parameters", [
    *({}, {"type": "array"}, {"type": "object", "not": nested(100)}),
    *({"type": "object", "properties": {"a": unfit}} for unfit in UNFIT),
    {"type": "object", "description": "x" * MAX_SCHEMA_CHARACTERS},
    {"type": "object", "properties": {"a\x00": {}}},
])  # fmt: skip
def test_a_tool_whose_arguments_cannot_be_checked_is_left_out(parameters: dict[str, Any]) -> None:
    offer = offer_of(server(), [listed(parameters=parameters), listed(name="other")])
    assert [*offer.tools] == ["s_other"] and len(offer.left_out) == 1 and "look" in offer.left_out[0]


def test_of_too_many_tools_or_equal_names_the_first_are_offered() -> None:
    offer = offer_of(server(), [listed(name=f"t{number}") for number in range(1_000)])
    assert len(offer.tools) == MAX_TOOLS and str(MAX_TOOLS) in "".join(offer.left_out)
    offer = offer_of(server(), [listed(name="a.b"), listed(name="a/b")])
    assert [each.tool for each in offer.tools.values()] == ["a.b"]
    (line,) = offer.left_out
    assert all(name in line for name in ("a/b", "a.b", "s_a_b"))


def test_a_tools_settings_override_its_servers_and_its_key_argument_is_hidden() -> None:
    said = {"look": {"timeout_seconds": 300, "capability": "look_things_up", "risk": "medium"}}
    found = card(of=server(timeout_seconds=9, tools=said))
    assert (found.timeout_seconds, found.capability, found.risk) == (300, "look_things_up", "medium")
    keyed = card(of=server(tools={"look": {"effect": "keyed", "key_ttl_seconds": 5, "key_argument": "name"}}))
    assert keyed.parameters["properties"] == {"title": {"type": "string"}} and keyed.parameters["required"] == []
    assert keyed.key_ttl_seconds == 5


class Pages:
    """A session whose server lists one tool a page, each with such fields."""

    def __init__(self, last: int = 1_000, **fields: Any) -> None:
        self._last, self._fields = last, {"input_schema": {"type": "object"}, **fields}
        self.asked = 0
        self.faults: dict[str, str] = {}

    async def list_tools(self, *, params: PaginatedRequestParams) -> ListToolsResult:
        self.asked += 1
        tool = Tool(name=f"t{self.asked}", **self._fields)
        return ListToolsResult(tools=[tool], next_cursor=None if self.asked == self._last else str(self.asked))

    async def listed(self) -> list[McpToolListing]:
        return await list_tools(cast(ClientSession, self), self.faults)


async def test_pages_are_read_until_the_last_or_a_limit() -> None:
    assert [tool.name for tool in await Pages(3).listed()] == ["t1", "t2", "t3"]
    endless = Pages()
    assert len(await endless.listed()) == endless.asked == 50 and [*endless.faults] == ["t50"]


async def test_of_pages_that_are_too_large_together_the_tools_that_fit_are_kept() -> None:
    pages = Pages(input_schema={"type": "object", "title": "x" * 1_000_000})
    assert len(await pages.listed()) == 16 and pages.asked == 17 and [*pages.faults] == ["t17"]


@pytest.mark.parametrize(("fields", "kept"), [
    ({"title": "x" * MAX_TEXT_CHARACTERS, "description": "x" * MAX_TEXT_CHARACTERS}, [MAX_TEXT_CHARACTERS] * 2),
    ({"title": "x" * 17_000_000, "description": "x" * 17_000_000}, [MAX_TEXT_CHARACTERS] * 2),
    ({"icons": [{"src": "x" * 2_000_000}]}, [0, 0]),
    ({"input_schema": {"type": "object", "title": "x" * 2_000_000}}, []),
    ({"output_schema": {"type": "object", "title": "x" * 2_000_000}}, []),
])  # fmt: skip
async def test_a_large_tool_costs_only_itself(fields: dict[str, Any], kept: list[int]) -> None:
    pages = Pages(1, **fields)
    assert [len(text) for tool in await pages.listed() for text in (tool.title, tool.description)] == kept
    assert bool(pages.faults) == (len(str(fields)) > 50_000 and "icons" not in fields)


PROGRAM = """
import asyncio, sys
from pathlib import Path
from perdure.activities.toolbox.mcp import tools as mcp
from perdure.apps import app_folders, find_apps

async def main():
    servers = mcp.McpServers(find_apps(app_folders((), examples=True)), lambda name: None, Path("."))
    assert "mcp" not in sys.modules
    mcp.AFTER_START_SECONDS = 0.0
    servers.import_soon()
    while "perdure.activities.toolbox.mcp.session" not in sys.modules:
        await asyncio.sleep(0.01)
    await servers.close()

asyncio.run(main())
"""


def test_modules_of_the_first_mcp_call_are_imported_after_the_start() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[3], check=True, timeout=60)


def session(url: str, outbound: Outbound | None = None, seconds: float = 3) -> McpSession:
    server = McpServer(name="desk", url=url, start_seconds=seconds)
    return McpSession(server, Path(), Path(), lambda name: None, outbound=outbound or Outbound())


async def refusal_of(opened: McpSession) -> str:
    """Why it cannot be used: names the host only if the rules of outgoing requests forbid it."""
    with pytest.raises(Unreachable) as unreachable:
        await opened.connection()
    await opened.close()
    return str(unreachable.value)


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]"])
async def test_a_servers_file_cannot_name_the_clouds_metadata(host: str) -> None:
    assert host.strip("[]").split("::")[0] in await refusal_of(session(f"http://{host}/mcp"))


async def test_a_servers_file_allows_its_host_and_port_and_the_operator_any_other(resolver: Names) -> None:
    with threaded(says(404, b"{}", JSON)) as made:
        await refusal_of(session(f"{made.url}/mcp"))
        by_its_file = len(made.heads)
        resolver("service.test", ["169.254.169.254"])
        assert "service.test" in await refusal_of(session("http://service.test/mcp"))
        named = Outbound(named=(named_host("service.test", by_operator=True),))
        resolver("service.test", ["127.0.0.1"])
        assert "service.test" not in await refusal_of(session(f"http://service.test:{made.port}/mcp", named))
    assert 0 < by_its_file < len(made.heads)


TALKS = {
    "endless": floods(200, b"x" * MEBI, JSON),
    "events": floods(200, b"data: " + b"x" * MEBI, "content-type: text/event-stream"),
    "error": floods(500, b"x" * MEBI, JSON),
    "silence": silence,
}
"""Other answers of this kind are those of the transport's own tests."""


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
async def test_an_endless_answer_is_refused(talk: Talk) -> None:
    before = psutil.Process().memory_info().rss
    with threaded(talk) as made:
        await refusal_of(session(f"{made.url}/mcp", seconds=1 if talk is silence else 3))
    assert (psutil.Process().memory_info().rss - before) // MEBI < 150


async def test_no_redirect_to_another_host_is_followed() -> None:
    with threaded(says()) as other, threaded(says(307, b"", f"location: {other.url}/mcp")) as made:
        await refusal_of(session(f"{made.url}/mcp"))
    assert made.heads and other.heads == []
    with threaded(says(307, b"", "location: /again")) as looping:
        await refusal_of(session(f"{looping.url}/mcp"))
    assert len(looping.heads) == 3 * sum(" /mcp " in head for head in looping.heads)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)
