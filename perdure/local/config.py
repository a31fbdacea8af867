"""The configuration of one stack: the data folder, the port, the commands and their environment.

Commands are data, so that a test can start a stack of small programs with the same code.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dotenv import dotenv_values

from perdure.core.faults import ENV_FILE_ADVICE, check_env_file, file_fault
from perdure.core.text import is_clean
from perdure.local.data_dir import StackError
from perdure.local.ports import HOST, http_post
from perdure.local.processes import TimeLimits

CODES = "/v1/auth/codes"
ROOT = Path(__file__).parents[2]
"""The folder that contains the package `perdure`."""
BASE = ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()
"""The base of `.env` and of relative paths in settings. In a checkout it is the checkout's folder, whatever the current
folder is; for an installed package, it is the current folder."""
STACK_ALONE = ("PERDURE_START_SECONDS", "PERDURE_TEMPORAL_SYNCHRONOUS")
"""Variables that only this package reads; perdure/settings.py reads the others."""
_DEFAULT_PORT = 8080
LEAST_FREE_BYTES = 128 << 20
"""Postgres writes its log in files of 16 MiB and stops if it cannot create one; room for a few of them and the rest."""
_PYTHON = sys.executable
_COMPACT_QUEUES = ("turns", "llm")
_SPREAD_QUEUES = (*_COMPACT_QUEUES, "tools", "memory", "approvals")
_RELAY = ("perdure.worker.__main__",)
_SERVING = (*_RELAY, "perdure.worker.queues", "httpcore")
_WORKFLOWS = ("perdure.workflows.turn_run", "perdure.workflows.turn_wait", "perdure.workflows.tool_preview")
_FLAGS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}
"""Parses the value as perdure/settings.py does."""


@dataclass(frozen=True, slots=True)
class Link:
    """A page of the stack. A newcomer opens these pages first, each with a code that signs the browser in. The two
    pages use two names of this machine. A browser stores a session by the name, so that one browser can be the
    requester and the reviewer."""

    label: str
    path: str
    """Its path without a code."""
    role: str = ""
    """The local user that is signed in; empty for a page without sign-in."""
    host: str = HOST
    purpose: str = ""
    """The page's purpose, for a new user."""

    @property
    def label_with_role(self) -> str:
        """The label of the link and the role of the user that it signs in."""
        return f"{self.label} as {self.role}" if self.role else self.label


PAGES = (
    Link("Chat", "/chat", "requester", purpose="Start here: chat with the agents, as the requester."),
    Link(
        "Review",
        "/review",
        "reviewer",
        host="localhost",
        purpose="Open when a turn waits for an approval: the reviewer decides. One browser can be signed in as both.",
    ),
    Link("API docs", "/docs"),
)
"""The pages of a stack, in addition to the API's own address."""


def host_for(role: str) -> str:
    """Returns the name of this machine under which this local user opens pages."""
    return next((link.host for link in PAGES if link.role == role), HOST)


async def addresses(links: Sequence[Link], port: int, tokens: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns label and address of each page, without a code if the API returns none."""
    return [(link.label_with_role, await _address(link, port, tokens.get(link.role, ""))) for link in links]


async def _address(link: Link, port: int, token: str) -> str:
    base = f"http://{link.host}:{port}"
    code = await _code(port, token) if token else ""
    return f"{base}/sign-in?code={code}" if code else base + link.path


async def _code(port: int, token: str) -> str:
    answer = await http_post(HOST, port, CODES, token)
    if answer is None or answer[0] != 201:
        return ""
    try:
        return str(json.loads(answer[1])["code"])
    except (ValueError, KeyError, TypeError):
        return ""


Routing = Literal["compact", "spread"]
_ROUTINGS: dict[str, Routing] = {"compact": "compact", "spread": "spread"}


def own_environ() -> dict[str, str]:
    """Returns this process's environment over the values of `.env`, to pass on to children. Only this function of the
    package reads them.

    Raises: StackError if `.env` cannot be read, or if a value cannot be passed on.
    """
    path = BASE / ".env"
    try:
        if path.exists() or path.is_symlink():
            check_env_file(path.read_text("utf-8"))
        from_file = {name: value for name, value in dotenv_values(path).items() if value}
    except (OSError, ValueError) as error:
        raise StackError(file_fault(path, error, ENV_FILE_ADVICE)) from None
    environ = {**from_file, **os.environ}
    for name, value in environ.items():
        if "\0" in value or (name.startswith("PERDURE_") and not is_clean(value)):
            raise StackError(f"{name} contains a NUL character or is not UTF-8 text; correct it")
    return environ


def home_of(environ: Mapping[str, str]) -> Path:
    """Returns the data folder in PERDURE_HOME; a relative path is below BASE."""
    return (BASE / Path(environ.get("PERDURE_HOME") or ".perdure").expanduser()).absolute()


@dataclass(frozen=True, slots=True)
class Program:
    """One process of the program itself."""

    role: str
    """Its name in run.json."""
    command: tuple[str, ...]
    ready: Literal["http", "file"] = "file"
    """`http`: GET /readyz on the API's port returns 200; `file`: it writes the file in PERDURE_READY_FILE."""
    imports: tuple[str, ...] = ()
    """The imports that it shares with others: if set, it is forked from the fork server, which has imported them."""


def default_programs(routing: Routing) -> tuple[Program, ...]:
    """Returns the API, a worker for each queue that the routing uses, and the relay."""
    worker = (_PYTHON, "-m", "perdure.worker")
    queues = _SPREAD_QUEUES if routing == "spread" else _COMPACT_QUEUES
    serving = {queue: _SERVING if queue != "turns" else (*_SERVING, *_WORKFLOWS) for queue in queues}
    return (
        Program("worker-relay", (*worker, "--relay"), imports=_RELAY),
        *(Program(f"worker-{queue}", (*worker, "--queues", queue), imports=serving[queue]) for queue in queues),
        Program("api", (_PYTHON, "-m", "perdure.api"), ready="http", imports=("perdure.api.__main__",)),
    )


def shipped_apps() -> tuple[Path, ...]:
    """Returns the bundled examples, as perdure/apps/folder.py finds them."""
    return tuple(sorted(path.parent for path in (ROOT / "perdure" / "examples").glob("*/agents") if path.is_dir()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig:
    """The input of `run_stack`."""

    home: Path
    """The data folder."""
    port: int = _DEFAULT_PORT
    """The API's port on 127.0.0.1."""
    environ: Mapping[str, str] = field(repr=False)
    """The environment for the programs, which also names the replaced parts."""
    routing: Routing = "compact"
    app_dirs: tuple[Path, ...] = ()
    """The user's app folders."""
    examples: bool = False
    """Publishes the agents of the bundled examples too."""
    prepare: tuple[str, ...] | None = (_PYTHON, "-m", "perdure.apps.bootstrap")
    """Runs once before the programs; its last line on stdout is JSON with the local tokens."""
    programs: tuple[Program, ...] = ()
    pages: tuple[Link, ...] = PAGES
    """Pages to print in addition to the API's own address."""
    command: str = "perdure"
    """The name of the command with which the stack was started."""
    public_url: str = ""
    """The address that users open, if it is not the API's own."""
    drain_seconds: float = 30.0
    """Seconds that a program has to finish its work after SIGTERM."""
    limits: TimeLimits = field(default_factory=TimeLimits)
    """The time limits for slow and silent parts."""
    least_free_bytes: int = LEAST_FREE_BYTES
    """Bytes that must be free on the disk of the data folder."""

    @classmethod
    def from_env(
        cls,
        app_dirs: Sequence[str | Path] = (),
        routing: str | None = None,
        examples: bool | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> "StackConfig":
        """Returns the stack that PERDURE_HOME, PERDURE_PORT, PERDURE_APP, PERDURE_EXAMPLES and PERDURE_ROUTING
        describe.

        `app_dirs`, `routing` and `examples` replace their variables. Relative `app_dirs` from the command line are
        below the current folder; relative folders in settings are below BASE.

        Raises: StackError that names the variable to correct.
        """
        env = own_environ() if environ is None else dict(environ)
        named_routing = routing or env.get("PERDURE_ROUTING") or "compact"
        chosen = _ROUTINGS.get(named_routing)
        if chosen is None:
            raise StackError(f"PERDURE_ROUTING is {named_routing!r}; it must be one of {', '.join(_ROUTINGS)}")
        wants_examples = _flag(env, "PERDURE_EXAMPLES")
        return cls(
            home=home_of(env),
            port=_port(env.get("PERDURE_PORT") or str(_DEFAULT_PORT)),
            environ=env,
            routing=chosen,
            app_dirs=_user_apps(env, app_dirs),
            examples=wants_examples if examples is None else examples,
            programs=default_programs(chosen),
            limits=TimeLimits.from_environ(env),
            least_free_bytes=least_free_bytes(env),
        )

    @property
    def apps(self) -> tuple[Path, ...]:
        """Returns all app folders, those of the examples first, each once: their agents are published and their
        services started."""
        by_path: dict[str, Path] = {}
        for folder in (*(shipped_apps() if self.examples else ()), *self.app_dirs):
            by_path.setdefault(os.path.realpath(folder), folder)
        return tuple(by_path.values())


def _user_apps(environ: Mapping[str, str], app_dirs: Sequence[str | Path]) -> tuple[Path, ...]:
    """Returns the folders from the command line, or else those of PERDURE_APP.

    Raises: StackError for a folder that is not an app.
    """
    configured = [part for part in environ.get("PERDURE_APP", "").split(os.pathsep) if part]
    paths = [Path(part).expanduser() for part in app_dirs] or [BASE / Path(part).expanduser() for part in configured]
    apps = tuple(path.absolute() for path in paths)
    for app in apps:
        if not app.is_dir():
            raise StackError(f"the app folder {app} does not exist")
        if not (app / "agents").is_dir():
            missing = [name for name in ("agents/", "app.yaml") if not (app / name).exists()]
            why = f"{app} is not an app folder: it has no {' and no '.join(missing)}"
            raise StackError(f"{why}; `perdure init NEW-FOLDER` creates one")
    return apps


def _flag(environ: Mapping[str, str], name: str) -> bool:
    """Parses the value.

    Raises: StackError.
    """
    text = environ.get(name) or "false"
    if (value := _FLAGS.get(text.lower())) is None:
        raise StackError(f"{name} is {text!r}; it must be true or false")
    return value


def least_free_bytes(environ: Mapping[str, str]) -> int:
    """Returns the bytes that must be free on the disk of the data folder, from PERDURE_LEAST_FREE_BYTES.

    Raises: StackError.
    """
    text = environ.get("PERDURE_LEAST_FREE_BYTES") or str(LEAST_FREE_BYTES)
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise StackError(f"PERDURE_LEAST_FREE_BYTES is {text!r}; it must be a number of bytes")
    return int(text)


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65_536:
        raise StackError(f"PERDURE_PORT is {text!r}; it must be a port number")
    return int(text)
