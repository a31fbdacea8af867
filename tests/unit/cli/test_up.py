"""`perdure up` refuses an address that would open the stack to everybody, or at which it would not find itself."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Perdure


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("0.0.0.0", "PERDURE_HOST=0.0.0.0 listens on all addresses; set PERDURE_PUBLIC_URL"),
        ("::", "PERDURE_HOST=:: listens on all addresses; set PERDURE_PUBLIC_URL"),
        ("192.0.2.7", "PERDURE_HOST=192.0.2.7 does not include 127.0.0.1, where `perdure up` looks for its API"),
    ],
)
def test_nothing_is_started_at_such_an_address(
    perdure: Perdure, home: Path, monkeypatch: pytest.MonkeyPatch, host: str, said: str
) -> None:
    monkeypatch.setenv("PERDURE_HOST", host)
    monkeypatch.delenv("PERDURE_PUBLIC_URL", raising=False)
    ended = perdure("up")
    assert ended.code != 0 and said in " ".join((ended.out + ended.err).split())
    assert "Traceback" not in ended.err and not list(home.iterdir()), "nothing was made in the data folder"


def test_a_flag_that_is_none_is_one_line_that_names_it(perdure: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_EXAMPLES", "perhaps")
    ended = perdure("up")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "PERDURE_EXAMPLES is 'perhaps'; it must be true or false\n"
