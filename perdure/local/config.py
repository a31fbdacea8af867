"""What one stack consists of, as a value: the data folder, the port, the commands, the environment they get.

Commands are data, so that a test starts a stack of its own small programs through the very same code.
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

from perdure.local.data_dir import StackError
from perdure.local.ports import HOST, http_post
from perdure.local.processes import Patience

# --- The addresses that a newcomer opens first, each with a code by which the browser is signed in.
# The two pages are given under two names of this machine. A browser keeps what a session has by the name, so that one
# browser can be the person who asks and the one who decides.

CODES = "/v1/auth/codes"


@dataclass(frozen=True, slots=True)
class Link:
    """A page of the stack."""

    label: str
    path: str
    """Where it is found without a code."""
    role: str = ""
    """The local user as whom it is opened; empty for a page that asks nobody who it is."""
    host: str = HOST
    purpose: str = ""
    """What a newcomer opens it for, and when."""

    @property
    def label_with_role(self) -> str:
        """The label, with the user as whom it is opened."""
        return f"{self.label} as {self.role}" if self.role else self.label


PAGES = (
    Link("Chat", "/chat", "requester", purpose="Open first: here you chat with the agents, as the requester."),
    Link(
        "Review",
        "/review",
        "reviewer",
        host="localhost",
        purpose="Open when a turn waits for an approval: the reviewer decides on it. The same browser can hold both.",
    ),
    Link("API docs", "/docs"),
)
"""Of a stack, beside the API's own address."""


def host_for(role: str) -> str:
    """The name of this machine under which this local user opens pages."""
    return next((link.host for link in PAGES if link.role == role), HOST)


async def addresses(links: Sequence[Link], port: int, tokens: Mapping[str, str]) -> list[tuple[str, str]]:
    """Label and address of each; without a code where the API gives none."""
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

ROOT = Path(__file__).parents[2]
"""Where the package `perdure` lies."""
BASE = ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()
"""Where `.env` and relative paths in settings lie: in a checkout its own folder, wherever a command is typed; where
Perdure is installed as a package, the current folder."""
STACK_ALONE = ("PERDURE_START_SECONDS", "PERDURE_HANG_SECONDS", "PERDURE_TEMPORAL_SYNCHRONOUS")
"""Variables that are read by this package only; perdure/settings.py reads the others."""
_DEFAULT_PORT = 8080
LEAST_FREE_BYTES = 128 << 20
"""Postgres writes its log in files of 16 MiB and ends when it cannot make one; a few of them, and room for the rest."""
_PYTHON = sys.executable
_COMPACT_QUEUES = ("turns", "llm")
_SPREAD_QUEUES = (*_COMPACT_QUEUES, "tools", "memory", "approvals")
_RELAY = ("perdure.worker.__main__",)
_SERVING = (*_RELAY, "perdure.worker.queues", "httpcore")
_WORKFLOWS = ("perdure.workflows.turn_run", "perdure.workflows.turn_wait", "perdure.workflows.tool_preview")


def own_environ() -> dict[str, str]:
    """This process's environment over what `.env` says, to be handed on to children; read here and nowhere else in
    this package."""
    written = {name: value for name, value in dotenv_values(BASE / ".env").items() if value}
    return {**written, **os.environ}


def home_of(environ: Mapping[str, str]) -> Path:
    """The data folder that PERDURE_HOME names; a relative one lies in BASE."""
    return (BASE / Path(environ.get("PERDURE_HOME") or ".perdure").expanduser()).absolute()


@dataclass(frozen=True, slots=True)
class Program:
    """One process of the program itself."""

    role: str
    """Its name in run.json."""
    command: tuple[str, ...]
    ready: Literal["http", "file"] = "file"
    """`http`: GET /readyz on the API's port answers 200; `file`: it writes the file named by PERDURE_READY_FILE."""
    imports: tuple[str, ...] = ()
    """What it shares with others: named, it is forked from the nursery, which has imported it."""


def default_programs(routing: Routing) -> tuple[Program, ...]:
    """The API, a worker for each queue that the routing uses, and the relay."""
    worker = (_PYTHON, "-m", "perdure.worker")
    queues = _SPREAD_QUEUES if routing == "spread" else _COMPACT_QUEUES
    serving = {queue: _SERVING if queue != "turns" else (*_SERVING, *_WORKFLOWS) for queue in queues}
    return (
        Program("worker-relay", (*worker, "--relay"), imports=_RELAY),
        *(Program(f"worker-{queue}", (*worker, "--queues", queue), imports=serving[queue]) for queue in queues),
        Program("api", (_PYTHON, "-m", "perdure.api"), ready="http", imports=("perdure.api.__main__",)),
    )


def shipped_apps() -> tuple[Path, ...]:
    """The examples that ship, as perdure/apps/folder.py finds them."""
    return tuple(sorted(path.parent for path in (ROOT / "perdure" / "examples").glob("*/agents") if path.is_dir()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig:
    """Everything `run_stack` needs."""

    home: Path
    """The data folder."""
    port: int = _DEFAULT_PORT
    """The API's port on 127.0.0.1."""
    environ: Mapping[str, str] = field(repr=False)
    """What the programs inherit, and where the replaced parts are named."""
    routing: Routing = "compact"
    app_dirs: tuple[Path, ...] = ()
    """The user's app folders."""
    examples: bool = False
    """Whether the examples that ship come beside them."""
    prepare: tuple[str, ...] | None = (_PYTHON, "-m", "perdure.apps.bootstrap")
    """Run once before the programs; its last line on stdout is JSON with the local tokens."""
    programs: tuple[Program, ...] = ()
    pages: tuple[Link, ...] = PAGES
    """What to print beside the API's own address."""
    command: str = "perdure"
    """How the command line is called where the stack was started."""
    drain_seconds: float = 30.0
    """How long a program may finish its work after SIGTERM."""
    patience: Patience = field(default_factory=Patience)
    """How long a slow part and a silent one are waited for."""
    least_free_bytes: int = LEAST_FREE_BYTES
    """What must be free on the disk of the data folder."""

    @classmethod
    def from_env(
        cls,
        app_dirs: Sequence[str | Path] = (),
        routing: str | None = None,
        examples: bool | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> "StackConfig":
        """The stack that PERDURE_HOME, PERDURE_PORT, PERDURE_APP, PERDURE_EXAMPLES and PERDURE_ROUTING describe.

        `app_dirs`, `routing` and `examples` replace their variables. Relative `app_dirs`, which were typed, lie in the
        current folder; relative folders in settings lie in BASE.

        Raises: StackError that names the variable to correct.
        """
        env = own_environ() if environ is None else dict(environ)
        named_routing = routing or env.get("PERDURE_ROUTING") or "compact"
        chosen = _ROUTINGS.get(named_routing)
        if chosen is None:
            raise StackError(f"PERDURE_ROUTING is {named_routing!r}; it must be one of {', '.join(_ROUTINGS)}")
        asked = _flag(env, "PERDURE_EXAMPLES")
        return cls(
            home=home_of(env),
            port=_port(env.get("PERDURE_PORT") or str(_DEFAULT_PORT)),
            environ=env,
            routing=chosen,
            app_dirs=_own_apps(env, app_dirs),
            examples=asked if examples is None else examples,
            programs=default_programs(chosen),
            patience=Patience.from_environ(env),
            least_free_bytes=least_free_bytes(env),
        )

    @property
    def apps(self) -> tuple[Path, ...]:
        """All app folders, those of the examples first, each once: their agents are published, and their services
        started."""
        found: dict[str, Path] = {}
        for folder in (*(shipped_apps() if self.examples else ()), *self.app_dirs):
            found.setdefault(os.path.realpath(folder), folder)
        return tuple(found.values())


def _own_apps(environ: Mapping[str, str], typed: Sequence[str | Path]) -> tuple[Path, ...]:
    """The folders that were typed, else those of PERDURE_APP.

    Raises: StackError for a folder that is no app.
    """
    written = [part for part in environ.get("PERDURE_APP", "").split(os.pathsep) if part]
    paths = [Path(part).expanduser() for part in typed] or [BASE / Path(part).expanduser() for part in written]
    apps = tuple(path.absolute() for path in paths)
    for app in apps:
        if not app.is_dir():
            raise StackError(f"the app folder {app} does not exist")
        if not (app / "agents").is_dir():
            missing = [name for name in ("agents/", "app.yaml") if not (app / name).exists()]
            why = f"{app} is no app folder: it has no {' and no '.join(missing)}"
            raise StackError(f"{why}; `perdure init NEW-FOLDER` writes one to start from")
    return apps


_FLAGS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}
"""As perdure/settings.py reads them."""


def _flag(environ: Mapping[str, str], name: str) -> bool:
    """Raises: StackError."""
    text = environ.get(name) or "false"
    if (found := _FLAGS.get(text.lower())) is None:
        raise StackError(f"{name} is {text!r}; it must be true or false")
    return found


def least_free_bytes(environ: Mapping[str, str]) -> int:
    """What must be free on the disk of the data folder, by PERDURE_LEAST_FREE_BYTES.

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
