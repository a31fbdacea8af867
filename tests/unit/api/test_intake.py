"""The intake by itself: what passes, what is refused, and that a stream is not held back."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from api.intake import MOST_DEPTH, Intake
from policy.text import is_clean

Messages = list[MutableMapping[str, Any]]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def through(
    *chunks: bytes, app: Callable[[Scope, Receive, Send], Awaitable[None]] = echo, most_bytes: int = 1_000, **given: Any
) -> Messages:
    """What comes out when a request with these chunks goes in."""
    scope = {
        "type": "http", "method": "POST", "path": "/x", "raw_path": b"/x", "query_string": b"", "headers": [], **given
    }  # fmt: skip
    waiting = [{"type": "http.request", "body": c, "more_body": n < len(chunks)} for n, c in enumerate(chunks, 1)]
    sent: Messages = []

    async def receive() -> MutableMapping[str, Any]:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await Intake(app, most_bytes)(scope, receive, send)
    return sent


def outcome(sent: Messages) -> tuple[int, str]:
    body = json.loads(sent[1]["body"] or b"{}")
    code = body.get("error", {}).get("code", "") if isinstance(body, dict) else ""
    return sent[0]["status"], code


async def test_a_good_body_passes_unchanged_and_every_answer_has_an_id() -> None:
    sent = await through(b'{"a": ', b'"\xc3\xa9"}')
    assert sent[1]["body"] == b'{"a": "\xc3\xa9"}'
    assert [name for name, _ in sent[0]["headers"]] == [b"x-request-id"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", (400, "malformed_json")),
        ("{}".encode("utf-16"), (400, "malformed_json")),
        (b"9" * 900, (422, "number_too_large")),
        (b"1e999", (422, "number_not_finite")),
        (b'["\\ud800"]', (422, "text_not_storable")),
        (b'{"\\u0000": 1}', (422, "text_not_storable")),
        (b"[" * 65 + b"]" * 65, (422, "json_too_deep")),
        (b"[" * 63 + b"]" * 63, (200, "")),
        (b"x" * 1_001, (413, "body_too_large")),
    ],
)
async def test_a_body_is_refused_by_name(body: bytes, expected: tuple[int, str]) -> None:
    assert outcome(await through(body)) == expected


@pytest.mark.parametrize(
    ("given_scope", "code"),
    [
        ({"raw_path": b"/a%00b"}, "text_not_storable"),
        ({"raw_path": b"/a%ff"}, "not_utf8"),
        ({"query_string": b"x=%ED%A0%80"}, "not_utf8"),
        ({"query_string": b"x=%00"}, "text_not_storable"),
        ({"headers": [(b"idempotency-key", b"k" * 256)]}, "header_invalid"),
        ({"headers": [(b"last-event-id", b"\xe9")]}, "header_invalid"),
    ],
)
async def test_path_query_and_headers_are_checked_too(given_scope: dict[str, Any], code: str) -> None:
    assert outcome(await through(b"{}", **given_scope)) == (400, code)


async def test_a_get_is_not_read_and_its_answer_is_not_held_back() -> None:
    first_is_out = asyncio.Event()

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        first_is_out.set()

    sent = await through(app=streaming, method="GET")
    assert first_is_out.is_set() and sent[1]["more_body"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_whatever_passes_can_be_stored_and_whatever_can_be_stored_passes(value: object) -> None:
    body = json.dumps(value).encode()
    status, _ = outcome(asyncio.run(through(body, most_bytes=1_000_000)))
    good = all(is_clean(text) for text in texts(value)) and depth(value) < MOST_DEPTH
    assert (status == 200) == good


def texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for each in value for text in texts(each)]
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in texts(each)]
    return []


def depth(value: object) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return 1 + max(map(depth, inner), default=0)
