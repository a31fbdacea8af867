"""Where the keys of the audit and of access tokens come from: the environment, or a file made once."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.apps.bootstrap import _create_key, _stored_tokens
from perdure.settings import ACCESS_KEY_FILE, AUDIT_KEY_FILE, Settings

KEY = "given by the environment of this test"
BOTH = pytest.mark.parametrize(
    ("variable", "file", "read"),
    [("PERDURE_AUDIT_KEY", AUDIT_KEY_FILE, Settings.keyring), ("JWT_SECRET", ACCESS_KEY_FILE, Settings.access_keys)],
)
Read = Callable[[Settings], Any]
TWICE = f'{{"requester": "{"x" * 40}", "admin": "{"x" * 40}"}}'


def settings(home: Path, **given: str) -> Settings:
    return Settings(_env_file=None, PERDURE_HOME=str(home), **given)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def without_the_keys_of_all_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_AUDIT_KEY")
    monkeypatch.delenv("JWT_SECRET")


@BOTH
def test_a_local_key_is_made_once_and_for_its_owner_alone(tmp_path: Path, variable: str, file: str, read: Read) -> None:
    path = tmp_path / "home" / file
    _create_key(path)
    first = read(settings(path.parent))
    _create_key(path)
    assert read(settings(path.parent)) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [file]
    _create_key(tmp_path / "other" / file)
    assert read(settings(tmp_path / "other")) != first


@BOTH
def test_the_environment_overrides_the_key_file(tmp_path: Path, variable: str, file: str, read: Read) -> None:
    _create_key(tmp_path / file)
    given = settings(tmp_path, **{variable: KEY})
    assert read(given).keys[0].secret == KEY.encode()
    assert KEY not in repr(given)


@BOTH
def test_a_missing_weak_or_unreadable_key_is_named(tmp_path: Path, variable: str, file: str, read: Read) -> None:
    with pytest.raises(SystemExit, match=variable):
        read(settings(tmp_path))
    with pytest.raises(SystemExit, match="32"):
        read(settings(tmp_path, **{variable: "weak"}))
    (tmp_path / file).mkdir()
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / file).write_text("weak")
    for home in (tmp_path, tmp_path / "short"):
        with pytest.raises(SystemExit, match=f"{file}.*{variable}"):
            read(settings(home))


@pytest.mark.parametrize(
    "text", ["{", "[]", "\udcff", '{"requester": 5}', TWICE, *(f'{{"admin": "{no}"}}' for no in ("a b", "ü", "eyJ.x"))]
)
def test_unreadable_tokens_are_not_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SystemExit, match=r"tokens\.json"):
        _stored_tokens(path)
    path.write_text('{"requester": "short", "admin": ""}')
    made = _stored_tokens(path)
    assert made == _stored_tokens(path)
    assert set(made) == {"requester", "reviewer", "admin"} and all(made.values()) and made["requester"] == "short"


def test_heads_are_kept_in_the_data_folder_or_the_named_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(tmp_path).heads_file() == tmp_path / "audit-heads.jsonl"
    monkeypatch.setenv("PERDURE_AUDIT_HEADS", os.fspath(tmp_path / "elsewhere.jsonl"))
    assert settings(tmp_path).writable_heads_file() == tmp_path / "elsewhere.jsonl"
    for unfit in (tmp_path, tmp_path / "elsewhere.jsonl" / "heads"):
        with pytest.raises(SystemExit, match=f"PERDURE_AUDIT_HEADS.*{unfit}:"):
            settings(tmp_path, PERDURE_AUDIT_HEADS=str(unfit)).writable_heads_file()
