"""What the operator's settings say of outgoing requests and of the log."""

import os
import subprocess
import sys

import pytest
import structlog

from perdure.core.egress import ANSWER_BYTES, NamedHost, Outbound
from perdure.settings import LogLevel, Settings, log_from
from tests.repo.test_environment import bare

EARLY = structlog.get_logger("early")


def settings(**given: str) -> Settings:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OPENAI_BASE_URL", "OLLAMA_API_BASE", "AZURE_OPENAI_ENDPOINT", "SOME_TOKEN"):
            patch.delenv(name, raising=False)
        for name, value in given.items():
            patch.setenv(name, value)
        return bare(**{name: value for name, value in given.items() if name.startswith("PERDURE")})


def outbound(**given: str) -> Outbound:
    return settings(**given).outbound()


def providers(**given: str) -> Outbound:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        return settings(**given).outbound_to_providers()


def test_by_default_tools_have_no_host_of_the_providers_and_no_proxy() -> None:
    given = {"OPENAI_BASE_URL": "http://localhost:8000/v1", "PERDURE_EMBEDDINGS_BASE": "http://127.0.0.1:11434/v1"}
    assert outbound(HTTPS_PROXY="http://127.0.0.1:3128", **given) == Outbound((), "", ANSWER_BYTES)


def test_the_operator_sets_hosts_proxy_and_size() -> None:
    found = outbound(
        PERDURE_EGRESS_HOSTS="intranet, 10.0.0.0/8,169.254.169.254",
        PERDURE_EGRESS_PROXY="http://proxy.corp.test:3128",
        PERDURE_ANSWER_BYTES="2048",
    )
    assert [str(each.network or each.host) for each in found.named] == ["intranet", "10.0.0.0/8", "169.254.169.254"]
    assert all(each.by_operator for each in found.named)
    assert (found.proxy, found.answer_bytes) == ("http://proxy.corp.test:3128", 2048)


@pytest.mark.parametrize(("variable", "value"), [
    *(("PERDURE_EGRESS_HOSTS", entry) for entry in ("http://intranet/", "10.0.0.1/8", "0x7f.1", "a b")),
    *(("PERDURE_EGRESS_PROXY", proxy) for proxy in ("proxy:3128", "socks5://proxy", "http://proxy/path")),
])  # fmt: skip
def test_an_entry_that_names_no_host_and_a_proxy_that_is_no_address_stop_the_start(variable: str, value: str) -> None:
    with pytest.raises((SystemExit, ValueError), match=variable):
        outbound(**{variable: value})


ORIGIN = "https://perdure.example.org"


@pytest.mark.parametrize("given", [ORIGIN, f"{ORIGIN}/", "HTTPS://perdure.example.org/"])
def test_the_public_url_is_read_without_a_slash_at_its_end(given: str) -> None:
    found = settings(PERDURE_PUBLIC_URL=given)
    assert (found.public_url, found.link_base_url()) == (ORIGIN, ORIGIN)


@pytest.mark.parametrize("module", [
    "perdure.api", "perdure.worker --relay", "perdure.worker --queues llm", "perdure.apps.bootstrap",
])  # fmt: skip
def test_no_program_starts_with_a_bad_public_url(module: str) -> None:
    for bad in ("https://u:hush@h", f"{ORIGIN}/path"):
        environ = {**os.environ, "PERDURE_PUBLIC_URL": bad}
        ended = subprocess.run(
            [sys.executable, "-m", *module.split()], env=environ, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (1, "", 1), ended.stderr
        assert "PERDURE_PUBLIC_URL" in ended.stderr and "hush" not in ended.stderr


@pytest.mark.parametrize(
    "bad", ["h", "ftp://h", "//h", "http://", "http://a b", "http://a?b", "http://a#b", "http://ä"]
)
def test_a_public_url_that_is_no_plain_origin_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="PERDURE_PUBLIC_URL"):
        settings(PERDURE_PUBLIC_URL=bad)


def test_addresses_in_the_operators_settings_count_as_named() -> None:
    found = providers(
        PERDURE_EMBEDDINGS_BASE="http://127.0.0.1:11434/v1", PERDURE_OIDC_ISSUER="https://sso.corp.test",
        PERDURE_TRACE_ENDPOINT="http://collector:4318/v1/traces", OPENAI_BASE_URL="http://localhost:8000/v1",
        OLLAMA_API_BASE="http://10.0.0.9:11434", AZURE_OPENAI_ENDPOINT="https://models.corp.test",
        SOME_TOKEN="http://10.0.0.8", IDENTITY_ENDPOINT="http://169.254.129.2:8081/msi/token",
    )  # fmt: skip
    expected = {
        ("127.0.0.1", 11434), ("sso.corp.test", 443), ("collector", 4318), ("localhost", 8000), ("10.0.0.9", 11434),
        ("models.corp.test", 443),
    }  # fmt: skip
    assert {(each.host, each.port) for each in found.named} >= expected
    assert {"10.0.0.8", "169.254.129.2"}.isdisjoint(each.host for each in found.named)
    assert NamedHost("localhost", 8000, by_operator=True) in found.named


def test_no_line_below_the_level_is_written_even_by_an_earlier_logger(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        log_from(LogLevel.INFO)
        EARLY.debug("a vendor's words")
        EARLY.info("that it is ready")
    finally:
        structlog.reset_defaults()
    assert "vendor" not in (out := capsys.readouterr().out) and "ready" in out
