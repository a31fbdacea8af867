"""The way out over real sockets: where it leads, and how much of an answer is read."""

import asyncio
import datetime
import ssl
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from perdure.core.egress import Outbound, named_by_url, named_host
from perdure.egress import AnswerWithheld, BlockingTransport, Call, DeadlineMissed, EgressRefused, Transport, calling
from perdure.egress.httpx2_transport import Transport2
from perdure.egress.httpx_transport import new_client
from tests.doubles import hostile_target as hostile
from tests.doubles.hostile_target import MEBI, Talk, bomb, endless_head, endless_hints, floods, says, target, threaded
from tests.doubles.resolver import Names

EVENT = b"data: " + b"y" * 100 + b"\n\n"


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


def naming(*urls: str, **given: object) -> Outbound:
    """What the operator's own addresses allow."""
    return Outbound(**given).with_hosts(*(named_by_url(url, by_operator=True) for url in urls))  # type: ignore[arg-type]


def client1(*urls: str, proxy: str = "") -> httpx.AsyncClient:
    return new_client(naming(*urls, proxy=proxy), follow_redirects=True, timeout=5)


def client2(*urls: str, proxy: str = "") -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=Transport2(naming(*urls, proxy=proxy)), trust_env=False, follow_redirects=True)


BOTH = pytest.mark.parametrize("client", [client1, client2], ids=["httpx", "httpx2"])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
@BOTH
async def test_a_loopback_address_is_refused_unless_it_is_named(client: Callable[..., Any], host: str) -> None:
    async with target(says()) as made, client() as http:
        with pytest.raises(EgressRefused, match=r"127\.0\.0\.1|localhost|::1"):
            await http.get(f"http://{host}:{made.port}/")
    assert made.heads == []


@pytest.mark.parametrize("url", [
    "http://169.254.169.254/latest/meta-data", "http://[fe80::1]/", "http://10.0.0.7/", "http://100.64.0.1/",
    "http://0.0.0.0/", "http://[64:ff9b::7f00:1]/", "http://2130706433/", "http://0x7f.1/", "http://127.1/",
    "ftp://example.org/",
])  # fmt: skip
@BOTH
async def test_no_request_is_sent_to_a_private_address(client: Callable[..., Any], url: str) -> None:
    async with client() as http:
        with pytest.raises(EgressRefused):
            await http.get(url)


@BOTH
async def test_a_public_name_with_a_private_address_is_refused(client: Callable[..., Any], resolver: Names) -> None:
    async with target(says()) as made, client() as http:
        for address in ("127.0.0.1", "10.0.0.7", "::ffff:127.0.0.1", "169.254.169.254"):
            resolver("public.test", ["93.184.216.34", address])
            with pytest.raises(EgressRefused, match=r"public\.test"):
                await http.get(f"http://public.test:{made.port}/")
    assert made.heads == []


@BOTH
async def test_the_checked_address_is_connected_to(client: Callable[..., Any], resolver: Names) -> None:
    async with target(says()) as made, client(f"http://service.test:{made.port}", made.url) as http:
        # A second look-up would lead to an address without a listener.
        asked = resolver("service.test", ["127.0.0.1"], ["127.0.0.99"])
        assert (await http.get(f"http://service.test:{made.port}/")).status_code == 200
        assert asked == ["service.test"]
        assert f"service.test:{made.port}" in made.heads[0]
        resolver("service.test", ["127.0.0.99", "127.0.0.1"])
        assert (await http.get(f"http://service.test:{made.port}/")).status_code == 200, "by the next address"
        resolver("127.0.0.1", ["10.0.0.7"])
        await http.get(made.url)
        assert "127.0.0.1" not in asked, "a literal address is not resolved"


async def test_an_unknown_name_is_a_connection_error(resolver: Names) -> None:
    resolver("nowhere.test", [])
    async with new_client(Outbound()) as http:
        with pytest.raises(EgressRefused, match=r"nowhere\.test"):
            await http.get("http://nowhere.test/")
        with pytest.raises(httpx.ConnectError):
            await http.get("http://does-not-exist.invalid/")


def certificate(folder: Path, host: str) -> ssl.SSLContext:
    """A server's context with a certificate of its own, which is written to `folder`/ca.pem."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(pem)
    (folder / "server.pem").write_bytes(private + pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")
    return context


async def test_a_certificate_is_checked_against_the_name_and_not_the_address(tmp_path: Path, resolver: Names) -> None:
    context = certificate(tmp_path, "service.test")
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    async with target(says(), context) as made:
        for host in ("service.test", "other.test"):
            resolver(host, ["127.0.0.1"])
        outbound = naming(*(f"https://{host}:{made.port}" for host in ("service.test", "other.test")))
        async with httpx.AsyncClient(transport=Transport(outbound, verify=trusted)) as http:
            assert (await http.get(f"https://service.test:{made.port}/")).status_code == 200
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await http.get(f"https://other.test:{made.port}/")
        async with new_client(outbound) as http:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await http.get(f"https://service.test:{made.port}/")


@BOTH
async def test_a_redirect_is_followed_to_the_same_host_only(client: Callable[..., Any]) -> None:
    async with target(says()) as other:
        places = iter(["/second", f"{other.url}/x"])

        async def redirects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await says(307, b"", f"location: {next(places)}")(reader, writer)

        async with target(redirects) as made:
            async with client(made.url, other.url) as http:
                with pytest.raises(EgressRefused):
                    await http.get(f"{made.url}/first")
    assert [head.split()[1] for head in made.heads] == ["/first", "/second"]
    assert other.heads == []


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"])
async def test_proxies_of_the_environment_are_ignored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with target(says()) as made, new_client(naming(made.url)) as http:
        assert (await http.get(made.url)).status_code == 200
    with httpx.Client(transport=BlockingTransport(Outbound()), trust_env=False) as http:
        with pytest.raises(EgressRefused, match=r"127\.0\.0\.1|localhost|::1"):
            http.get("http://127.0.0.1:9/")


@BOTH
async def test_a_proxy_is_used_for_public_names_not_for_named_hosts(
    client: Callable[..., Any], resolver: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    asked = resolver("public.test", ["127.0.0.1"])
    async with target(says(200, b"by the proxy")) as proxy, target(says(200, b"direct")) as made:
        async with client(made.url, proxy=proxy.url) as http:
            assert (await http.get("http://public.test/x")).text == "by the proxy"
            assert (await http.get(made.url)).text == "direct"
            for url in ("http://127.0.0.1:1/", "http://10.0.0.7/", "http://intranet/", "http://a.internal/"):
                with pytest.raises(EgressRefused):
                    await http.get(url)
    assert [head.split()[1] for head in proxy.heads] == ["http://public.test/x"]
    assert asked == [], "the proxy resolves"


FLOODS: dict[str, tuple[Talk, str]] = {
    "announced": (floods(announced=True), "answer_too_large"),
    "chunked to the end": (floods(), "answer_too_large"),
    "gzip bomb": (says(200, bomb(), "content-encoding: gzip"), "answer_too_large"),
    "zlib bomb": (says(200, bomb(zlib.MAX_WBITS), "content-encoding: deflate"), "answer_too_large"),
    "raw deflate bomb": (says(200, bomb(-zlib.MAX_WBITS), "content-encoding: deflate"), "answer_too_large"),
    "bomb in a bomb": (says(200, bomb(mebibytes=1), "content-encoding: gzip, gzip"), "answer_encoding"),
    "brotli": (says(200, b"x", "content-encoding: br"), "answer_encoding"),
    "zstandard": (says(200, b"x", "content-encoding: zstd"), "answer_encoding"),
    "empty members": (floods(200, zlib.compress(b"", 9) * 10_000, "content-encoding: identity"), "answer_too_large"),
}


@pytest.mark.parametrize("kind", FLOODS)
@BOTH
async def test_a_success_that_is_too_large_is_withheld(client: Callable[..., Any], kind: str) -> None:
    talk, code = FLOODS[kind]
    with threaded(talk) as made:
        tracemalloc.start()
        try:
            async with client(made.url) as http:
                with pytest.raises(AnswerWithheld) as withheld:
                    await http.post(made.url)
            assert tracemalloc.get_traced_memory()[1] < 40 * MEBI
        finally:
            tracemalloc.stop()
    assert (withheld.value.method, withheld.value.code) == ("POST", code)


@pytest.mark.parametrize("talk", [
    floods(503, gap=0.05), says(400, bomb(), "content-encoding: gzip"), says(500, b"x", "content-encoding: br"),
])  # fmt: skip
@BOTH
async def test_the_body_of_an_error_is_cut_and_its_status_kept(client: Callable[..., Any], talk: Talk) -> None:
    with threaded(talk) as made, calling(Call(deadline=time.monotonic() + 20)):  # reading on takes a minute
        async with client(made.url) as http:
            answer = await http.get(made.url)
        with httpx.Client(transport=BlockingTransport(naming(made.url))) as http:
            again = http.get(made.url)
    assert answer.status_code == again.status_code and answer.status_code in (400, 500, 503)
    assert max(len(answer.content), len(again.content)) <= MEBI


@pytest.mark.parametrize(("window", "encoding"), [
    (zlib.MAX_WBITS | 16, "gzip"), (zlib.MAX_WBITS, "deflate"), (-zlib.MAX_WBITS, "deflate"), (31, "x-gzip"),
])  # fmt: skip
@BOTH
async def test_a_compressed_answer_is_read_completely(client: Callable[..., Any], window: int, encoding: str) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    body = bytes(range(256)) * 8_000
    packed = packer.compress(body) + packer.flush()
    async with target(says(200, packed, f"content-encoding: {encoding}")) as made, client(made.url) as http:
        answer = await http.get(made.url)
    assert answer.content == body and "content-encoding" not in answer.headers
    assert "accept-encoding: gzip, deflate\r\n" in made.heads[0].lower()


@pytest.mark.parametrize("size", [0, 1, MEBI - 1, MEBI])
async def test_an_answer_of_exactly_the_limit_is_read(size: int) -> None:
    async with target(says(200, b"x" * size)) as made, new_client(naming(made.url, answer_bytes=MEBI)) as http:
        assert len((await http.get(made.url)).content) == size
        with calling(Call(answer_bytes=max(size - 1, 1))):
            if size > 1:
                with pytest.raises(AnswerWithheld):
                    await http.get(made.url)


@pytest.mark.parametrize(("talk", "limit"), [
    (floods(200, b"data: " + b"y" * MEBI, "content-type: text/event-stream"), "1048576"),
    (floods(200, b"data: y\n", "content-type: text/event-stream"), "1000"),
    (floods(200, b"a\r" * 500, "content-type: text/event-stream"), "1000"),
    (floods(200, EVENT * 1000, "content-type: text/event-stream"), "4194304"),
], ids=["one line", "many lines", "carriage returns", "many events"])  # fmt: skip
async def test_an_endless_stream_of_events_ends(talk: Talk, limit: str) -> None:
    with threaded(talk) as made:
        async with new_client(naming(made.url)) as http:
            with calling(Call(answer_bytes=MEBI, stream_bytes=4 * MEBI)), pytest.raises(AnswerWithheld, match=limit):
                await http.get(made.url)


async def test_a_long_stream_of_small_events_is_read() -> None:
    body = EVENT.replace(b"\n", b"\r\n") * 20_000
    async with target(says(200, body, "content-type: text/event-stream; charset=utf-8")) as made:
        async with new_client(naming(made.url)) as http:
            with calling(Call(answer_bytes=1000, stream_bytes=4 * MEBI)):
                assert (await http.get(made.url)).content == body


@pytest.mark.parametrize(
    "talk", [endless_hints, hostile.silence, floods(200, b"x", gap=0.02)], ids=["hints", "silence", "trickle"]
)
@BOTH
async def test_the_deadline_holds_for_the_whole_exchange(client: Callable[..., Any], talk: Talk) -> None:
    began = time.monotonic()
    async with target(talk) as made, client(made.url) as http:
        with calling(Call(deadline=began + 0.3)), pytest.raises(DeadlineMissed) as late:
            await http.get(made.url)
    assert late.value.sent and time.monotonic() - began < 4


async def test_a_request_unsent_at_the_deadline_is_known(resolver: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr("perdure.egress.exchange.resolve", hang)
    async with new_client(Outbound(), timeout=5) as http:
        with calling(Call(deadline=time.monotonic() + 0.2)), pytest.raises(DeadlineMissed) as late:
            await http.get("http://slow.test/")
    assert not late.value.sent


def test_requests_from_a_thread_follow_the_same_rules(resolver: Names) -> None:
    resolver("public.test", ["127.0.0.1"])
    with threaded(floods(announced=True)) as made, httpx.Client(transport=BlockingTransport(Outbound())) as http:
        for host in ("127.0.0.1", "public.test", "localhost"):
            with pytest.raises(EgressRefused):
                http.get(f"http://{host}:{made.port}/")
        assert made.heads == []
        with httpx.Client(transport=BlockingTransport(naming(made.url))) as allowed, pytest.raises(AnswerWithheld):
            allowed.get(made.url)
    with threaded(floods(200, b"x", gap=0.02)) as made:
        with httpx.Client(transport=BlockingTransport(naming(made.url))) as http:
            with calling(Call(deadline=time.monotonic() + 0.3)), pytest.raises(DeadlineMissed):
                http.get(made.url)


def test_an_apps_named_host_is_an_entry_like_any_other() -> None:
    outbound = Outbound().with_hosts(named_host("intranet", by_operator=False), None)
    assert outbound.with_hosts(*outbound.named) is outbound


@pytest.mark.parametrize(("talk", "error"), [
    (says(200, b"no gzip", "content-encoding: gzip"), (httpx.DecodingError, httpx2.DecodingError)),
    (endless_head(), (httpx.RemoteProtocolError, httpx2.RemoteProtocolError)),
])  # fmt: skip
@BOTH
async def test_broken_answers_are_refused(client: Callable[..., Any], talk: Talk, error: Any) -> None:
    with threaded(talk) as made:
        async with client(made.url) as http:
            with pytest.raises(error):
                await http.get(made.url)
