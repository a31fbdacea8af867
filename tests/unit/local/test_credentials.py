"""The passwords of the embedded parts."""

import json
import stat
from pathlib import Path

import pytest

from perdure.local.data_dir import StackError, load_credentials, open_home


def test_passwords_are_made_once_and_kept_for_their_owner_only(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    first, second = load_credentials(home), load_credentials(home)
    assert first == second
    assert stat.S_IMODE(home.secrets_file.stat().st_mode) == 0o600
    values = json.loads(home.secrets_file.read_text()).values()
    assert len(set(values)) == 5
    assert all(len(value) >= 32 and value.isascii() for value in values)


def test_two_folders_have_different_passwords(tmp_path: Path) -> None:
    one, other = load_credentials(open_home(tmp_path / "a")), load_credentials(open_home(tmp_path / "b"))
    assert one.app != other.app


def test_passwords_do_not_show_in_a_printed_value(tmp_path: Path) -> None:
    credentials = load_credentials(open_home(tmp_path))
    assert credentials.app not in repr(credentials)


def test_a_password_added_by_a_later_version_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    before = load_credentials(home)
    kept = json.loads(home.secrets_file.read_text())
    del kept["valkey"]
    home.secrets_file.write_text(json.dumps(kept))
    after = load_credentials(home)
    assert (after.app, after.owner) == (before.app, before.owner)
    assert after.valkey


def test_a_lost_secrets_file_beside_a_cluster_is_one_clear_line_and_changes_nothing(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    home.postgres.mkdir()
    (home.postgres / "PG_VERSION").write_text("18\n")
    with pytest.raises(StackError, match=r"secrets\.json"):
        load_credentials(home)
    assert not home.secrets_file.exists()


def test_an_unreadable_secrets_file_is_one_clear_line_and_stays(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    home.secrets_file.write_text("{ broken")
    with pytest.raises(StackError, match=r"secrets\.json"):
        load_credentials(home)
    assert home.secrets_file.read_text() == "{ broken"
