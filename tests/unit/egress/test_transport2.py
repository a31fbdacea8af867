"""The way out for httpx2, which the MCP client and Authlib use: the same rules."""

import time
import zlib

import httpx2
import pytest

from perdure.core.egress import Outbound, named_by_url
from perdure.egress import AnswerWithheld, Call, EgressRefused, OutOfTime, calling
from perdure.egress.httpx2_transport import Transport2
from tests.doubles.hostile_target import MEBI, Talk, bomb, endless_head, endless_hints, floods, says, target, threaded
from tests.doubles.resolver import Names


def client(*urls: str, follow: bool = False, proxy: str = "") -> httpx2.AsyncClient:
    named = [named_by_url(url, by_operator=True) for url in urls]
    transport = Transport2(Outbound(proxy=proxy).naming(*named))
    return httpx2.AsyncClient(transport=transport, trust_env=False, follow_redirects=follow)


async def test_only_named_hosts_of_this_machine_are_reached(names: Names) -> None:
    names("public.test", ["93.184.216.34", "127.0.0.1"])
    async with target(says()) as made, client(made.url) as allowed, client() as http:
        for url in (made.url, f"http://public.test:{made.port}/", "http://169.254.169.254/", "http://0x7f.1/"):
            with pytest.raises(EgressRefused):
                await http.get(url)
        assert made.heads == []
        assert (await allowed.get(made.url)).status_code == 200


async def test_a_name_is_resolved_once(names: Names) -> None:
    asked = names("service.test", ["127.0.0.1"], ["127.0.0.99"])
    async with target(says()) as made, client(f"http://service.test:{made.port}") as http:
        assert (await http.get(f"http://service.test:{made.port}/")).status_code == 200
    assert asked == ["service.test"]


async def test_a_redirect_to_another_host_is_not_followed() -> None:
    async with target(says()) as other, target(says(307, b"", f"location: {other.url}")) as made:
        async with client(made.url, other.url, follow=True) as http:
            with pytest.raises(EgressRefused):
                await http.get(made.url)
    assert other.heads == []


async def test_a_configured_proxy_is_used_and_one_of_the_environment_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with target(says(200, b"by the proxy")) as proxy, target(says(200, b"direct")) as made:
        async with client(made.url, proxy=proxy.url) as http:
            assert (await http.get("http://public.test/")).text == "by the proxy"
            assert (await http.get(made.url)).text == "direct"
            with pytest.raises(EgressRefused):
                await http.get("http://intranet/")


@pytest.mark.parametrize(
    "talk",
    [
        floods(announced=True),
        floods(),
        says(200, bomb(), "content-encoding: gzip"),
        says(200, bomb(zlib.MAX_WBITS), "content-encoding: deflate"),
        says(200, b"x", "content-encoding: br"),
    ],
)
async def test_a_success_that_is_too_large_is_withheld(talk: Talk) -> None:
    with threaded(talk) as made:
        async with client(made.url) as http:
            with pytest.raises(AnswerWithheld):
                await http.get(made.url)


async def test_small_packed_answers_are_read_and_errors_are_cut() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(b"hello") + packer.flush()
    async with target(says(200, packed, "content-encoding: gzip")) as made, client(made.url) as http:
        assert (await http.get(made.url)).text == "hello"
    with threaded(floods(500)) as made:
        async with client(made.url) as http:
            answer = await http.get(made.url)
    assert answer.status_code == 500 and len(answer.content) <= MEBI
    async with target(says(200, b"no gzip", "content-encoding: gzip")) as made, client(made.url) as http:
        with pytest.raises(httpx2.DecodingError):
            await http.get(made.url)
    with threaded(endless_head()) as made:
        async with client(made.url) as http:
            with pytest.raises(httpx2.RemoteProtocolError):
                await http.get(made.url)


@pytest.mark.parametrize("talk", [endless_hints, floods(200, b"x", gap=0.02)])
async def test_the_deadline_holds_for_the_whole_exchange(talk: Talk) -> None:
    began = time.monotonic()
    async with target(talk) as made, client(made.url) as http:
        with calling(Call(deadline=began + 0.3)), pytest.raises(OutOfTime):
            await http.get(made.url)
    assert time.monotonic() - began < 2
