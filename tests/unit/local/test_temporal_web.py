"""The proxy in front of Temporal's Web UI: which requests it forwards."""

from collections.abc import AsyncIterator, Mapping

import httpx
import pytest

from perdure.local.ports import HOST, HttpResponse, free_port
from perdure.local.temporal_web import WebProxy, rejection

HERE = "127.0.0.1:8233"
SAME = {"host": HERE, "origin": f"http://{HERE}"}


@pytest.mark.parametrize(("method", "target", "headers", "status"), [
    ("GET", "/", {"host": HERE}, None),
    ("GET", "/", {"host": "localhost"}, None),
    ("GET", "/", {"host": "LOCALHOST:1"}, None),
    ("GET", "/", {"host": "[::1]:8233"}, None),
    ("GET", "/", {}, 421),
    ("GET", "/", {"host": ""}, 421),
    ("GET", "/", {"host": "rebound.example:8233"}, 421),
    ("GET", "/", {"host": "localhost.rebound.example"}, 421),
    ("GET", "/", {"host": "127.0.0.1.rebound.example"}, 421),
    ("GET", "/", {"host": "localhost:8233@rebound.example"}, 421),
    ("GET", "/", {"host": "localhost.:8233"}, 421),
    ("GET", "/", {"host": "127.0.0.1:8233\u0660"}, 421),
    ("GET", "/", {"host": "0.0.0.0:8233"}, 421),
    ("GET", "http://rebound.example/", {"host": HERE}, 400),
    ("OPTIONS", "*", SAME, 400),
    ("GET", "/", {"host": HERE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, None),
    ("GET", "/", {"host": HERE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
    ("GET", "/", {"host": HERE, "sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
    ("GET", "/", {"host": HERE, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, None),
    ("POST", "/", SAME, None),
    ("POST", "/", {**SAME, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
    ("POST", "/", {"host": HERE}, 403),
    ("POST", "/", {"host": HERE, "origin": "null"}, 403),
    ("POST", "/", {"host": HERE, "origin": "http://localhost:8233"}, 403),
    ("POST", "/", {"host": HERE, "origin": f"https://{HERE}"}, 403),
    ("DELETE", "/", {"host": HERE, "authorization": "Bearer x"}, 403),
    ("OPTIONS", "/", {"host": HERE, "origin": "http://rebound.example"}, 403),
])  # fmt: skip
def test_only_own_pages_get_through(method: str, target: str, headers: Mapping[str, str], status: int | None) -> None:
    rejected = rejection(method, target, headers)
    assert (rejected[0] if rejected is not None else None) == status


class Echo:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes]] = []

    async def answer(self, method: str, target: str, _headers: Mapping[str, str], body: bytes) -> HttpResponse | None:
        self.asked.append((method, target, body))
        return HttpResponse(200, {"content-type": "text/plain", "connection": "x", "content-length": "9"}, b"found")


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, str]]:
    backend = Echo()
    proxy = WebProxy(backend.answer)
    port = free_port()
    await proxy.open(HOST, port)
    yield backend, f"http://{HOST}:{port}"
    await proxy.close()


async def test_requests_share_a_connection_and_bodies_arrive(echo: tuple[Echo, str]) -> None:
    backend, address = echo
    async with httpx.AsyncClient(headers={"Origin": address}) as http:
        for number in range(3):
            answer = await http.post(f"{address}/api/{number}?a=b", content=b"x" * number * 70_000)
            assert (answer.status_code, answer.text) == (200, "found")
            assert answer.headers["x-frame-options"] == "SAMEORIGIN"
        assert (await http.head(address)).content == b""
        big = await http.post(address, content=b"x" * (4 << 20) + b"x")
        assert (big.status_code, big.json()["error"]["code"]) == (413, "too_large")
    assert [(method, target, len(body)) for method, target, body in backend.asked] == [
        ("POST", "/api/0?a=b", 0), ("POST", "/api/1?a=b", 70_000), ("POST", "/api/2?a=b", 140_000), ("HEAD", "/", 0),
    ]  # fmt: skip


async def test_rejected_requests_never_reach_the_server(echo: tuple[Echo, str]) -> None:
    backend, address = echo
    async with httpx.AsyncClient() as http:
        foreign = await http.get(address, headers={"Host": "rebound.example"})
        assert (foreign.status_code, foreign.json()["error"]["code"]) == (421, "host_not_allowed")
        assert (await http.post(address, content=b"{}")).status_code == 403
    assert backend.asked == []
