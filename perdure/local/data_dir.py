"""The data folder: the paths of one stack, and the lock of its supervisor.

Invariants: there is one supervisor at a time (an flock, so a killed holder releases it). Every file with a secret has
mode 0600 and is replaced as a whole, never written in place.
"""

import fcntl
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from perdure.core.faults import file_fault, named_texts

_CREATED = ("logs", "ready", "companions")
_OTHER_FOLDERS = ("uploads", "pg", "valkey", "temporal-ui")
_FILES = ("lock", "run.json", "ports.json", "children.json", "secrets.json", "temporal.db")
_WRONG_KIND = dict.fromkeys((FileExistsError, IsADirectoryError, NotADirectoryError), "; move it away")
_CLUSTER = "cluster"
"""The entry of `secrets.json` that is not a password: it records that these are the passwords of a created cluster."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """Paths inside one data folder (`PERDURE_HOME`)."""

    root: Path

    @property
    def run_file(self) -> Path:
        """`run.json`: addresses, pids and tokens while the stack is up."""
        return self.root / "run.json"

    @property
    def secrets_file(self) -> Path:
        return self.root / "secrets.json"

    @property
    def ports_file(self) -> Path:
        return self.root / "ports.json"

    @property
    def registry_file(self) -> Path:
        """The processes that this stack started, so that the next start can end leftovers."""
        return self.root / "children.json"

    @property
    def postgres(self) -> Path:
        return self.root / "pg"

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    @property
    def temporal_db(self) -> Path:
        return self.root / "temporal.db"

    @property
    def logs(self) -> Path:
        """The folder of the log files, one for each part."""
        return self.root / "logs"

    def log(self, role: str) -> Path:
        """The file with all output of one child, including lines that the terminal did not show."""
        return self.logs / f"{role}.log"

    def ready_file(self, role: str) -> Path:
        """Written by a worker when it polls."""
        return self.root / "ready" / role

    @property
    def setup_code_file(self) -> Path:
        """The code with which the first user registers; the API removes it when it is used (perdure/settings.py)."""
        return self.root / "setup.code"

    @property
    def gate_file(self) -> Path:
        """Written when everything that the programs need is available; until then they import and wait."""
        return self.root / "ready" / "gate"

    def service(self, name: str) -> Path:
        """An app service's own data. Perdure reads only the token that it created there."""
        return self.root / "companions" / name


def open_home(root: Path) -> DataDir:
    """Returns the data folder, created if it is missing.

    Raises: StackError if it is not writable, or if a file in it should be a folder or the other way round.
    """
    home = DataDir(root.absolute())
    if home.root.exists() and not home.root.is_dir():
        raise StackError(f"the data folder {home.root} is a file; set PERDURE_HOME to a folder")
    try:
        if not home.root.is_dir():
            # Postgres refuses to run as root, so root's folder lets another user pass through to `pg`, which is 0700.
            home.root.mkdir(parents=True, mode=0o711 if os.geteuid() == 0 else 0o700)
        with tempfile.TemporaryFile(dir=home.root):
            pass
    except OSError as error:
        raise StackError(
            f"cannot write in the data folder {home.root}: {error.strerror}; set PERDURE_HOME to a folder you own"
        ) from error
    for name in (*_CREATED, *_OTHER_FOLDERS):
        _check_kind(home.root / name, "folder", Path.is_dir)
    for name in _FILES:
        _check_kind(home.root / name, "file", Path.is_file)
    with folder_errors(home.root):
        for name in _CREATED:
            (home.root / name).mkdir(mode=0o700, exist_ok=True)
    return home


def _check_kind(path: Path, kind: str, is_kind: Callable[[Path], bool]) -> None:
    if not is_kind(path) and (path.exists() or path.is_symlink()):
        raise StackError(f"{path} is not a {kind}; move it away, and restore the {kind} if there is a backup")


@contextmanager
def folder_errors(root: Path) -> Iterator[None]:
    """Turns every file system error in the data folder into one clear line: files of another user after a run as root,
    or a full disk.

    Raises: StackError.
    """
    root = root.absolute()
    try:
        yield
    except OSError as error:
        path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes | Path) else None
        if path is None or not path.is_relative_to(root):
            raise
        owner_advice = "; make this user the owner of the whole folder, or set PERDURE_HOME to another folder"
        advice = owner_advice if isinstance(error, PermissionError) else _WRONG_KIND.get(type(error), "")
        raise StackError(f"cannot use {path} in the data folder {root}: {error.strerror}{advice}") from error


@contextmanager
def lock_home(home: DataDir) -> Iterator[None]:
    """Makes this process the only supervisor of the folder until the block or the process ends.

    Raises: AlreadyRunning, with the address of the running one; StackError.
    """
    with folder_errors(home.root):
        descriptor = os.open(home.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(_running_message(home)) from None
        yield
    finally:
        os.close(descriptor)


def _running_message(home: DataDir) -> str:
    api = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        api = json.loads(home.run_file.read_text())["api"]
    if api:
        return f"already running at {api} (data folder {home.root}); stop it with Ctrl-C in its terminal"
    return f"another stack is starting or stopping in {home.root}; wait for it, or set PERDURE_HOME to another folder"


def write_private(path: Path, text: str) -> None:
    """Replaces the content of `path` with `text` in one step, readable only by its owner. It survives a power cut after
    the return."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Syncs the folder, which makes new names in it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StackError(Exception):
    """The stack cannot start or continue. The message is the one line that the operator sees. It always names the next
    step."""

    exit_code = 1
    """The exit code of the command line."""


class AlreadyRunning(StackError):
    """Another supervisor holds this data folder."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Credentials:
    """One password for each role that logs in to an embedded part. Passwords are generated once, stored in
    `secrets.json`, and never on a command line, because every user of the machine can read command lines (`ps`). So
    passwords are passed in files of mode 0600 and in the environment of the processes that need them."""

    bootstrap: str
    """The cluster's superuser; only the prepare step uses it."""
    owner: str
    """`perdure_owner`, which runs migrations."""
    app: str
    """`perdure_app`, used at run time under row-level security."""
    relay: str
    """`perdure_relay`, which claims outbox rows."""
    valkey: str

    def __repr__(self) -> str:
        return "Credentials(hidden)"


def load_credentials(home: DataDir, *, needs_cluster: bool = False) -> Credentials:
    """Returns the stored passwords, or new ones for a new folder, and records whether their cluster exists.

    Raises: StackError if the file is unreadable, or if it or the superuser's password is missing although their cluster
    exists. With `needs_cluster`, also if the cluster is missing although an earlier start created it.
    """
    path = home.secrets_file
    stored: dict[str, str] = {}
    has_cluster = (home.postgres / "PG_VERSION").exists()
    if path.exists():
        try:
            stored = named_texts(path.read_text("utf-8"))
            if has_cluster and not stored.get("bootstrap"):  # the prepare step can set the others again
                raise ValueError(f"it has no password `bootstrap` for the database in {home.postgres}")
        except (OSError, ValueError) as error:
            raise StackError(file_fault(path, error, "restore its last good copy")) from error
    elif has_cluster:
        raise StackError(
            f"{path} is missing, but its database exists in {home.postgres}; restore the file from a backup, "
            f"or move {home.root} away to start without data"
        )
    created = has_cluster or _CLUSTER in stored
    # An older secrets.json lacks the entry `_CLUSTER`; then Postgres's log shows that the cluster existed.
    if needs_cluster and not has_cluster and (created or home.log("postgres").exists()):
        raise StackError(
            f"the database folder {home.postgres} is missing or empty, but an earlier start created it; restore it "
            f"from a backup, or move {home.root} away to start without data"
        )
    names = [field.name for field in fields(Credentials)]
    # No leading dash: a password that looks like an option causes errors when it is typed by hand.
    credentials = Credentials(**{name: stored.get(name) or "k" + secrets.token_urlsafe(24) for name in names})
    content = {**asdict(credentials), **({_CLUSTER: home.postgres.name} if created else {})}
    if content != stored:
        write_private(path, json.dumps(content, indent=2) + "\n")
    return credentials


@dataclass(frozen=True, slots=True)
class RunFile:
    """The part of run.json that stays the same while the stack is up. run.json has the addresses while the stack is up,
    for the command line, the demo and outside checks. Invariants: mode 0600, because it contains tokens;
    replaced as a whole; it exists from the moment that everything is healthy until everything has ended."""

    path: Path
    addresses: Mapping[str, str | None]
    """`api`, `temporal`, `temporal_ui`, `temporal_metrics`, `postgres`, `redis`."""
    tokens: Mapping[str, str] = field(repr=False)
    companions: Mapping[str, str]
    supervisor_pid: int
    routing: str
    left_out: Sequence[str] = ()
    """Lines about agents that are left out, with the reasons."""
    setup_code_file: Path | None = None
    """Contains the setup code until it is used."""

    def write(self, pids: Mapping[str, int], ready: list[str], ports: Mapping[str, int]) -> None:
        """Writes it with the live processes, those of them that are ready, and every open port."""
        content: dict[str, object] = {
            **self.addresses,
            "pids": dict(pids),
            "tokens": dict(self.tokens),
            "ready": ready,
            "ports": dict(ports),
            "companions": dict(self.companions),
            "supervisor": self.supervisor_pid,
            "routing": self.routing,
            "left_out": [*self.left_out],
        }
        if code := self._setup_code():
            content["setup_code"] = code
        write_private(self.path, json.dumps(content, indent=2) + "\n")

    def _setup_code(self) -> str:
        try:
            return self.setup_code_file.read_text().strip() if self.setup_code_file else ""
        except FileNotFoundError:
            return ""

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
