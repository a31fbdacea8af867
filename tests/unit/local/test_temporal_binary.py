"""The sources of the Temporal server program, with small scripts in its place; the proxy in front of its Web UI."""

import asyncio
import io
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from unittest.mock import AsyncMock

import httpx
import pytest

from perdure.local import temporal_binary as binary
from perdure.local.data_dir import StackError
from perdure.local.output import Console
from perdure.local.ports import HOST, HttpResponse, free_port
from perdure.local.temporal_download import downloaded
from perdure.local.temporal_web import WebProxy, rejection
from tests.eventually import until

GOOD = f"temporal version {binary.CLI_VERSION} (Server 1.31.2, UI 2.50.1)"
HERE = "127.0.0.1:8233"
SAME = {"host": HERE, "origin": f"http://{HERE}"}


def program(path: Path, says: str = GOOD, code: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return path


def environ(folder: Path) -> dict[str, str]:
    return {"PATH": str(folder / "bin"), "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}


def cached(folder: Path, says: str = GOOD) -> Path:
    return binary.install(program(folder / "made", says), binary.cache_folder(environ(folder)))


async def never(_folder: Path, _console: Console) -> bool:
    raise AssertionError("this source must not be asked")


async def fails(_folder: Path, _console: Console) -> bool:
    return False


def brings(says: str = GOOD) -> binary.Source:
    async def source(folder: Path, _console: Console) -> bool:
        program(folder / "temporal", says)
        return True

    return source


async def temporal_found(folder: Path, out: io.StringIO | None = None, **sources: binary.Source) -> tuple[Path, str]:
    taken = await binary.find_temporal(environ(folder), Console(out), sources)
    return taken.path, taken.source


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


async def test_a_new_enough_program_on_path_comes_first(tmp_path: Path) -> None:
    cached(tmp_path)
    on_path = program(tmp_path / "bin" / "temporal", "temporal version 1.5.0 (Server 1.29.0, UI 2.40.0)")
    taken = await binary.find_temporal(environ(tmp_path), Console(None), {"build": never})
    assert (taken.path, taken.source, taken.cli) == (on_path, "path", (1, 5, 0))


@pytest.mark.parametrize(("says", "version"), [
    ("temporal version 1.4.9 (Server 1.29.0, UI 2.40.0)", "1.4.9"),
    ("temporal version 1.9.0 (Server 1.28.1, UI 2.40.0)", "1.9.0"),
    ("some other temporal", ""),
])  # fmt: skip
async def test_old_and_unrelated_programs_are_named(tmp_path: Path, says: str, version: str, out: io.StringIO) -> None:
    kept = cached(tmp_path)
    strange = program(tmp_path / "bin" / "temporal", says)
    assert await temporal_found(tmp_path, out, download=never, build=never) == (kept, "cache")
    (line,) = out.getvalue().splitlines()
    assert str(strange) in line and version in line


async def test_a_changed_cached_program_is_not_run_but_set_aside_and_replaced(tmp_path: Path, out: io.StringIO) -> None:
    kept, proof = cached(tmp_path), tmp_path / "it-ran"
    kept.write_text(f"#!/bin/sh\ntouch {proof}\necho '{GOOD}'\n")
    assert await temporal_found(tmp_path, out, build=brings()) == (kept, "build")
    assert not proof.exists()
    aside = kept.with_name("temporal.broken")
    assert proof.name in aside.read_text()
    (line,) = out.getvalue().splitlines()
    assert str(aside) in line


@pytest.mark.parametrize("is_folder", [False, True])
async def test_a_cached_program_that_cannot_run_is_set_aside(is_folder: bool, tmp_path: Path, out: io.StringIO) -> None:
    in_the_way = binary.cache_folder(environ(tmp_path)) / "temporal"
    if is_folder:
        (in_the_way / "inside").mkdir(parents=True)
    else:
        program(in_the_way).write_bytes(b"\x7fELF cut short")
    assert await binary.from_cache(binary.cache_folder(environ(tmp_path)), Console(out)) is None
    aside = in_the_way.with_name("temporal.broken")
    assert aside.name in out.getvalue()
    assert (aside / "inside").is_dir() if is_folder else aside.read_bytes() == b"\x7fELF cut short"


async def test_a_cached_program_gets_its_lost_execute_bit_back_and_is_used(tmp_path: Path, out: io.StringIO) -> None:
    kept = cached(tmp_path)
    kept.chmod(0o644)
    assert await temporal_found(tmp_path, out, build=never) == (kept, "cache")
    assert str(kept) in out.getvalue() and out.getvalue().count("\n") == 1
    assert os.access(kept, os.X_OK)


async def test_a_program_put_into_the_cache_by_hand_is_used_if_it_runs(tmp_path: Path) -> None:
    by_hand = program(binary.cache_folder(environ(tmp_path)) / "temporal")
    assert await temporal_found(tmp_path, build=never) == (by_hand, "cache")


async def test_sources_are_tried_in_order_until_a_program_runs(tmp_path: Path, out: io.StringIO) -> None:
    leftover = binary.cache_folder(environ(tmp_path)).parent / ".making-of-a-killed-builder"
    leftover.mkdir(parents=True)
    (leftover / "temporal").write_text("half")
    path, source = await temporal_found(
        tmp_path, out, download=fails, mirror=brings("nonsense"), build=brings(), last=never
    )
    assert source == "build" and "mirror" in out.getvalue()
    assert await temporal_found(tmp_path, build=never) == (path, "cache")
    assert sorted(one.name for one in path.parent.parent.iterdir()) == ["build.lock", f"temporal-{binary.CLI_VERSION}"]


async def test_without_a_source_one_line_names_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="PATH") as caught:
        await temporal_found(tmp_path, build=fails)
    assert "TEMPORAL_ADDRESS" in str(caught.value) and "\n" not in str(caught.value)


async def test_a_read_only_cache_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StackError, match=re.escape(str(tmp_path / "cache"))):
        await temporal_found(tmp_path, build=brings())


async def test_a_second_builder_waits_for_the_first_and_uses_its_program(tmp_path: Path, out: io.StringIO) -> None:
    lock = binary.cache_folder(environ(tmp_path)).parent / "build.lock"
    lock.parent.mkdir(parents=True)
    async with binary.only_builder(lock, Console(None)):
        second = asyncio.create_task(temporal_found(tmp_path, out, build=never))
        await asyncio.sleep(0.4)
        assert not second.done()
        kept = cached(tmp_path)
    assert (await second)[0] == kept
    assert out.getvalue().count("\n") == 1


def downloading(*command: str, **given: float) -> binary.Source:
    return downloaded({"PATH": "/usr/bin:/bin"}, ("/bin/sh", *command), **given)


async def test_the_file_that_the_download_left_becomes_the_program(tmp_path: Path) -> None:
    script = tmp_path / "download.sh"
    script.write_text(f"#!/bin/sh\nprintf '#!/bin/sh\\necho \"{GOOD}\"\\n' > $1/temporal-sdk-$2\nchmod 755 $1/*\n")
    taken = await binary.find_temporal(environ(tmp_path), Console(None), {"download": downloading(str(script))})
    assert (taken.source, taken.cli) == ("download", (1, 8, 2))


async def test_a_failed_download_is_explained_and_the_next_source_is_tried(tmp_path: Path, out: io.StringIO) -> None:
    refused = downloading("-c", "echo trying; echo no such host; exit 1")
    assert (await temporal_found(tmp_path, out, download=refused, build=brings()))[1] == "build"
    assert "no such host" in out.getvalue()


@pytest.mark.timed
async def test_a_silent_download_is_stopped_and_a_slow_one_is_not(tmp_path: Path, out: io.StringIO) -> None:
    silent = downloading("-c", "sleep 60", silent_seconds=0.6)
    began = time.monotonic()
    assert not await silent(tmp_path, Console(out))
    assert time.monotonic() - began < 3
    assert out.getvalue()
    drip = "for n in 1 2 3 4 5; do echo $n >> $0/part; sleep 0.4; done"
    assert await downloading("-c", drip, silent_seconds=1.2)(tmp_path, Console(None))


async def test_the_sdk_downloads_and_its_failure_is_one_line(tmp_path: Path, out: io.StringIO) -> None:
    # A proxy that does not listen: the SDK's request fails immediately, whatever network this machine has.
    nowhere = "http://127.0.0.1:9"
    env = {**os.environ, "HTTPS_PROXY": nowhere, "https_proxy": nowhere, "NO_PROXY": "", "no_proxy": ""}
    assert not await downloaded(env)(tmp_path, Console(out))
    assert binary.CLI_VERSION in out.getvalue()


needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go on PATH to build a small module with")

# Without an import, so that only Go's runtime is compiled.
MAIN = 'package main\n\nfunc main() { println("%s") }\n'


@pytest.fixture(scope="module")
def go_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("go-build"))


def module(folder: Path, main: str) -> Path:
    """A Go module whose only tool is called `temporal`, without dependencies."""
    major, minor, patch = binary.GO_MINIMUM
    (folder / "temporal").mkdir(parents=True)
    (folder / "go.mod").write_text(f"module small\n\ngo {major}.{minor}.{patch}\n\ntool small/temporal\n")
    (folder / "temporal" / "main.go").write_text(main)
    return folder


@needs_go
async def test_a_build_shows_how_to_avoid_it_and_its_progress(tmp_path: Path, go_cache: str, out: io.StringIO) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "GOFLAGS": "-mod=vendor", "GOCACHE": go_cache}
    env["PATH"] = str(Path(shutil.which("go") or "").parent)
    half_built = tmp_path / "cache" / "perdure" / "go-build"
    half_built.mkdir(parents=True)
    source = binary.built(env, module(tmp_path / "module", MAIN % GOOD))
    assert (await binary.find_temporal(env, Console(out), {"build": source})).source == "build"
    told = out.getvalue().splitlines()
    assert "TEMPORAL_ADDRESS" in told[1] and len(told) > 3
    assert not half_built.exists()


@needs_go
async def test_a_failed_build_shows_the_last_lines_of_go(tmp_path: Path, go_cache: str, out: io.StringIO) -> None:
    broken = module(tmp_path / "module", "package main\n\nfunc main() { nonsense }\n")
    source = binary.built({**os.environ, "GOCACHE": go_cache}, broken)
    assert not await source(tmp_path, Console(out))
    assert "nonsense" in out.getvalue()


async def test_an_old_go_is_named_and_not_used(tmp_path: Path, out: io.StringIO) -> None:
    old = program(tmp_path / "bin" / "go", "go version go1.21.3 linux/amd64")
    assert await binary.find_go({"PATH": str(old.parent)}, Console(out)) != old
    assert all(version in out.getvalue() for version in ("1.21.3", ".".join(map(str, binary.GO_MINIMUM))))


def test_the_build_ignores_settings_of_the_caller_that_would_change_it() -> None:
    env = binary.go_environ({"GOFLAGS": "-mod=vendor", "GOARCH": "arm", "GOPROXY": "a-proxy", "HOME": "/h"})
    assert env["GOCACHE"].endswith("/perdure/go-build")
    assert binary.go_environ({"GOCACHE": "/warm", "HOME": "/h"})["GOCACHE"] == "/warm"
    assert "GOFLAGS" not in env and "GOARCH" not in env
    assert (env["GOPROXY"], env["GOTOOLCHAIN"], env["GOWORK"]) == ("a-proxy", "local", "off")


def test_the_versions_here_match_the_go_module() -> None:
    text = (binary.MODULE / "go.mod").read_text()
    assert f"github.com/temporalio/cli v{binary.CLI_VERSION}" in text
    assert f"go {'.'.join(map(str, binary.GO_MINIMUM))}\n" in text
    assert "tool github.com/temporalio/cli/cmd/temporal\n" in text


async def test_a_failing_or_unrelated_program_has_no_version(tmp_path: Path) -> None:
    assert await binary.read_version(program(tmp_path / "a", GOOD, code=1), "path") is None
    assert await binary.read_version(tmp_path / "missing", "path") is None
    assert await binary.read_version(Path(sys.executable), "path") is None


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (59.9, "0:59"), (187, "3:07"), (3600, "60:00")])
def test_elapsed_time_is_formatted_like_a_clock(seconds: float, shown: str) -> None:
    assert binary.clock(seconds) == shown


@pytest.mark.parametrize(("method", "target", "headers", "status"), [
    ("GET", "/", {"host": HERE}, None), ("GET", "/", {"host": "localhost"}, None),
    ("GET", "/", {"host": "LOCALHOST:1"}, None), ("GET", "/", {"host": "[::1]:8233"}, None), ("GET", "/", {}, 421),
    ("GET", "/", {"host": ""}, 421), ("GET", "/", {"host": "rebound.example:8233"}, 421),
    ("GET", "/", {"host": "localhost.rebound.example"}, 421),
    ("GET", "/", {"host": "127.0.0.1.rebound.example"}, 421),
    ("GET", "/", {"host": "localhost:8233@rebound.example"}, 421), ("GET", "/", {"host": "localhost.:8233"}, 421),
    ("GET", "/", {"host": "127.0.0.1:8233\u0660"}, 421), ("GET", "/", {"host": "0.0.0.0:8233"}, 421),
    ("GET", "http://rebound.example/", {"host": HERE}, 400), ("OPTIONS", "*", SAME, 400),
    ("GET", "/", {"host": HERE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, None),
    ("GET", "/", {"host": HERE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
    ("GET", "/", {"host": HERE, "sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
    ("GET", "/", {"host": HERE, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, None),
    ("POST", "/", SAME, None),
    ("POST", "/", {**SAME, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
    ("POST", "/", {"host": HERE}, 403), ("POST", "/", {"host": HERE, "origin": "null"}, 403),
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


async def test_slow_heads_and_too_many_connections_are_ended(
    echo: tuple[Echo, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.local.temporal_web._HEAD_SECONDS", 0.2)
    monkeypatch.setattr("perdure.local.temporal_web._MAX_CONNECTIONS", 2)
    host, _, port = echo[1].removeprefix("http://").partition(":")

    async def answer(sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        received = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return received[:12]

    assert await answer(b"") == b"", "it sends no byte"
    assert await answer(b"GET / HTTP/1.1\r\nHo") == b"HTTP/1.1 408"
    assert await answer(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\nGET".encode()) == b"HTTP/1.1 200"
    slow = [asyncio.create_task(answer(b"GET")) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert await answer(b"") == b"HTTP/1.1 503"
    assert await asyncio.gather(*slow) == [b"HTTP/1.1 408"] * 2


async def test_a_client_that_does_not_read_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.local.temporal_web._BODY_SECONDS", 0.2)
    proxy, port = WebProxy(AsyncMock(return_value=HttpResponse(200, {}, b"x" * 20_000_000))), free_port()
    await proxy.open(HOST, port)
    _, writer = await asyncio.open_connection(HOST, port, limit=1_024)
    writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    await until(lambda: proxy._serving, 5)
    await until(lambda: not proxy._serving, 5)
    writer.close()
    await proxy.close()


async def test_rejected_requests_never_reach_the_server(echo: tuple[Echo, str]) -> None:
    backend, address = echo
    async with httpx.AsyncClient() as http:
        foreign = await http.get(address, headers={"Host": "rebound.example"})
        assert (foreign.status_code, foreign.json()["error"]["code"]) == (421, "host_not_allowed")
        assert (await http.post(address, content=b"{}")).status_code == 403
    assert backend.asked == []
