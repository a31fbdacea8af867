"""What an answer means that is no result: the table of perdure/activities/toolbox/mcp/tools.py, row by row."""

from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from perdure.activities.toolbox.mcp.session import McpSession
from perdure.activities.toolbox.mcp.tools import McpTool, ServerLost
from perdure.activities.toolbox.mcp.transports import Note, Wire
from perdure.contracts.mcp import McpServer
from perdure.sdk.outcomes import ToolRefused, ToolUnavailable
from tests.unit.apps.tool_contexts import card

CLOSED, NO_METHOD, BAD, INTERNAL, OWN = -32000, -32601, -32600, -32603, -32050


def failure(effect: str, answer: object, **note: Any) -> Exception:
    """What becomes of it."""
    session = McpSession(McpServer(name="s", command=("x",)), Path(), Path(), lambda name: None)
    fields = {"key_ttl_seconds": 5} if effect == "keyed" else {}
    return McpTool(card(effect, **fields), session)._failure(answer, Note(**note), Wire())


def said(code: int) -> MCPError:
    return MCPError(code=code, message="because of the test")


CUT_OFF = MCPError(code=CLOSED, message="Connection closed")
"""The library's own word for a connection that ended."""


@pytest.mark.parametrize(
    ("answer", "note", "read", "keyed", "opaque"),
    [
        (said(CLOSED), {}, ToolUnavailable, ToolUnavailable, ToolUnavailable),
        (said(INTERNAL), {}, ToolUnavailable, ToolUnavailable, ToolUnavailable),
        (CUT_OFF, {"sent": True}, ServerLost, ServerLost, ServerLost),
        (said(CLOSED), {"sent": True}, ToolRefused, ServerLost, ServerLost),
        (said(INTERNAL), {"sent": True, "lost": True}, ServerLost, ServerLost, ServerLost),
        (said(NO_METHOD), {"sent": True}, ToolRefused, ToolRefused, ToolRefused),
        (said(BAD), {"sent": True}, ToolRefused, ToolRefused, ToolRefused),
        (said(BAD), {"sent": True, "status": 404}, ToolUnavailable, ToolUnavailable, ToolUnavailable),
        (said(INTERNAL), {"sent": True}, ToolRefused, ServerLost, ServerLost),
        (said(OWN), {"sent": True}, ToolRefused, ServerLost, ServerLost),
        (ValueError("no result"), {"sent": True}, ToolRefused, ServerLost, ServerLost),
        (said(CLOSED), {"sent": True, "too_large": True}, ToolRefused, ServerLost, ServerLost),
        (said(INTERNAL), {"sent": True, "status": 401}, ToolRefused, ToolRefused, ToolRefused),
        (said(INTERNAL), {"sent": True, "status": 500}, ToolUnavailable, ServerLost, ServerLost),
        (said(INTERNAL), {"sent": True, "status": 429}, ToolUnavailable, ToolUnavailable, ToolRefused),
        (said(INTERNAL), {"sent": True, "status": 409}, ToolRefused, ServerLost, ToolRefused),
        (said(BAD), {"sent": True, "status": 307}, ToolRefused, ServerLost, ServerLost),
    ],
)
def test_each_row_of_the_table(
    answer: object, note: dict[str, Any], read: type[Exception], keyed: type[Exception], opaque: type[Exception]
) -> None:
    for effect, wanted in (("read", read), ("keyed", keyed), ("opaque", opaque)):
        assert type(failure(effect, answer, **note)) is wanted, effect


def test_a_wait_that_is_named_is_kept() -> None:
    failed = failure("read", said(INTERNAL), sent=True, status=503, retry_after_seconds=7.0)
    assert isinstance(failed, ToolUnavailable) and failed.retry_after_seconds == 7.0


def test_the_servers_sentence_is_told_short() -> None:
    failed = failure("read", MCPError(code=NO_METHOD, message="x \n" * 5_000), sent=True)
    assert isinstance(failed, ToolRefused) and len(failed.message) < 400 and "\n" not in failed.message
