"""The intake by itself: what passes, what is refused, and that a stream is not held back."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from perdure.api.middleware import MAX_JSON_DEPTH, Intake
from perdure.contracts.values import sha256_hex
from perdure.core.text import is_clean

Messages = list[MutableMapping[str, Any]]
JSON = [(b"content-type", b"application/json")]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


class Knower:
    """An application whose database knows one token, or is away."""

    def __init__(self, away: bool = False) -> None:
        self.away, self.local = away, True
        self.state = self.services = self.db = self
        self.signing_in = SimpleNamespace(public_url="")
        self.rates = self

    async def count_request(self, scope: Scope, *caller: str) -> None:
        """No connection is ever too many."""

    async def principal_row(self, digest: str) -> dict[str, object] | None:
        if self.away:
            raise ConnectionRefusedError
        known = digest == sha256_hex("known")
        owner: dict[str, object] = {
            "tenant_id": "t", "user_id": "u", "name": "ann", "roles": ["requester"], "label": "", "created_by": [],
        }  # fmt: skip
        return owner if known else None


async def through(
    *chunks: bytes,
    app: Callable[[Scope, Receive, Send], Awaitable[None]] = echo,
    most_bytes: int = 1_000,
    app_object: object = None,
    is_cut: bool = False,
    **given: Any,
) -> Messages:
    """What comes out when a request with these chunks goes in."""
    scope = {
        "type": "http", "method": "POST", "path": "/x", "raw_path": b"/x", "query_string": b"", "headers": JSON,
        "app": app_object or Knower(), **given,
    }  # fmt: skip
    waiting = [{"type": "http.request", "body": each, "more_body": True} for each in chunks]
    waiting[-1:] = [{**each, "more_body": is_cut} for each in waiting[-1:]]
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


async def test_a_valid_body_passes_unchanged_and_every_answer_has_an_id() -> None:
    sent = await through(b'{"a": ', b'"\xc3\xa9"}')
    assert sent[1]["body"] == b'{"a": "\xc3\xa9"}'
    assert (await through(b"\xef\xbb", b'\xbf{"a": 1}'))[1]["body"] == b'{"a": 1}', "without its byte order mark"
    assert [name for name, _ in sent[0]["headers"]] == [b"x-request-id"]


@pytest.mark.parametrize(("body", "expected"), [
    (b"{", (400, "malformed_json")), (b'{"a": 1, "b": {"c": 1, "\\u0063": 2}}', (400, "duplicate_key")),
    (b'[{"a": 1}, {"a": 1}]', (200, "")), ("{}".encode("utf-16"), (400, "malformed_json")),
    (b"9" * 900, (422, "number_too_large")), (b"1e999", (422, "number_not_finite")),
    (b'["\\ud800"]', (422, "text_not_storable")), (b'{"\\u0000": 1}', (422, "text_not_storable")),
    (b"[" * 65 + b"]" * 65, (422, "json_too_deep")), (b"[" * 63 + b"]" * 63, (200, "")),
    (b"x" * 1_001, (413, "body_too_large")),
])  # fmt: skip
async def test_an_invalid_body_is_refused_with_its_code(body: bytes, expected: tuple[int, str]) -> None:
    assert outcome(await through(body)) == expected


async def test_a_body_is_measured_as_it_arrives_and_a_part_of_one_is_refused() -> None:
    assert outcome(await through(*[b" " * 400] * 4)) == (413, "body_too_large")
    assert outcome(await through(b'{"agent": "refunds"}', is_cut=True)) == (400, "client_disconnected")


@pytest.mark.parametrize(("given_scope", "code"), [
    ({"raw_path": b"/a%00b"}, "text_not_storable"), ({"raw_path": b"/a%ff"}, "not_utf8"),
    ({"query_string": b"x=%ED%A0%80"}, "not_utf8"), ({"query_string": b"x=%00"}, "text_not_storable"),
    ({"headers": [(b"idempotency-key", b"k" * 256)]}, "header_invalid"),
    ({"headers": [(b"last-event-id", b"\xe9")]}, "header_invalid"),
])  # fmt: skip
async def test_path_query_and_headers_are_validated(given_scope: dict[str, Any], code: str) -> None:
    assert outcome(await through(b"{}", **given_scope)) == (400, code)


@pytest.mark.parametrize(("given_type", "expected"), [
    ([], 415), ([(b"content-type", b"application/x-www-form-urlencoded")], 415),
    ([(b"content-type", b"text/json\xff")], 415), ([(b"content-type", b"Application/JSON; charset=utf-8")], 200),
    ([(b"content-type", b"application/merge-patch+json")], 200),
])  # fmt: skip
async def test_a_body_has_a_json_media_type_or_is_empty(given_type: list[tuple[bytes, bytes]], expected: int) -> None:
    known = [*given_type, (b"authorization", b"Bearer known")]
    sent = await through(b"{}", headers=known, path="/v1/x")
    assert sent[0]["status"] == expected
    if expected == 415:
        assert b"Content-Type: application/json" in sent[1]["body"]
    assert outcome(await through(b"", headers=known, path="/v1/x")) == (200, "")


async def test_a_page_outside_v1_accepts_a_form() -> None:
    form = [(b"content-type", b"application/x-www-form-urlencoded")]
    assert outcome(await through(b"", headers=form)) == (200, "")
    assert outcome(await through(b"a=%00", headers=form)) == (422, "text_not_storable")
    assert outcome(await through(b"a=\xff", headers=form)) == (422, "form_unreadable")


@pytest.mark.parametrize(
    "body", [b"{}", b"{", b'{"a": 1, "a": 2}', b"x" * 1_001], ids=["good", "broken", "twice", "large"]
)
@pytest.mark.parametrize(("given", "code"), [
    *((each, "token_missing") for each in (b"", b"Bearer", b"Basic dXNlcjpwYXNz", b"bearer\tx")),
    *((b"Bearer " + each, "token_invalid") for each in (b"unknown", b"x" * 5_000, b"\xe9")),
])  # fmt: skip
async def test_below_v1_the_token_precedes_the_body(body: bytes, given: bytes, code: str) -> None:
    head = [*JSON, *([(b"authorization", given)] if given else [])]
    sent = await through(body, headers=head, path="/v1/turns", app_object=Knower())
    assert outcome(sent) == (401, code)
    assert (b"www-authenticate", b"Bearer") in sent[0]["headers"]


async def test_a_valid_token_passes_its_owner_on_with_the_body() -> None:
    found: list[Any] = []

    async def seen(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope["state"]["principal"])
        await echo(scope, receive, send)

    known = [*JSON, (b"authorization", b"bearer known")]
    assert outcome(await through(b"{", headers=known, path="/v1/x", app_object=Knower()))[0] == 400
    assert outcome(await through(b"{}", headers=known, path="/v1/x", app_object=Knower(), app=seen)) == (200, "")
    assert [(owner.name, owner.roles) for owner in found] == [("ann", frozenset({"requester"}))]


async def test_if_no_token_can_be_checked_the_answer_is_503_with_retry_after() -> None:
    known = [*JSON, (b"authorization", b"Bearer known")]
    sent = await through(b"{", headers=known, path="/v1/x", app_object=Knower(away=True))
    assert outcome(sent) == (503, "store_unavailable")
    assert "retry-after" in [name.decode() for name, _ in sent[0]["headers"]]


async def test_a_get_is_not_read_and_its_answer_not_delayed() -> None:
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
def test_a_body_is_accepted_exactly_if_it_can_be_stored(value: object) -> None:
    body = json.dumps(value).encode()
    status, _ = outcome(asyncio.run(through(body, most_bytes=1_000_000)))
    good = all(is_clean(text) for text in texts(value)) and depth(value) < MAX_JSON_DEPTH
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
