"""The stack as the environment describes it, and the addresses that are printed when everything is up."""

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from perdure.local.config import PAGES, ROOT, StackConfig, addresses, default_programs, home_of, own_environ
from perdure.local.data_dir import StackError
from perdure.local.welcome import no_app
from tests.doubles.hostile_target import Target, target

TOKENS = {"requester": "t-req", "reviewer": "t-rev"}
CHAT, REVIEW, DOCS = (link.label_with_role for link in PAGES)


def test_a_relative_folder_in_a_setting_is_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typed" / "agents").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    environ = {"PERDURE_HOME": "data/here", "PERDURE_APP": "perdure/examples/refunds"}
    config = StackConfig.from_env(environ=environ)
    assert config.home == home_of(environ) == ROOT / "data" / "here"
    assert config.app_dirs == (ROOT / "perdure" / "examples" / "refunds",)
    assert StackConfig.from_env(["typed"], environ=environ).app_dirs == (tmp_path / "typed",)


def test_only_the_checkouts_own_env_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("PERDURE_PORT=9123\n")
    monkeypatch.delenv("PERDURE_PORT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert own_environ().get("PERDURE_PORT") != "9123"
    monkeypatch.setattr("perdure.local.config.BASE", tmp_path)
    assert own_environ()["PERDURE_PORT"] == "9123"
    monkeypatch.setenv("PERDURE_PORT", "9124")
    assert own_environ()["PERDURE_PORT"] == "9124"
    for written, named in (
        (b"A=\xff\n", "[.]env"),
        (b"PERDURE_TENANT=a\0b\n", "PERDURE_TENANT"),
        (b"# 1\nPERDURE_PORT 5\n", "[.]env .*line 2"),
        (b'A=1\n\nB="x\n', "[.]env .*line 3"),
    ):
        (tmp_path / ".env").write_bytes(written)
        with pytest.raises(StackError, match=named):
            own_environ()


def test_every_setting_can_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "one" / "agents").mkdir(parents=True)
    (tmp_path / "two" / "agents").mkdir(parents=True)
    environ = {
        "PERDURE_HOME": str(tmp_path / "data"),
        "PERDURE_PORT": "9001",
        "PERDURE_ROUTING": "spread",
        "PERDURE_APP": os.pathsep.join((str(tmp_path / "one"), "")),
    }
    plain, config = StackConfig.from_env(environ={}), StackConfig.from_env(environ=environ)
    assert (plain.home, plain.port, plain.routing) == (ROOT / ".perdure", 8080, "compact")
    assert (config.home, config.port, config.routing) == (tmp_path / "data", 9001, "spread")
    assert config.app_dirs == config.apps == (tmp_path / "one",)
    typed = StackConfig.from_env([tmp_path / "two"], environ=environ)
    assert typed.app_dirs == typed.apps == (tmp_path / "two",), "a flag replaces its variable"


@pytest.mark.parametrize(("there", "missing"), [((), ("agents/", "app.yaml")), (("app.yaml",), ("agents/",))])
def test_a_folder_error_lists_what_is_missing(tmp_path: Path, there: tuple[str, ...], missing: tuple[str, ...]) -> None:
    for name in there:
        (tmp_path / name).touch()
    with pytest.raises(StackError) as caught:
        StackConfig.from_env([tmp_path], environ={})
    told = str(caught.value)
    assert str(tmp_path) in told and "`perdure init " in told
    assert [name for name in ("agents/", "app.yaml") if name in told] == list(missing)


def test_compact_runs_four_processes_and_spread_a_worker_for_each_queue() -> None:
    compact = [program.role for program in default_programs("compact")]
    assert compact == ["worker-relay", "worker-turns", "worker-llm", "api"]
    spread = [program.role for program in default_programs("spread")]
    assert set(spread) - set(compact) == {"worker-tools", "worker-memory", "worker-approvals"}
    assert [program.ready for program in default_programs("spread")].count("http") == 1


@pytest.mark.parametrize(("name", "value", "named"), [
    *(("PERDURE_PORT", port, "PERDURE_PORT") for port in ("http", "0", "65536", "-1", "\N{SUPERSCRIPT TWO}")),
    ("PERDURE_ROUTING", "wide", "PERDURE_ROUTING"),
    ("PERDURE_APP", "/no/such/app", "/no/such/app"),
])  # fmt: skip
def test_an_error_about_a_setting_is_one_line_that_names_it(name: str, value: str, named: str) -> None:
    with pytest.raises(StackError, match=named) as caught:
        StackConfig.from_env(environ={name: value})
    assert "\n" not in str(caught.value)


def test_a_printed_configuration_does_not_show_the_environment() -> None:
    assert "hush" not in repr(StackConfig.from_env(environ={"DATABASE_URL": "postgresql://u:hush@h/d"}))


@pytest.mark.parametrize("published", [{}, {"filings": ("rule_32", "rule_37"), "refunds": ("refunds",)}])
def test_a_start_without_an_app_names_the_commands_and_what_stays(published: dict[str, tuple[str, ...]]) -> None:
    text = "\n".join(no_app("bin/perdure", published))
    assert "bin/perdure up --examples" in text and "bin/perdure up --app" in text
    assert ("rule_32, rule_37" in text) is bool(published) is ("init" not in text)


def api(answer: bytes) -> AbstractAsyncContextManager[Target]:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    return target(talk)


async def test_each_page_has_a_code_for_its_user_and_its_own_host_name() -> None:
    body = b'{"code": "local.abc"}'
    async with api(b"HTTP/1.1 201 Created\r\n\r\n" + body) as made:
        found = dict(await addresses(PAGES, port := made.port, TOKENS))
    assert found == {
        CHAT: f"http://127.0.0.1:{port}/sign-in?code=local.abc",
        REVIEW: f"http://localhost:{port}/sign-in?code=local.abc",
        DOCS: f"http://127.0.0.1:{port}/docs",
    }
    assert ["Bearer t-req" in each or "Bearer t-rev" in each for each in made.heads] == [True, True]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 501 No\r\n\r\n", b"HTTP/1.1 201 Created\r\n\r\nnot JSON", b"junk", b""])
async def test_without_codes_the_plain_pages_are_printed(answer: bytes) -> None:
    async with api(answer) as made:
        found = dict(await addresses(PAGES, port := made.port, TOKENS))
        assert found[CHAT] == f"http://127.0.0.1:{port}/chat"
        assert found[REVIEW] == f"http://localhost:{port}/review"
        without_tokens = dict(await addresses(PAGES, port, {}))
    assert without_tokens[CHAT] == f"http://127.0.0.1:{port}/chat"
