"""MCP servers that break the protocol or change their tools: each call has a bounded and typed end."""

import asyncio
import functools
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from perdure.activities.toolbox.mcp import session as mcp_session
from perdure.activities.toolbox.mcp import transports
from perdure.activities.toolbox.mcp.listing import offer_of
from perdure.activities.toolbox.mcp.session import LISTING_SECONDS, McpSession
from perdure.activities.toolbox.mcp.tools import McpTool, ServerLost
from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import EffectClass
from perdure.contracts.mcp import McpServer, McpToolListing
from perdure.sdk.outcomes import ToolRefused, ToolResult, ToolUnavailable
from tests.doubles.mcp_raw import TOOL, raw_http_server
from tests.eventually import until
from tests.unit.apps.tool_contexts import context

DOUBLES = Path(__file__).parents[1] / "doubles"
OPAQUE: dict[str, Any] = {}
READ: dict[str, Any] = {"tools": {"press": {"effect": "read"}}}
Patch = pytest.MonkeyPatch
soak = functools.partial(pytest.param, marks=pytest.mark.soak)
BAD_PAGES = [
    *("deep_schema", "deep_meta", "long_integer", "number_as_cursor", "wrong_meta", "nulls", "one_cursor", "large")
]


class RawServer:
    """The hand-written server, one way of breaking."""

    def __init__(self, home: Path, how: str, **fields: Any) -> None:
        self.calls = home / "calls"
        command = ("python", str(DOUBLES / "mcp_raw.py"), str(self.calls), how)
        server = McpServer(name="raw", command=command, start_seconds=20, **fields)
        self.session = McpSession(server, home, home / "server", lambda name: None)

    async def card(self) -> ToolCard:
        return (await self.session.connection()).offer.tools["raw_press"].card

    async def press(self, seconds: float = 30.0) -> ToolResult:
        card = await self.card()
        return await asyncio.wait_for(McpTool(card, self.session).run({"times": 1}, context(card)), seconds)

    def pressed(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def change(self, **fields: Any) -> None:
        """The behavior of its next start."""
        self.session.server = self.session.server.model_copy(update=fields)


Raws = Callable[..., RawServer]


@pytest.fixture
async def new_raw_server(tmp_path: Path) -> AsyncIterator[Raws]:
    async with AsyncExitStack() as stack:

        def new_server(how: str, **fields: Any) -> RawServer:
            raw = RawServer(tmp_path, how, **fields)
            stack.push_async_callback(raw.session.close)
            return raw

        yield new_server


@pytest.mark.parametrize(("how", "trusted"), [
    ("error_is_text", OPAQUE), ("says_internal_error", OPAQUE), ("no_result", READ), soak("says_its_own", READ),
    soak("says_internal_error", READ),
])  # fmt: skip
async def test_an_invalid_answer_is_a_typed_end_at_once(
    new_raw_server: Raws, how: str, trusted: dict[str, Any]
) -> None:
    raw = new_raw_server(how, **trusted)
    with pytest.raises(ToolRefused if trusted else ServerLost):
        await raw.press()
    assert raw.pressed() == 1


@pytest.mark.parametrize(("how", "ends"), [
    ("says_invalid_params", ToolRefused),
    soak("says_no_such_method", ToolRefused),
    ("half_then_dies", ServerLost),
    ("endless_line", ServerLost),
])  # fmt: skip
async def test_a_refusal_is_final_and_a_broken_line_ends_one_call(
    new_raw_server: Raws, how: str, ends: type[Exception]
) -> None:
    raw = new_raw_server(how)
    with pytest.raises(ends):
        await raw.press()
    assert raw.pressed() == 1


@pytest.mark.parametrize(("how", "kept"), [
    ("misfits", "often"), ("content_is_number", "42"), ("result_is_text", "pressed"),
    ("result_is_list", "pressed"), ("broken_json", "pressed"), ("is_huge", "content"),
    *(("deep_arrays", "7"), ("deep_structure", "7")), ("text_id_and_misfit", "42"),
])  # fmt: skip
async def test_an_answer_that_its_schema_or_the_protocol_forbids_is_reported(
    new_raw_server: Raws, how: str, kept: str
) -> None:
    with pytest.raises(ToolRefused):
        await new_raw_server(how, **READ).press()
    output = (await new_raw_server(how).press()).output
    assert isinstance(output, dict) and output["status"] == "answer_misfit", "the call was made: it need not be settled"
    assert kept in str(output["answer"])


@pytest.mark.parametrize("how", ["result_is_text", "broken_json", "is_huge", "in_an_event", "large_event", "resumed"])
async def test_an_answer_over_http_that_cannot_be_parsed_is_reported(tmp_path: Path, how: str) -> None:
    output = await press_over_http(tmp_path, how)
    assert isinstance(output, dict) and output["status"] == "answer_misfit"
    assert ("[not read]" if how == "is_huge" else "pressed") in str(output["answer"])


async def press_over_http(home: Path, how: str, **fields: Any) -> Any:
    with raw_http_server(how) as url:
        server = McpServer(name="raw", url=url, start_seconds=20, max_answer_bytes=100_000, **fields)
        session = McpSession(server, home, home, lambda name: None)
        try:
            card = (await session.connection()).offer.tools["raw_press"].card
            return (await McpTool(card, session).run({"times": 1}, context(card))).output
        finally:
            await session.close()


@pytest.mark.parametrize("how", [
    *("as_text", "as_accepted", "in_another_event", "after_noise", "after_another", "after_notices"),
    *("with_mark", "in_a_batch", "in_latin_1", "id_is_float", "result_at_500"),
])  # fmt: skip
async def test_an_answer_over_http_of_another_kind_is_read(tmp_path: Path, how: str) -> None:
    assert await press_over_http(tmp_path, how) == ("\ufffd" if how == "in_latin_1" else "pressed")


@pytest.mark.parametrize(("how", "ends"), [
    ("as_html", ServerLost), ("as_nothing", ServerLost), ("as_events_without_one", ServerLost),
    ("notice_alone", ServerLost), ("large_notice", ServerLost), ("other_number", ServerLost),
    ("says_invalid_params", ToolRefused),
])  # fmt: skip
async def test_only_the_servers_own_error_rejects_a_call(tmp_path: Path, how: str, ends: type[Exception]) -> None:
    with pytest.raises(ends):
        await press_over_http(tmp_path, how)
    if how not in ("as_events_without_one", "large_notice"):
        with pytest.raises(ToolRefused):
            await press_over_http(tmp_path, how, **READ)


@pytest.mark.parametrize("how", ["error_without_id", "error_at_400", "words_at_400", "detail_at_400"])
async def test_an_http_error_ends_the_call_at_once_with_the_servers_words(tmp_path: Path, how: str) -> None:
    with pytest.raises(ToolRefused, match="no such id"):
        await asyncio.wait_for(press_over_http(tmp_path, how), 10)


@pytest.mark.parametrize(("how", "output"), [
    ("half_characters", "pressed 😀 \ufffd, \\ud83d"), ("no_version", "pressed"), ("starts_with_mark", "pressed"),
    ("nulls", "pressed"), ("nulls_in_block", "pressed"), ("id_is_float", "pressed"),
    ("id_is_text", "pressed"), ("long_integer", {"content": []}), ("pretty", "pressed"),
])  # fmt: skip
async def test_an_answer_that_can_be_mended_is_not_lost(new_raw_server: Raws, how: str, output: str) -> None:
    assert (await new_raw_server(how).press()).output == output


async def test_a_tool_that_breaks_the_protocol_costs_only_itself(new_raw_server: Raws) -> None:
    raw = new_raw_server("lists_broken_tools")
    assert (await raw.press()).output == "pressed"
    offer = (await raw.session.connection()).offer
    assert [tool.tool for tool in offer.tools.values()] == ["press"]
    assert set(offer.broken) == {"untyped", "titled", ""} and len(offer.left_out) == 3


@pytest.mark.parametrize(("how", "words"), [
    ("exits", "cannot reach the licence server"), ("expired", "licence expired; .*check its settings"),
    ("locked", "database is locked; .*check its settings"), ("old_version", "1999-12-31; use a release"),
    ("no_capabilities", "capabilities"), ("null_tools", "tools"), ("always_login", "text/html"),
    ("always_words", "no such app"), ("always_moved", "https://new.example/mcp"),
])  # fmt: skip
async def test_an_unusable_server_is_reported_in_its_own_words(
    new_raw_server: Raws, tmp_path: Path, how: str, words: str
) -> None:
    if not how.startswith("always_"):
        with pytest.raises(mcp_session.Unreachable, match=words):
            await new_raw_server(how).card()
    if how != "exits":
        with pytest.raises(mcp_session.Unreachable, match=words):
            await press_over_http(tmp_path, how)


@pytest.mark.parametrize("how", BAD_PAGES)
async def test_what_is_wrong_in_a_page_of_tools_costs_only_itself(
    new_raw_server: Raws, tmp_path: Path, how: str
) -> None:
    raw = new_raw_server(f"lists_{how}")
    assert (await raw.press()).output == "pressed"
    assert await press_over_http(tmp_path, f"lists_{how}") == "pressed"
    listed = (await raw.session.connection()).offer
    assert [tool.tool for tool in listed.tools.values()] == ["press"]
    assert len(listed.left_out) == (how in ("deep_schema", "long_integer", "large"))


@pytest.mark.parametrize(
    "how", ["fits", "slow_pattern", soak("has_no_structure"), soak("schema_elsewhere"), soak("schema_is_none")]
)
async def test_an_output_schema_that_fits_or_cannot_be_used_leaves_the_answer_as_it_is(
    new_raw_server: Raws, how: str
) -> None:
    assert "pressed" in str((await new_raw_server(how, **READ).press()).output)


@pytest.mark.parametrize("how", ["chatters", "not_utf8"])
async def test_stderr_is_bounded_and_needs_no_text(
    new_raw_server: Raws, tmp_path: Path, monkeypatch: Patch, how: str
) -> None:
    monkeypatch.setattr(transports, "LOG_SECONDS", 0.05)
    raw, log = new_raw_server(how), tmp_path / "server" / "stderr.log"
    for _ in range(3):
        assert (await raw.press()).output == "pressed"
        await until(lambda: log.stat().st_size <= transports.MAX_LOG_BYTES)


@pytest.mark.parametrize("how", ["other_id", "hangs"])
async def test_a_call_without_an_answer_ends_with_its_time_and_the_server_starts_anew(
    new_raw_server: Raws, how: str
) -> None:
    raw = new_raw_server(how)
    with pytest.raises(TimeoutError):
        await raw.press(seconds=1.0)
    first = raw.session._connection
    raw.change(command=(*raw.session.server.command[:-1], "well"), start_seconds=6.0)
    if how == "hangs":  # it reads nothing any more, so only a new process can answer
        assert (await raw.press()).output == "pressed" and raw.session._connection is not first
    assert raw.pressed() == (2 if how == "hangs" else 1)


async def test_a_server_that_lists_nothing_is_not_ended_during_a_long_call(
    new_raw_server: Raws, monkeypatch: Patch
) -> None:
    raw = new_raw_server("takes_its_time")
    await raw.session.connection()
    long = asyncio.create_task(raw.press())
    await until(lambda: raw.pressed() == 1)
    monkeypatch.setattr(mcp_session, "LISTING_SECONDS", 0.0)
    raw.change(start_seconds=0.5)
    with pytest.raises(mcp_session.Unreachable):
        await raw.press()
    assert (await long).output == "pressed" and raw.pressed() == 1, "the first was let finish, the second was not sent"


@pytest.mark.parametrize("trusted", [OPAQUE, READ], ids=["opaque", "read"])
async def test_an_answer_that_is_too_large_ends_its_own_call_and_no_other(
    new_raw_server: Raws, trusted: dict[str, Any]
) -> None:
    raw = new_raw_server("second_is_huge", **trusted)
    first = asyncio.create_task(raw.press(seconds=60.0))
    await until(lambda: raw.pressed() == 1, seconds=60.0)
    with pytest.raises(ToolRefused) if trusted else nullcontext():
        output = (await raw.press(seconds=60.0)).output
        assert isinstance(output, dict) and output["status"] == "answer_misfit"
    assert (await first).output == "pressed" and raw.pressed() == 2


async def test_a_server_that_starts_slowly_costs_an_attempt_and_no_outcome(new_raw_server: Raws) -> None:
    raw = new_raw_server("well")
    card = await raw.card()
    await raw.session.close()
    script = "import sys, time, runpy; time.sleep(1.5); runpy.run_path(sys.argv[0], run_name='__main__')"
    raw.change(command=("python", "-c", f"import sys; sys.argv.pop(0); {script}", *raw.session.server.command[1:]))
    listing = McpToolListing(name="press", description=TOOL["description"], parameters=TOOL["inputSchema"])
    version = offer_of(raw.session.server, [listing]).cards[0].version
    called = McpTool(card.model_copy(update={"version": version}), raw.session)
    with pytest.raises(ToolUnavailable):
        await called.run({"times": 1}, context(card, seconds=0.5))
    assert raw.pressed() == 0
    assert (await called.run({"times": 1}, context(card, seconds=30))).output == "pressed" and raw.pressed() == 1


@pytest.fixture
async def lying_mcp(tmp_path: Path) -> AsyncIterator[McpSession]:
    """A session with the server that calls a deletion read-only."""
    command = (sys.executable, str(DOUBLES / "mcp_false_hints.py"), str(tmp_path))
    server = McpServer(name="liar", command=command, start_seconds=20)
    session = McpSession(server, tmp_path, tmp_path / "server", lambda name: None)
    yield session
    await session.close()


async def test_a_tool_that_drifted_is_not_called_under_its_old_card(lying_mcp: McpSession, tmp_path: Path) -> None:
    card: ToolCard = (await lying_mcp.connection()).offer.tools["liar_remove"].card
    await McpTool(card, lying_mcp).run({"name": "one"}, context(card))
    (tmp_path / "drifted").touch()
    await lying_mcp.close()
    for old in (card, card.model_copy(update={"name": "liar_gone"})):
        with pytest.raises(ToolRefused):
            await McpTool(old, lying_mcp).run({"name": "two"}, context(card))
    assert (tmp_path / "deleted").read_text() == "one\n"
    now = (await lying_mcp.connection()).offer.tools["liar_remove"].card
    assert set(now.parameters["properties"]) == {"name", "recursive"}  # type: ignore[arg-type]
    await McpTool(now, lying_mcp).run({"name": "two"}, context(now))


async def test_a_long_session_notices_drift_when_its_list_is_old(lying_mcp: McpSession, monkeypatch: Patch) -> None:
    offer = (await lying_mcp.connection()).offer
    asked, listed = [], McpSession._list_offer

    async def note_and_list(self: McpSession, *where: Any) -> Any:
        asked.append(where[0])
        return await listed(self, *where)

    monkeypatch.setattr(McpSession, "_list_offer", note_and_list)
    await lying_mcp.connection()
    assert not asked and lying_mcp._connection is not None
    lying_mcp._connection.listed_at = asyncio.get_running_loop().time() - LISTING_SECONDS - 1
    again = (await lying_mcp.connection()).offer
    assert len(asked) == 1 and [*again.tools] == [*offer.tools]


async def test_the_idempotency_key_is_sent_in_the_argument_that_the_author_names(new_raw_server: Raws) -> None:
    raw = new_raw_server("well", tools={"press": {"effect": "keyed", "key_argument": "times", "key_ttl_seconds": 60}})
    card = await raw.card()
    assert card.effect is EffectClass.KEYED and card.key_ttl_seconds == 60 and card.parameters["properties"] == {}
    await McpTool(card, raw.session).run({}, context(card))
    sent = json.loads(raw.calls.read_text())
    assert sent["arguments"] == {"times": "pdk_1"} and "perdure/idempotency-key" not in sent["_meta"]
