"""Where the audit's key comes from: the environment, or the file that a local stack makes once."""

import os
from pathlib import Path

import pytest

from prepare import _made
from settings import AUDIT_KEY_FILE, Settings

KEY = "given by the environment of this test"


def settings(home: Path, key: str = "") -> Settings:
    """Settings with this data folder."""
    given = {"PERDURE_HOME": str(home), "PERDURE_AUDIT_KEY": key}
    return Settings(_env_file=None, **given)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def without_the_key_of_all_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_AUDIT_KEY")


def test_the_key_of_a_local_stack_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "home" / AUDIT_KEY_FILE
    _made(path)
    first = settings(path.parent).keyring()
    _made(path)
    assert settings(path.parent).keyring() == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [AUDIT_KEY_FILE]
    _made(tmp_path / "other" / AUDIT_KEY_FILE)
    assert settings(tmp_path / "other").keyring() != first


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    _made(tmp_path / AUDIT_KEY_FILE)
    assert settings(tmp_path, KEY).keyring().keys[0].secret == KEY.encode()
    assert KEY not in repr(settings(tmp_path, KEY))


def test_a_process_without_a_key_ends_and_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="PERDURE_AUDIT_KEY is not set"):
        settings(tmp_path).keyring()
    with pytest.raises(SystemExit, match="32 characters at least"):
        settings(tmp_path, "weak").keyring()


def test_heads_are_kept_in_the_data_folder_or_where_one_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(tmp_path).heads_file() == tmp_path / "audit-heads.jsonl"
    monkeypatch.setenv("PERDURE_AUDIT_HEADS", os.fspath(tmp_path / "elsewhere.jsonl"))
    assert settings(tmp_path).heads_file() == tmp_path / "elsewhere.jsonl"
