"""The data folder: made, checked, held by one."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.local.data_dir import AlreadyRunning, StackError, hold, its_own, open_home, write_private


def test_a_private_file_is_replaced_whole_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["secrets.json"]


def test_a_private_file_is_written_over_the_rest_of_an_interrupted_one(tmp_path: Path) -> None:
    (tmp_path / "run.json.new").write_text("half a fi")
    write_private(tmp_path / "run.json", "{}")
    assert (tmp_path / "run.json").read_text() == "{}"


def test_the_data_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    home = open_home(tmp_path / "deep" / "home")
    assert home.log("api").parent.is_dir()
    assert home.ready_file("api").parent.is_dir()
    others_may_read = stat.S_IMODE(home.root.stat().st_mode) & 0o044
    assert not others_may_read


@pytest.mark.parametrize("below", [".", "home"])
def test_a_data_folder_that_is_a_file_or_in_one_is_one_clear_line(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StackError) as caught:
        open_home(tmp_path / "file" / below)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "file" / below) in str(caught.value) and "PERDURE_HOME" in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="needs a folder that even root cannot write in (/proc)")
def test_a_read_only_file_system_is_one_clear_line() -> None:
    with pytest.raises(StackError, match="/proc/perdure"):
        open_home(Path("/proc/perdure"))


def test_a_second_holder_is_told_where_the_first_one_runs(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    home.run_file.write_text(json.dumps({"api": "http://127.0.0.1:9999"}))
    with hold(home), pytest.raises(AlreadyRunning, match=r"http://127\.0\.0\.1:9999") as caught, hold(home):
        pass
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", "null"])
def test_a_second_holder_is_refused_whatever_run_json_says(tmp_path: Path, content: str | None) -> None:
    home = open_home(tmp_path)
    if content is not None:
        home.run_file.write_text(content)
    with hold(home), pytest.raises(AlreadyRunning, match=str(tmp_path)), hold(home):
        pass


def test_the_folder_is_free_again_after_its_holder_was_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom perdure.local.data_dir import hold, open_home\n"
        "with hold(open_home(Path(sys.argv[1]))):\n    os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=root, env=dict(os.environ), check=False)
    assert done.returncode == -9
    with hold(open_home(tmp_path)):
        pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "{}/pg/PG_VERSION"), "Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device", b"{}/valkey"), "No space left on device"),
    ],
)
def test_what_the_file_system_refuses_in_the_data_folder_is_one_clear_line(
    tmp_path: Path, error: OSError, reason: str
) -> None:
    where = os.fsdecode(error.filename).format(tmp_path)
    with pytest.raises(StackError) as caught, its_own(tmp_path):
        raise type(error)(error.errno, error.strerror, where)
    assert all(part in str(caught.value) for part in (where, str(tmp_path), reason))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "none", "/elsewhere/x"), ConnectionError("refused")])
def test_trouble_elsewhere_is_not_laid_at_the_data_folders_door(tmp_path: Path, error: OSError) -> None:
    with pytest.raises(type(error)), its_own(tmp_path):
        raise error
