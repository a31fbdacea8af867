"""`perdure up` refuses an address that would open the stack to everybody, or at which it would not find itself."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Perdure


@pytest.mark.parametrize(
    ("host", "named"), [("0.0.0.0", "PERDURE_PUBLIC_URL"), ("::", "PERDURE_PUBLIC_URL"), ("192.0.2.7", "127.0.0.1")]
)
def test_nothing_is_started_at_such_an_address(
    perdure: Perdure, home: Path, monkeypatch: pytest.MonkeyPatch, host: str, named: str
) -> None:
    monkeypatch.setenv("PERDURE_HOST", host)
    monkeypatch.delenv("PERDURE_PUBLIC_URL", raising=False)
    ended = perdure("up")
    assert ended.code != 0 and f"PERDURE_HOST={host}" in ended.err and named in ended.err
    assert "Traceback" not in ended.err and not list(home.iterdir()), "nothing was made in the data folder"


def test_an_unknown_routing_is_a_usage_error_that_names_the_choices(perdure: Perdure) -> None:
    ended = perdure("up", "--routing", "zz")
    assert ended.code == 2 and all(each in ended.err for each in ("--routing", "compact", "spread"))


def test_a_flag_that_is_none_is_one_line_that_names_it(perdure: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_EXAMPLES", "perhaps")
    ended = perdure("up")
    assert (ended.code, ended.out) == (1, "")
    assert "PERDURE_EXAMPLES" in ended.err and "perhaps" in ended.err and len(ended.err.splitlines()) == 1
