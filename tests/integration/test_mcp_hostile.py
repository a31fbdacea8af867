"""Servers that break the protocol, or are not to be believed: bounded, typed, and never an effect without approval."""

import asyncio
import functools
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
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
from tests.doubles.mcp_raw import TOOL
from tests.eventually import until
from tests.unit.apps.tool_contexts import context

DOUBLES = Path(__file__).parents[1] / "doubles"
OPAQUE: dict[str, Any] = {}
READ: dict[str, Any] = {"tools": {"press": {"effect": "read"}}}
Patch = pytest.MonkeyPatch
soak = functools.partial(pytest.param, marks=pytest.mark.soak)


class Raw:
    """The hand-written server, one way of breaking."""

    def __init__(self, home: Path, how: str, **fields: Any) -> None:
        self.calls = home / "calls"
        command = ("python", str(DOUBLES / "mcp_raw.py"), str(self.calls), how)
        server = McpServer(name="raw", command=command, start_seconds=20, **fields)
        self.session = McpSession(server, home, home / "server", lambda name: None)

    async def card(self) -> ToolCard:
        return (await self.session.connection()).offer.tools["raw_press"].card

    async def press(self, seconds: float = 10.0) -> ToolResult:
        card = await self.card()
        return await asyncio.wait_for(McpTool(card, self.session).run({"times": 1}, context(card)), seconds)

    def pressed(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def change(self, **fields: Any) -> None:
        """What its next start is like."""
        self.session.server = self.session.server.model_copy(update=fields)


Raws = Callable[..., Raw]


@pytest.fixture
async def raws(tmp_path: Path) -> AsyncIterator[Raws]:
    async with AsyncExitStack() as stack:

        def made(how: str, **fields: Any) -> Raw:
            raw = Raw(tmp_path, how, **fields)
            stack.push_async_callback(raw.session.close)
            return raw

        yield made


@pytest.mark.timed
@pytest.mark.parametrize(
    ("how", "trusted"),
    [
        ("result_is_text", OPAQUE),
        ("says_internal_error", OPAQUE),
        ("no_result", READ),
        soak("content_is_number", OPAQUE),
        soak("says_its_own", READ),
        soak("says_internal_error", READ),
    ],
)
async def test_an_answer_that_is_none_is_a_typed_end_at_once(raws: Raws, how: str, trusted: dict[str, Any]) -> None:
    raw, began = raws(how, **trusted), time.monotonic()
    with pytest.raises(ToolRefused if trusted else ServerLost):
        await raw.press()
    assert time.monotonic() - began < 5 and raw.pressed() == 1


@pytest.mark.parametrize(
    ("how", "ends"),
    [
        ("says_invalid_params", ToolRefused),
        soak("says_no_such_method", ToolRefused),
        ("half_then_dies", ServerLost),
        ("endless_line", ServerLost),
    ],
)
async def test_a_no_is_a_no_and_a_broken_line_ends_the_call_alone(raws: Raws, how: str, ends: type[Exception]) -> None:
    raw = raws(how)
    with pytest.raises(ends):
        await raw.press(seconds=30.0)
    assert raw.pressed() == 1


async def test_an_answer_that_the_tools_own_output_schema_forbids_is_told_as_such(raws: Raws) -> None:
    with pytest.raises(ToolRefused):
        await raws("misfits", **READ).press()
    output = (await raws("misfits").press()).output
    assert isinstance(output, dict) and output["status"] == "answer_misfit", "the call was made: nobody must settle it"
    assert "pressed" in str(output["answer"])


@pytest.mark.timed
@pytest.mark.parametrize(
    "how", ["fits", "slow_pattern", soak("has_no_structure"), soak("schema_elsewhere"), soak("schema_is_none")]
)
async def test_an_output_schema_that_fits_or_cannot_be_used_leaves_the_answer_as_it_is(raws: Raws, how: str) -> None:
    raw, began = raws(how, **READ), time.monotonic()
    assert "pressed" in str((await raw.press()).output)
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("how", ["chatters", "not_utf8"])
async def test_standard_error_does_not_fill_the_disk_and_bytes_that_are_no_text_do_not_end_the_session(
    raws: Raws, tmp_path: Path, monkeypatch: Patch, how: str
) -> None:
    monkeypatch.setattr(transports, "LOG_SECONDS", 0.05)
    raw, log = raws(how), tmp_path / "server" / "stderr.log"
    for _ in range(3):
        assert (await raw.press()).output == "pressed"
        await until(lambda: log.stat().st_size <= transports.MOST_LOG_BYTES)


@pytest.mark.parametrize("how", ["other_id", "hangs"])
async def test_a_call_without_an_answer_ends_with_its_time_and_the_server_is_started_anew(raws: Raws, how: str) -> None:
    raw = raws(how)
    with pytest.raises(TimeoutError):
        await raw.press(seconds=1.0)
    first = raw.session._open
    raw.change(command=(*raw.session.server.command[:-1], "well"), start_seconds=6.0)
    if how == "hangs":  # it reads nothing any more, so only a new process can answer
        assert (await raw.press()).output == "pressed" and raw.session._open is not first
    assert raw.pressed() == (2 if how == "hangs" else 1)


async def test_a_server_that_lists_nothing_is_not_ended_during_a_long_call(raws: Raws, monkeypatch: Patch) -> None:
    raw = raws("takes_its_time")
    await raw.session.connection()
    long = asyncio.create_task(raw.press())
    await until(lambda: raw.pressed() == 1)
    monkeypatch.setattr(mcp_session, "LISTING_SECONDS", 0.0)
    raw.change(start_seconds=0.5)
    with pytest.raises(mcp_session.Unreachable):
        await raw.press()
    assert (await long).output == "pressed" and raw.pressed() == 1, "the first was let finish, the second was not sent"


@pytest.mark.parametrize("trusted", [OPAQUE, READ], ids=["opaque", "read"])
async def test_an_answer_that_is_too_large_ends_its_own_call_and_no_other(raws: Raws, trusted: dict[str, Any]) -> None:
    raw = raws("second_is_huge", **trusted)
    first = asyncio.create_task(raw.press(seconds=60.0))
    await until(lambda: raw.pressed() == 1, seconds=60.0)
    with pytest.raises(ToolRefused if trusted else ServerLost):
        await raw.press(seconds=60.0)
    assert (await first).output == "pressed" and raw.pressed() == 2


async def test_a_server_that_starts_slowly_costs_an_attempt_and_no_outcome(raws: Raws) -> None:
    raw = raws("well")
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
async def liar(tmp_path: Path) -> AsyncIterator[McpSession]:
    """A session with the server that calls a deletion read-only."""
    command = (sys.executable, str(DOUBLES / "mcp_liar.py"), str(tmp_path))
    server = McpServer(name="liar", command=command, start_seconds=20)
    session = McpSession(server, tmp_path, tmp_path / "server", lambda name: None)
    yield session
    await session.close()


async def test_a_tool_that_drifted_is_not_called_under_its_old_card(liar: McpSession, tmp_path: Path) -> None:
    card: ToolCard = (await liar.connection()).offer.tools["liar_remove"].card
    await McpTool(card, liar).run({"name": "one"}, context(card))
    (tmp_path / "drifted").touch()
    await liar.close()
    for old in (card, card.model_copy(update={"name": "liar_gone"})):
        with pytest.raises(ToolRefused):
            await McpTool(old, liar).run({"name": "two"}, context(card))
    assert (tmp_path / "deleted").read_text() == "one\n"
    now = (await liar.connection()).offer.tools["liar_remove"].card
    assert set(now.parameters["properties"]) == {"name", "recursive"}  # type: ignore[arg-type]
    await McpTool(now, liar).run({"name": "two"}, context(now))


async def test_a_long_session_notices_drift_when_its_list_is_old(liar: McpSession, monkeypatch: Patch) -> None:
    offer = (await liar.connection()).offer
    asked, listed = [], McpSession._listing

    async def noted(self: McpSession, client: Any) -> Any:
        asked.append(client)
        return await listed(self, client)

    monkeypatch.setattr(McpSession, "_listing", noted)
    await liar.connection()
    assert not asked and liar._open is not None
    liar._open.listed_at = asyncio.get_running_loop().time() - LISTING_SECONDS - 1
    again = (await liar.connection()).offer
    assert len(asked) == 1 and [*again.tools] == [*offer.tools]


async def test_the_key_goes_into_the_argument_that_the_author_names(raws: Raws) -> None:
    raw = raws("well", tools={"press": {"effect": "keyed", "key_argument": "times", "key_ttl_seconds": 60}})
    card = await raw.card()
    assert card.effect is EffectClass.KEYED and card.key_ttl_seconds == 60 and card.parameters["properties"] == {}
    await McpTool(card, raw.session).run({}, context(card))
    sent = json.loads(raw.calls.read_text())
    assert sent["arguments"] == {"times": "pdk_1"} and "perdure/idempotency-key" not in sent["_meta"]
