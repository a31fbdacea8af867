"""The cluster on disk: made by initdb once, checked before each start, never touched when it is not ours.

Invariants: initdb works beside the final folder, which appears whole by renaming; a folder of another major version, or
that is no cluster, stays as it is; a lock file whose server is dead does not keep the next one from starting.
"""

import asyncio
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from local.credentials import Credentials
from local.errors import StackError
from local.home import Home, write_private
from local.postgres_user import PostgresLaunch, give_to
from local.roster import alive
from local.spawn import spawn
from local.wheels import POSTGRES_MAJOR

BOOTSTRAP = "bootstrap"
"""The cluster's superuser; the program never connects as it."""
_INITDB_SECONDS = 120.0


def check_cluster(folder: Path) -> bool:
    """Whether a cluster of our version is there; False when there is none yet.

    Raises: StackError for a foreign version or a folder that is no cluster; neither is touched.
    """
    version_file = folder / "PG_VERSION"
    if version_file.is_file():
        found = version_file.read_text().strip()
        if found != str(POSTGRES_MAJOR):
            raise StackError(
                f"{folder} was made by Postgres {found}, this Perdure runs Postgres {POSTGRES_MAJOR}: dump it with the "
                "old version, or set PERDURE_HOME to another folder; nothing was changed"
            )
        return True
    if folder.exists() and any(folder.iterdir()):
        raise StackError(f"{folder} is not a Postgres data folder; move it away; nothing was changed")
    return False


async def make_ready(home: Home, launch: PostgresLaunch, credentials: Credentials) -> None:
    """A whole cluster in `home.postgres`, owned by the user that will run it, with no lock of a dead server.

    Raises: StackError.
    """
    folder = home.postgres
    _password_file(folder).unlink(missing_ok=True)  # of an initdb that was killed
    if not check_cluster(folder):
        await _initdb(folder, launch, credentials)
    try:
        give_to(folder, launch.owner())
    except OSError as error:
        raise StackError(f"{folder} belongs to another user and cannot be taken over: {error.strerror}") from error
    clear_stale_lock(folder)


def clear_stale_lock(folder: Path) -> None:
    """Remove postmaster.pid when its process is no server of this folder.

    Postgres itself only asks whether *some* process has that pid: after a reboot, in a container above all, that is
    often a stranger, and so is a zombie that nobody reaps. The caller holds the data folder and has swept it.

    Raises: StackError when a server of this very folder is running.
    """
    lock = folder / "postmaster.pid"
    try:
        pid = int(lock.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return
    process = alive(pid)
    works_in: Path | None = None
    with suppress(psutil.Error):  # another user's process, or gone by now; either way not ours
        works_in = Path(process.cwd()) if process is not None else None
    if works_in == folder.resolve():
        raise StackError(f"a Postgres server (pid {pid}) is already running on {folder}; stop it first")
    lock.unlink(missing_ok=True)


def clean_environ() -> dict[str, str]:
    """A clean one: PGDATA, PGPORT and their like in the caller's environment would change the server."""
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
        fresh.replace(folder)  # where an empty folder is, it is replaced
    finally:
        password_file.unlink(missing_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)


def telling(lines: list[str]) -> str:
    """The line that says most; the first ones only greet."""
    for word in ("no space left", "error", "fatal", "panic", "could not"):
        found = next((line for line in lines if word in line.lower()), None)
        if found is not None:
            return found
    return lines[-1] if lines else "it said nothing"


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
        raise StackError(f"initdb failed: {telling(output.splitlines())}")
