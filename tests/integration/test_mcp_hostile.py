"""Servers that break the protocol, or are not to be believed: bounded, typed, and never an effect without approval."""

import asyncio
import json
import sys
import time
from dataclasses import replace
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
from tests.desk import until
from tests.doubles.mcp_raw import TOOL
from tests.unit.apps.tool_contexts import context

DOUBLES = Path(__file__).parents[1] / "doubles"
SOAK = pytest.mark.soak
OPAQUE: dict[str, Any] = {}
READ: dict[str, Any] = {"tools": {"press": {"effect": "read"}}}


class Raw:
    """The hand-written server, one way of breaking."""

    def __init__(self, home: Path, how: str, **fields: Any) -> None:
        self.calls = home / "calls"
        command = ("python", str(DOUBLES / "mcp_raw.py"), str(self.calls), how)
        server = McpServer(name="raw", command=command, start_seconds=20, **fields)
        self.session = McpSession(server, home, home / "server", lambda name: None)

    async def press(self, seconds: float = 10.0) -> ToolResult:
        """Call its one tool."""
        card = (await self.session.connection()).offer.tools["raw_press"].card
        return await asyncio.wait_for(McpTool(card, self.session).run({"times": 1}, context(card)), seconds)

    def pressed(self) -> int:
        """How many calls it received."""
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.mark.timed
@pytest.mark.parametrize(
    ("how", "trusted"),
    [
        ("result_is_text", OPAQUE),
        ("says_internal_error", OPAQUE),
        ("no_result", READ),
        *(
            pytest.param(how, trusted, marks=SOAK)
            for how, trusted in (("content_is_number", OPAQUE), ("says_its_own", READ), ("says_internal_error", READ))
        ),
    ],
)
async def test_an_answer_that_is_none_is_a_typed_end_at_once(tmp_path: Path, how: str, trusted: dict[str, Any]) -> None:
    raw = Raw(tmp_path, how, **trusted)
    began = time.monotonic()
    with pytest.raises(ToolRefused if trusted else ServerLost):
        await raw.press()
    assert time.monotonic() - began < 5 and raw.pressed() == 1
    await raw.session.close()


async def test_an_answer_that_the_tools_own_output_schema_forbids_is_told_as_such(tmp_path: Path) -> None:
    raw = Raw(tmp_path, "misfits", **READ)
    with pytest.raises(ToolRefused):
        await raw.press()
    await raw.session.close()
    changing = Raw(tmp_path, "misfits")
    output = (await changing.press()).output
    assert isinstance(output, dict) and output["status"] == "answer_misfit", "the call was made: nobody must settle it"
    assert "pressed" in str(output["answer"])
    await changing.session.close()


@pytest.mark.timed
@pytest.mark.parametrize(
    "how",
    [
        "fits",
        "slow_pattern",
        *(pytest.param(each, marks=SOAK) for each in ("has_no_structure", "schema_elsewhere", "schema_is_none")),
    ],
)
async def test_an_output_schema_that_fits_or_cannot_be_used_leaves_the_answer_as_it_is(
    tmp_path: Path, how: str
) -> None:
    raw, began = Raw(tmp_path, how, **READ), time.monotonic()
    assert "pressed" in str((await raw.press()).output)
    assert time.monotonic() - began < 8
    await raw.session.close()


@pytest.mark.parametrize("how", ["says_invalid_params", pytest.param("says_no_such_method", marks=SOAK)])
async def test_the_protocols_own_no_is_a_no(tmp_path: Path, how: str) -> None:
    raw = Raw(tmp_path, how)
    with pytest.raises(ToolRefused, match="because of the test"):
        await raw.press()
    await raw.session.close()


async def test_bytes_that_are_no_text_do_not_end_the_session(tmp_path: Path) -> None:
    raw = Raw(tmp_path, "not_utf8")
    assert [(await raw.press()).output for _ in range(3)] == ["pressed"] * 3
    await raw.session.close()


async def test_what_a_server_says_on_its_standard_error_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "LOG_SECONDS", 0.05)
    raw, log = Raw(tmp_path, "chatters"), tmp_path / "server" / "stderr.log"
    for _ in range(2):
        await raw.press()
        await until(lambda: log.stat().st_size <= transports.MOST_LOG_BYTES)
    await raw.session.close()


@pytest.mark.parametrize("how", ["other_id", "hangs"])
async def test_a_call_without_an_answer_ends_with_its_time_and_the_server_is_started_anew(
    tmp_path: Path, how: str
) -> None:
    raw = Raw(tmp_path, how)
    with pytest.raises(TimeoutError):
        await raw.press(seconds=1.0)
    first = raw.session._open
    raw.session.server = raw.session.server.model_copy(
        update={"command": (*raw.session.server.command[:-1], "well"), "start_seconds": 6.0}
    )
    if how == "hangs":  # it reads nothing any more, so only a new process can answer
        assert (await raw.press()).output == "pressed" and raw.session._open is not first
    assert raw.pressed() == (2 if how == "hangs" else 1)
    await raw.session.close()


async def test_a_server_that_lists_nothing_during_a_long_call_is_not_ended_in_the_middle_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = Raw(tmp_path, "takes_its_time")
    await raw.session.connection()
    long = asyncio.create_task(raw.press())
    await until(lambda: raw.pressed() == 1)
    monkeypatch.setattr(mcp_session, "LISTING_SECONDS", 0.0)
    raw.session.server = raw.session.server.model_copy(update={"start_seconds": 0.5})
    with pytest.raises(mcp_session.Unreachable):
        await raw.press()
    assert (await long).output == "pressed" and raw.pressed() == 1, "the first was let finish, the second was not sent"
    await raw.session.close()


@pytest.mark.parametrize("how", ["half_then_dies", "endless_line"])
async def test_a_broken_line_and_an_endless_one_end_the_call_and_not_the_worker(tmp_path: Path, how: str) -> None:
    raw = Raw(tmp_path, how)
    with pytest.raises(ServerLost):
        await raw.press(seconds=30.0)
    assert raw.pressed() == 1
    await raw.session.close()


@pytest.mark.parametrize("trusted", [OPAQUE, READ], ids=["opaque", "read"])
async def test_an_answer_that_is_too_large_ends_its_own_call_and_no_other(
    tmp_path: Path, trusted: dict[str, Any]
) -> None:
    raw = Raw(tmp_path, "second_is_huge", **trusted)
    first = asyncio.create_task(raw.press(seconds=60.0))
    await until(lambda: raw.pressed() == 1, seconds=60.0)
    with pytest.raises(ToolRefused if trusted else ServerLost):
        await raw.press(seconds=60.0)
    assert (await first).output == "pressed" and raw.pressed() == 2
    await raw.session.close()


async def test_a_server_that_starts_slowly_costs_an_attempt_and_no_outcome(tmp_path: Path) -> None:
    raw = Raw(tmp_path, "well")
    card = (await raw.session.connection()).offer.tools["raw_press"].card
    await raw.session.close()
    script = "import sys, time, runpy; time.sleep(1.5); runpy.run_path(sys.argv[0], run_name='__main__')"
    slow = ("python", "-c", f"import sys; sys.argv.pop(0); {script}", *raw.session.server.command[1:])
    raw.session.server = raw.session.server.model_copy(update={"command": slow})
    called = McpTool(card.model_copy(update={"version": _version(raw)}), raw.session)
    with pytest.raises(ToolUnavailable):
        await called.run({"times": 1}, context(card, seconds=0.5))
    assert raw.pressed() == 0
    assert (await called.run({"times": 1}, context(card, seconds=30))).output == "pressed" and raw.pressed() == 1
    await raw.session.close()


def _version(raw: Raw) -> str:
    listing = McpToolListing(name="press", description=TOOL["description"], parameters=TOOL["inputSchema"])
    return offer_of(raw.session.server, [listing]).cards[0].version


def liar(home: Path, **fields: Any) -> McpSession:
    """A session with the server that calls a deletion read-only."""
    server = McpServer(
        name="liar", command=(sys.executable, str(DOUBLES / "mcp_liar.py"), str(home)), start_seconds=20, **fields
    )
    return McpSession(server, home, home / "server", lambda name: None)


async def test_a_server_that_lies_about_a_deletion_is_not_believed_unless_it_is_trusted(tmp_path: Path) -> None:
    session, trusted = liar(tmp_path), liar(tmp_path, trust_annotations=True)
    card = (await session.connection()).offer.tools["liar_remove"].card
    assert (card.effect, card.needs_approval, card.risk) == (EffectClass.OPAQUE, True, "high")
    believed = (await trusted.connection()).offer.tools["liar_remove"].card
    assert (believed.effect, believed.needs_approval) == (EffectClass.READ, False)
    assert card.version != believed.version
    await asyncio.gather(session.close(), trusted.close())


async def test_a_tool_that_drifted_is_not_called_under_its_old_card(tmp_path: Path) -> None:
    session = liar(tmp_path)
    card: ToolCard = (await session.connection()).offer.tools["liar_remove"].card
    await McpTool(card, session).run({"name": "one"}, context(card))
    (tmp_path / "drifted").touch()
    await session.close()
    with pytest.raises(ToolRefused):
        await McpTool(card, session).run({"name": "two"}, context(card))
    assert (tmp_path / "deleted").read_text() == "one\n"
    now = (await session.connection()).offer.tools["liar_remove"].card
    assert set(now.parameters["properties"]) == {"name", "recursive"}  # type: ignore[arg-type]
    await McpTool(now, session).run({"name": "two"}, context(now))
    gone = replace(McpTool(card.model_copy(update={"name": "liar_gone"}), session))
    with pytest.raises(ToolRefused):
        await gone.run({}, context(card))
    await session.close()


async def test_a_long_session_notices_drift_when_its_list_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = liar(tmp_path)
    offer = (await session.connection()).offer
    loop, asked = asyncio.get_running_loop(), []
    listed = McpSession._listing

    async def noted(self: McpSession, client: Any) -> Any:
        asked.append(client)
        return await listed(self, client)

    monkeypatch.setattr(McpSession, "_listing", noted)
    await session.connection()
    assert not asked
    assert session._open is not None
    session._open.listed_at = loop.time() - LISTING_SECONDS - 1
    again = (await session.connection()).offer
    assert len(asked) == 1 and [*again.tools] == [*offer.tools]
    await session.close()


async def test_the_key_goes_into_the_argument_that_the_author_names(tmp_path: Path) -> None:
    settings = {"press": {"effect": "keyed", "key_argument": "times", "key_ttl_seconds": 60}}
    raw = Raw(tmp_path, "well", tools=settings)
    card = (await raw.session.connection()).offer.tools["raw_press"].card
    assert card.effect is EffectClass.KEYED and card.key_ttl_seconds == 60 and card.parameters["properties"] == {}
    await McpTool(card, raw.session).run({}, context(card))
    sent = json.loads(raw.calls.read_text())
    assert sent["arguments"] == {"times": "pdk_1"} and "perdure/idempotency-key" not in sent["_meta"]
    await raw.session.close()
