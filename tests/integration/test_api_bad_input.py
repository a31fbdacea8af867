"""Bad input is a typed 4xx, whatever it is and wherever it comes, and nothing of it is stored."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from tests.integration.bad_requests import JSON, TABLE, Bad
from tests.integration.conftest import Api
from tests.integration.test_api_turns import conversation
from tests.scale import FULL

COUNTED = (
    "users", "api_tokens", "conversations", "turns", "messages", "tool_calls", "approvals", "audit", "events", "outbox",
    "idempotency", "working_memory", "entities", "episodes", "day_limits", "prompt_versions",
)  # fmt: skip
UNREAD = ("image_url", "input_audio")


@dataclass(frozen=True)
class Place:
    conversation: str
    turn: str


@pytest.fixture(scope="module")
async def place(api: Api) -> Place:
    async with api.client() as client:
        conversation_id = await conversation(client)
        body = {"message": "/echo settled"}
        turn = await client.post(f"/v1/conversations/{conversation_id}/turns", params={"wait": 20}, json=body)
        await client.get(f"/v1/turns/{turn.json()['turn_id']}/events")
    return Place(conversation_id, turn.json()["turn_id"])


async def stored(api: Api) -> dict[str, int]:
    async with api.services.db.transaction("local") as tx:
        return {name: await tx.fetchval(f"SELECT count(*) FROM {name}") for name in COUNTED}


@pytest.fixture(scope="module")
async def clients(api: Api) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    made = {name: api.client(name) for name in ("requester", "reviewer", "admin")}
    yield made
    for client in made.values():
        await client.aclose()


def fault(answer: httpx.Response, bad: Bad) -> str | None:
    """What is wrong with the answer to a bad request."""
    about = f"{bad.method} {bad.path[:120]} {(bad.body or b'')[:80]!r} -> {answer.status_code} {answer.text[:200]}"
    if answer.status_code not in bad.status:
        return f"{about}, wanted {bad.status}"
    error = answer.json().get("error", {})
    if error.keys() != {"code", "message", "details", "request_id"} or not isinstance(error["details"], dict):
        return f"{about}: not the one error form"
    if not error["code"] or not error["message"] or error["request_id"] != answer.headers["x-request-id"]:
        return f"{about}: says nothing"
    return None


@pytest.mark.sized
async def test_each_is_a_typed_4xx_and_unstored(api: Api, place: Place, clients: dict[str, httpx.AsyncClient]) -> None:
    before = await stored(api)
    faults = []
    for number, bad in enumerate(TABLE):
        path = bad.path.replace("{conversation}", place.conversation).replace("{turn}", place.turn)
        sent = [{**JSON, **bad.headers} if bad.body is not None else bad.headers]
        if "Idempotency-Key" not in sent[0] and bad.body is not None and (FULL or number % 8 == 0):
            sent.append({**sent[0], "Idempotency-Key": "bad"})
        for headers in sent:
            answer = await clients[bad.by].request(bad.method, path, content=bad.body, headers=headers)
            faults.append(fault(answer, bad))
    found = [each for each in faults if each]
    assert not found, "\n".join(found)
    assert await stored(api) == before
    assert len(TABLE) > 1_100


async def test_a_limit_beyond_all_reason_is_clamped_like_any_other(api: Api) -> None:
    async with api.client() as client:
        for path in ("conversations", "turns", "approvals", "effects", "prompt-templates"):
            for limit in ("1" * 30, "9" * 5_000, "0" * 20 + "7"):
                answer = await client.get(f"/v1/{path}", params={"limit": limit})
                assert answer.status_code == 200, (path, limit[:9], answer.text)


@pytest.mark.parametrize("kind", UNREAD)
async def test_an_unread_kind_of_message_is_refused_by_its_field(api: Api, place: Place, kind: str) -> None:
    body = {"message": [{"type": kind, kind: {"data": "AAAA"}}]}
    async with api.client() as client:
        answer = await client.post(f"/v1/conversations/{place.conversation}/turns", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["details"]["fields"][0]["field"] == "body.message"


async def opened(api: Api, head: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.replace(b"{token}", api.people["requester"].token.encode()))
    await writer.drain()
    return reader, writer


async def raw(api: Api, head: bytes, *chunks: bytes) -> bytes:
    """What the server says to bytes that no client library would send."""
    reader, writer = await opened(api, head)
    try:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        async with asyncio.timeout(30):
            return await reader.read(65_536)
    except ConnectionError:
        return await reader.read(65_536)
    finally:
        writer.close()


HEAD = (
    b"POST /v1/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    b"Content-Type: application/json\r\n"
)


async def test_a_chunked_body_is_measured_while_it_is_read(api: Api) -> None:
    before = await stored(api)
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    answer = await raw(api, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 40, b"0\r\n\r\n")
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b'"code":"body_too_large"' in answer.replace(b" ", b"")
    assert await stored(api) == before


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/turns?x=\x00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /v1/turns HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer a\x00b\r\n\r\n",
        b"GET /v1/turns/\xed\xa0\x80 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n",
        b"POST /v1/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GARBAGE\r\n\r\n",
    ],
)
async def test_broken_http_is_400_and_the_server_goes_on(head: bytes, api: Api) -> None:
    assert b" 400 " in (await raw(api, head)).split(b"\r\n")[0]
    async with api.client() as client:
        assert (await client.get("/healthz")).status_code == 200


async def test_a_client_that_leaves_in_the_middle_of_its_body_changes_nothing(api: Api) -> None:
    before = await stored(api)
    for _ in range(20):
        _, writer = await opened(api, HEAD + b'Content-Length: 400\r\n\r\n{"agent": "refunds"')
        writer.close()
    await asyncio.sleep(0.2)
    assert await stored(api) == before


async def test_unusual_but_good_text_is_stored_as_it_is(api: Api) -> None:
    text = "é \U0001f600 \u202e bidi \ufffd \r\n tab\t 𝔘𝔫𝔦 " + "\\u0000 is only text here"
    async with api.client() as client:
        made = await conversation(client, title=text, metadata={text: text})
        shown = (await client.get(f"/v1/conversations/{made}")).json()
        assert (shown["title"], shown["metadata"]) == (text, {text: text})
