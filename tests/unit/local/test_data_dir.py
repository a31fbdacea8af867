"""The data folder: made, checked, held by one; its passwords and run.json."""

import errno
import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from perdure.local import data_dir
from perdure.local.config import ROOT


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_is_replaced_atomically_and_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    path.chmod(0o644)
    (tmp_path / "run.json.new").write_text("half a file of an interrupted write")
    data_dir.write_private(path, "new")
    assert (path.read_text(), mode(path)) == ("new", 0o600)
    assert [*tmp_path.iterdir()] == [path]


def test_the_data_folder_is_created_with_its_parents(tmp_path: Path) -> None:
    home = data_dir.open_home(tmp_path / "deep" / "home")
    assert home.log("api").parent.is_dir() and home.ready_file("api").parent.is_dir()
    assert not mode(home.root) & 0o044, "others may not read it"


@pytest.mark.parametrize("below", [".", "home"])
def test_a_data_folder_at_or_below_a_file_is_reported_in_one_line(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(data_dir.StackError) as caught:
        data_dir.open_home(tmp_path / "file" / below)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "file" / below) in str(caught.value) and "PERDURE_HOME" in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["logs", "ready", "uploads", "pg", "lock", "temporal.db"])
def test_an_entry_of_the_wrong_kind_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir() if name in ("lock", "temporal.db") else path.touch()
    with pytest.raises(data_dir.StackError, match=f"^{path} "):
        data_dir.open_home(tmp_path)


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="needs a folder that even root cannot write in (/proc)")
def test_a_read_only_file_system_is_reported_in_one_line() -> None:
    with pytest.raises(data_dir.StackError, match="/proc/perdure"):
        data_dir.open_home(Path("/proc/perdure"))


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", "null", '{"api": "http://127.0.0.1:9999"}'])
def test_a_second_supervisor_is_rejected_with_the_address_of_the_first(tmp_path: Path, content: str | None) -> None:
    home = data_dir.open_home(tmp_path)
    if content is not None:
        home.run_file.write_text(content)
    with (
        data_dir.lock_home(home),
        pytest.raises(data_dir.AlreadyRunning, match=str(tmp_path)) as caught,
        data_dir.lock_home(home),
    ):
        pass
    assert caught.value.exit_code == 2
    assert ("http://127.0.0.1:9999" in str(caught.value)) is ("9999" in (content or ""))


def test_the_lock_is_released_when_its_holder_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom perdure.local.data_dir import lock_home, open_home\n"
        "with lock_home(open_home(Path(sys.argv[1]))):\n    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=False).returncode == -9
    with data_dir.lock_home(data_dir.open_home(tmp_path)):
        pass


@pytest.mark.parametrize("error", [
    PermissionError(errno.EACCES, "Permission denied", "{}/pg/PG_VERSION"),
    OSError(errno.ENOSPC, "No space left on device", b"{}/valkey"),
])  # fmt: skip
def test_a_file_system_error_in_the_data_folder_is_reported_in_one_line(tmp_path: Path, error: OSError) -> None:
    where = os.fsdecode(error.filename).format(tmp_path)
    with pytest.raises(data_dir.StackError) as caught, data_dir.folder_errors(tmp_path):
        raise type(error)(error.errno, error.strerror, where)
    assert all(part in str(caught.value) for part in (where, str(tmp_path), str(error.strerror)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "none", "/elsewhere/x"), ConnectionError("refused")])
def test_other_faults_are_not_attributed_to_the_data_folder(tmp_path: Path, error: OSError) -> None:
    with pytest.raises(type(error)), data_dir.folder_errors(tmp_path):
        raise error


def test_each_folder_has_its_own_private_passwords(tmp_path: Path) -> None:
    home = data_dir.open_home(tmp_path / "a")
    made = data_dir.load_credentials(home)
    assert made == data_dir.load_credentials(home) != data_dir.load_credentials(data_dir.open_home(tmp_path / "b"))
    assert mode(home.secrets_file) == 0o600
    values = json.loads(home.secrets_file.read_text()).values()
    assert len(set(values)) == 5 and all(len(value) >= 32 and value.isascii() for value in values)
    assert made.app not in repr(made)


def test_a_password_added_later_leaves_the_others_unchanged(tmp_path: Path) -> None:
    home = data_dir.open_home(tmp_path)
    before = data_dir.load_credentials(home)
    kept = json.loads(home.secrets_file.read_text())
    del kept["valkey"]
    home.secrets_file.write_text(json.dumps(kept))
    after = data_dir.load_credentials(home)
    assert after.valkey and replace(after, valkey=before.valkey) == before


@pytest.mark.parametrize("content", [None, "{ broken", "{}", '{"bootstrap": 5}', "[]"])
def test_a_lost_or_unreadable_secrets_file_is_reported_and_not_replaced(tmp_path: Path, content: str | None) -> None:
    home = data_dir.open_home(tmp_path)
    home.postgres.mkdir()
    (home.postgres / "PG_VERSION").write_text("18\n")
    if content is not None:
        home.secrets_file.write_text(content)
    with pytest.raises(data_dir.StackError, match=r"secrets\.json"):
        data_dir.load_credentials(home)
    assert (home.secrets_file.read_text() if home.secrets_file.exists() else None) == content
    home.secrets_file.unlink(missing_ok=True)
    home.secrets_file.mkdir()
    with pytest.raises(data_dir.StackError, match=r"secrets\.json"):
        data_dir.load_credentials(home)


@pytest.mark.parametrize("known_by", ["secrets.json", "logs/postgres.log"])
def test_a_lost_database_is_reported_and_not_recreated(tmp_path: Path, known_by: str) -> None:
    home = data_dir.open_home(tmp_path)
    data_dir.load_credentials(home, needs_cluster=True)
    home.postgres.mkdir()
    (home.postgres / "PG_VERSION").write_text("18\n")
    made = data_dir.load_credentials(home, needs_cluster=True)
    (home.postgres / "PG_VERSION").unlink()
    if known_by != home.secrets_file.name:  # as an earlier version left the folder
        home.secrets_file.write_text(json.dumps(asdict(made)))
        home.log("postgres").touch()
    with pytest.raises(data_dir.StackError, match=f"{home.postgres} .*{home.root} ") as caught:
        data_dir.load_credentials(home, needs_cluster=True)
    assert (caught.value.exit_code, data_dir.load_credentials(home)) == (1, made), "a replaced Postgres needs none"


def test_run_json_has_the_promised_keys_and_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    addresses = {"api": "http://a", "temporal": "t:1", "temporal_ui": "u", "postgres": "p", "redis": "r"}
    tokens = {"requester": "x", "reviewer": "y", "admin": "z"}
    code = tmp_path / "setup.code"
    run_file = data_dir.RunFile(tmp_path / "run.json", addresses, tokens, {}, 1, "compact", setup_code_file=code)

    def written() -> dict[str, object]:
        run_file.write({"api": 7}, ["api"], {"api": 18080})
        return dict(json.loads(run_file.path.read_text()))

    content = written()
    assert {**addresses, "pids": {"api": 7}, "tokens": tokens, "ports": {"api": 18080}}.items() <= content.items()
    assert mode(run_file.path) == 0o600 and "setup_code" not in content
    code.write_text("ABCD\n")
    assert written() == {**content, "setup_code": "ABCD"}
    code.unlink()
    assert written() == content
    run_file.remove()
    assert not run_file.path.exists()
