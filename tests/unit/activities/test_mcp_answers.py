"""A server's answer for the model, bounded and storable, and the outcomes of failed answers."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch
from urllib.parse import quote

import httpx
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, JSONRPCError, TextContent

from perdure.activities.author_code import Raised
from perdure.activities.dependencies import Deps
from perdure.activities.tool_execution import ClaimedCall, _not_done, _raised
from perdure.activities.tool_failures import FailureReport
from perdure.activities.toolbox.mcp import answers
from perdure.activities.toolbox.mcp.answers import mend_halves, unread_answer
from perdure.activities.toolbox.mcp.session import MAX_ERROR_CHARACTERS, McpSession, error_of, output_of
from perdure.activities.toolbox.mcp.tools import McpTool, ServerLost
from perdure.activities.toolbox.mcp.transports import _AnswerStream
from perdure.activities.toolbox.mcp.wire import Note, Wire
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.mcp import McpServer
from perdure.contracts.values import canonical_json
from perdure.core.calls.secrets import secrets_of
from perdure.egress import EgressRefused
from perdure.sdk.outcomes import ToolRefused, ToolUnavailable, result_of
from tests.unit.apps.tool_contexts import card, context

DATA = base64.b64encode(b"x" * 1_000).decode()
UNKNOWN = '"error":{"code":-32602,"message":"unknown account"}'
IMAGE = {"type": "image", "data": DATA, "mime_type": "image/png"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a"}


def text(said: str) -> TextContent:
    return TextContent(type="text", text=said)


def answer(*content: Any, structured: dict[str, Any] | None = None) -> CallToolResult:
    return CallToolResult.model_validate({"content": [*content], "structured_content": structured})


def test_structured_content_is_the_result_or_else_a_lone_text() -> None:
    assert output_of(answer(text('{"a": 1}'), structured={"a": 1})) == {"a": 1}
    assert output_of(answer(text("three pods"))) == "three pods"
    assert output_of(answer()) == {"content": []}
    assert output_of(answer(text("a"), text("b"))) == {"content": ["a", "b"]}
    assert error_of(answer(text("  no such pod \n"))) == "no such pod"
    assert error_of(answer())
    assert len(error_of(answer(text("e" * 100_000)))) < MAX_ERROR_CHARACTERS + 50


@pytest.mark.parametrize(("texts", "structured", "both"), [
    (['{"a": 1}'], {"a": 1}, False), (["", " "], {"a": 1}, False), ([], {"a": 1}, False),
    (["3"], {"result": 3}, False), (["three"], {"result": "three"}, False), (['{"result": 3}'], {"result": 3}, False),
    (["1", '{"b": 2}'], {"result": [1, {"b": 2}]}, False), (["[1]"], {"result": [1]}, False),
    (["THE TEXT OF THE FILE"], {"name": "a.txt"}, True), (['{"a": 1}', "and a note"], {"a": 1}, True),
    (['{"a": 2}'], {"a": 1}, True), (["1", "2"], {"result": [1, 3]}, True),
])  # fmt: skip
def test_text_and_structure_both_reach_the_model(texts: list[str], structured: dict[str, Any], both: bool) -> None:
    output = output_of(answer(*map(text, texts), structured=structured))
    assert output == ({"content": texts, "structured": structured} if both else structured)


def test_a_structured_error_keeps_its_words() -> None:
    assert error_of(answer(text("no"), structured={"code": 7})) == 'no {"code":7}'
    assert error_of(answer(structured={"code": 7})) == '{"code":7}'
    assert error_of(answer(text('{"code": 7}'), structured={"code": 7})) == '{"code": 7}'


@given(
    st.lists(st.sampled_from([rb"\ud83d", rb"\ude00", rb"\\", rb"\n", b"ud83d", rb"\u0041", b"x"]), max_size=9),
    st.data(),
)
def test_halves_are_mended_in_pieces_as_in_whole(parts: list[bytes], data: st.DataObject) -> None:
    body = b"".join(parts)
    whole = mend_halves(body)
    json.loads(b'"' + whole + b'"').encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)))))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    async def read() -> bytes:
        return b"".join([piece async for piece in _AnswerStream(_Pieces(pieces), Note())])

    assert asyncio.run(read()) == whole


@pytest.mark.parametrize(("read", "code"), [
    ('{"jsonrpc":"2.0","id":4,"result":["paid"]}', None),
    ('{"jsonrpc":"2.0","id":4,"result":{"content":paid}}', None),
    ('{"jsonrpc":"2.0","id":4,"result":null,' + UNKNOWN + "}", -32602),
    ('{"id":4,"result":null,' + UNKNOWN + "}", -32602),
    ('{"jsonrpc":"2.0","id":4,' + UNKNOWN.replace(" ", " \t") + "}", -32602),
    ('{"jsonrpc":"2.0","id":4,' + UNKNOWN[:-2], -32603), ('{"jsonrpc":"2.0","id":4}', -32603),
    ('{"jsonrpc":"2.0","id":5,"result":{"content":paid}}', 0), ('{"jsonrpc":"2.0","id":5,"result":["paid"]}', 0),
    ('{"level":30,"msg":"request received","id":4}', 0),
    ('{"level":30,"msg":"request received","id":4,"result":"ok"}', 0),
    *(('{"id":0042,"error":"disk almost full"}', 0), ('{"id":"a\tb","error":"x"', 0)),
    ('{"result":"error","message":"upstream timed out"}', 0),
    ('{"jsonrpc":"2.0","method":"notifications/message","params":{"data":{"result":"start"', 0),
    ('<html>{"error": "x"}</html>', 0),
])  # fmt: skip
def test_only_an_answers_own_fields_make_it_one(read: str, code: int | None) -> None:
    answer = unread_answer(read, 4)
    assert (answer.error.code if isinstance(answer, JSONRPCError) else 0 if answer is None else None) == code


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_tools_are_checked_without_the_rest_of_their_page_up_to_a_limit(version: str) -> None:
    wire, good = Wire(protocol=version), {"name": "t", "inputSchema": {"type": "object"}}
    page: dict[str, Any] = {"resultType": "complete", "ttlMs": 1, "cacheScope": "private", "_meta": {}}
    page["tools"] = [good] + [7] * 1_999
    with patch.object(answers, "_list_fault", wraps=answers._list_fault) as fault:
        answers._mend_page(page, wire)
    assert page["tools"] == [good] and "tools left out: 1000" in wire.left_out[""]
    assert sum("_meta" in each.args[0] for each in fault.mock_calls) == 1 and fault.call_count < 1_010


class _Pieces(httpx2.AsyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@pytest.mark.parametrize(("block", "told"), [
    (IMAGE, {"type": "image", "bytes": 1_000}),
    ({**IMAGE, "type": "audio", "mime_type": "audio/wav"}, {"type": "audio", "mime_type": "audio/wav"}),
    (LINK, LINK),
    ({"type": "resource", "resource": {"uri": "file:///a", "text": "in"}}, {"type": "resource", "text": "in"}),
    ({"type": "resource", "resource": {"uri": "file:///a", "blob": DATA}}, {"bytes": 1_000, "uri": "file:///a"}),
])  # fmt: skip
def test_content_that_is_not_text_is_described(block: dict[str, Any], told: dict[str, Any]) -> None:
    output: Any = output_of(answer(block, structured={"kept": True}))
    assert output["structured"] == {"kept": True}
    assert told.items() <= output["content"][0].items()
    assert DATA[:40] not in json.dumps(output)


@pytest.mark.parametrize("large", [
    answer(text("x" * 1_000_000)), answer(*(text("y" * 10_000) for _ in range(500))),
    answer(structured={"rows": ["z" * 100] * 10_000}), answer(text("t"), structured={"rows": ["z" * 100] * 10_000}),
    answer(*[{**IMAGE, "mime_type": "m" * 9_000}] * 300),
])  # fmt: skip
def test_a_huge_answer_becomes_a_small_result_that_says_it_was_cut(large: CallToolResult) -> None:
    whole = canonical_json(result_of(output_of(large)).output)
    assert len(whole) < 64 * 1024 and "[cut: " in whole


def test_nested_or_unstorable_content_is_made_storable() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"a": deep}
    output: Any = output_of(answer(text("deep"), structured=deep))
    assert output["content"] == ["deep"] and isinstance(output["structured"], str)
    assert result_of(output_of(answer(text("a\x00b\ud800c")))).output == "a\ufffdb\ufffdc"
    odd = {"nan": float("nan"), "text": "a\x00b"}
    assert result_of(output_of(answer(structured=odd))).output == {"nan": None, "text": "a\ufffdb"}


@given(st.lists(st.text(max_size=50), max_size=5), st.none() | st.dictionaries(st.text(max_size=5), st.integers()))
def test_any_answer_becomes_a_result_that_json_can_carry(texts: list[str], structured: dict[str, Any] | None) -> None:
    output = result_of(output_of(answer(*map(text, texts), structured=structured))).output
    assert json.loads(canonical_json(output)) == output


CLOSED, NO_METHOD, BAD, INTERNAL, OWN = -32000, -32601, -32600, -32603, -32050

SECRET = "zebra/+1"
SERVER = McpServer(name="s", command=("x",), env={"A": "Bearer {secret:key}", "B": "{secret:missing}"})


def failure(effect: str, answered: object, **note: Any) -> Exception:
    session = McpSession(SERVER, Path(), Path(), {"key": SECRET}.get)
    fields = {"key_ttl_seconds": 5} if effect == "keyed" else {}
    return McpTool(card(effect, **fields), session)._failure(answered, Note(**note), Wire())


def mcp_error(code: int, message: str = "because of the test") -> MCPError:
    return MCPError(code=code, message=message)


CUT_OFF = mcp_error(CLOSED, "Connection closed")
"""The library's own word for a connection that ended."""
AWAY, NO, LOST = ToolUnavailable, ToolRefused, ServerLost


@pytest.mark.parametrize(("answered", "note", "read", "keyed", "opaque"), [
    (mcp_error(CLOSED), {"sent": False}, AWAY, AWAY, AWAY), (mcp_error(INTERNAL), {"sent": False}, AWAY, AWAY, AWAY),
    (CUT_OFF, {}, LOST, LOST, LOST), (mcp_error(CLOSED), {}, NO, LOST, LOST),
    (mcp_error(INTERNAL), {"lost": True}, LOST, LOST, LOST),
    *((mcp_error(NO_METHOD), {}, NO, NO, NO), (mcp_error(BAD), {}, NO, NO, NO)),
    *((mcp_error(code), {"status": 200}, NO, LOST, LOST) for code in (BAD, NO_METHOD)),
    (mcp_error(NO_METHOD), {"status": 200, "has_error": True}, NO, NO, NO),
    *((mcp_error(BAD), {"status": 404}, AWAY, AWAY, AWAY), (mcp_error(INTERNAL), {}, NO, LOST, LOST)),
    *((mcp_error(OWN), {}, NO, LOST, LOST), (ValueError("no result"), {}, NO, LOST, LOST)),
    (mcp_error(CLOSED), {"too_large": True}, NO, LOST, LOST), (mcp_error(INTERNAL), {"status": 401}, NO, NO, NO),
    (mcp_error(INTERNAL), {"status": 500}, AWAY, LOST, LOST), (mcp_error(INTERNAL), {"status": 429}, AWAY, AWAY, NO),
    (mcp_error(INTERNAL), {"status": 409}, NO, LOST, NO), (mcp_error(BAD), {"status": 307}, NO, LOST, LOST),
])  # fmt: skip
def test_a_failure_follows_its_effect_class(answered: object, note: Any, read: type, keyed: type, opaque: type) -> None:
    for effect, wanted in (("read", read), ("keyed", keyed), ("opaque", opaque)):
        assert type(failure(effect, answered, **{"sent": True, **note})) is wanted, effect


def test_a_servers_wait_is_kept_and_its_message_is_cut() -> None:
    failed = failure("read", mcp_error(INTERNAL), sent=True, status=503, retry_after_seconds=7.0)
    assert isinstance(failed, ToolUnavailable) and failed.retry_after_seconds == 7.0
    failed = failure("read", mcp_error(NO_METHOD, "x \n" * 5_000), sent=True)
    assert isinstance(failed, ToolRefused) and len(failed.message) < 400 and "\n" not in failed.message


class _Mute(ToolRefused):
    def __init__(self) -> None: ...

    def __str__(self) -> str:
        raise SystemExit


ENVIRON = {
    "LEVEL": "info",
    "OPENAI_API_KEY": "none",
    "PERDURE_SECRET_DESK": "walrus-99",
    "DATABASE_URL": "postgresql://app:walrus%2F77@db/x",
}


def test_a_servers_secrets_are_not_in_its_failures() -> None:
    """Nor are the secrets of the worker's environment."""
    echo = f"no {SECRET} {quote(SECRET, safe='')}"
    tool = McpTool(card("opaque"), McpSession(SERVER, Path(), Path(), {"key": SECRET}.get))
    messages = [str(failure("opaque", mcp_error(code, echo), sent=True)) for code in (OWN, NO_METHOD)]
    messages.append(error_of(answer(text(f"{'x' * (MAX_ERROR_CHARACTERS - 12)} {echo}")), tool.session.secrets()))
    toolbox = Toolbox((), lambda name: None, httpx.AsyncClient())
    deps = cast("Deps", SimpleNamespace(toolbox=toolbox, shows_failure_messages=True, secrets=secrets_of(ENVIRON)))
    report = FailureReport.of(deps, tool, tool.card, "t", "c")
    assert report.words_of(" ".join(ENVIRON.values()) + " walrus/77") == "info none … … …"
    claimed = cast("ClaimedCall", SimpleNamespace(card=card("read"), report=report, tool=tool))
    made = context(card("read"))
    messages.append(_not_done(claimed, ToolRefused(echo), ToolRefused(echo), made).message)
    messages.append(_raised(claimed, Raised(EgressRefused(echo)), made).message)
    assert report.own_message(_Mute()) == "_Mute"
    for message in (*messages, report.words_of(echo)):
        assert "no …" in message or message.endswith("…")
        assert "zebra" not in message
