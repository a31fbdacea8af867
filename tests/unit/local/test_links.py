"""The addresses that are printed when everything is up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from perdure.local.config import PAGES, addresses

TOKENS = {"requester": "t-req", "reviewer": "t-rev"}


@asynccontextmanager
async def api(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port where everything is answered so, and what was asked there."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


async def test_each_page_has_a_code_of_its_own_user_under_a_name_of_its_own() -> None:
    body = b'{"code": "local.abc"}'
    async with api(b"HTTP/1.1 201 Created\r\n\r\n" + body) as (port, asked):
        found = dict(await addresses(PAGES, port, TOKENS))
    assert found == {
        "Chat as requester": f"http://127.0.0.1:{port}/sign-in?code=local.abc",
        "Review as reviewer": f"http://localhost:{port}/sign-in?code=local.abc",
        "API docs": f"http://127.0.0.1:{port}/docs",
    }
    assert [b"Bearer t-req" in each or b"Bearer t-rev" in each for each in asked] == [True, True]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 501 No\r\n\r\n", b"HTTP/1.1 201 Created\r\n\r\nnot JSON", b"junk", b""])
async def test_where_no_code_is_given_the_pages_are_printed_as_they_are(answer: bytes) -> None:
    async with api(answer) as (port, _):
        found = dict(await addresses(PAGES, port, TOKENS))
        assert found["Chat as requester"] == f"http://127.0.0.1:{port}/chat"
        assert found["Review as reviewer"] == f"http://localhost:{port}/review"
        nobody = dict(await addresses(PAGES, port, {}))
    assert nobody["Chat as requester"] == f"http://127.0.0.1:{port}/chat"
