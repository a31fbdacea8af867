"""Finds the address and the token for a command.

PERDURE_URL and PERDURE_TOKEN come first. Without them, run.json of the data folder contains the local stack's address
and its three tokens. A local token is never sent to any other address.
"""

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from perdure.cli.terminal import HOW_TO_START, OTHER, USAGE, fail
from perdure.client import ApiError, Client
from perdure.core.faults import header_fault
from perdure.core.text import without_userinfo
from perdure.local.config import ROOT, home_of, own_environ
from perdure.local.data_dir import DataDir
from perdure.local.processes import alive, running_children

T = TypeVar("T")
_EXAMPLE_URL = "http://127.0.0.1:8080"
MAX_LIMIT_WAIT_SECONDS, MAX_LIMIT_WAITS = 60.0, 10
"""Requests are counted per minute."""
RETRY_SECONDS = 10.0
"""Longer than the supervisor needs to restart a killed API (measured: 2 s, under load 5)."""


class Role(StrEnum):
    """The local users."""

    REQUESTER = "requester"
    REVIEWER = "reviewer"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Environment:
    """Settings from the environment and the data folder."""

    url: str | None
    token: str | None = field(repr=False)
    home: Path
    run: dict[str, Any] | None = field(repr=False)
    """The contents of run.json while a stack is up."""

    @classmethod
    def read(cls) -> "Environment":
        """Reads the current settings."""
        environ = own_environ()
        home = home_of(environ)
        return cls(environ.get("PERDURE_URL") or None, environ.get("PERDURE_TOKEN") or None, home, read_run(home))

    def unreachable_reason(self) -> str:
        """Returns why no stack is reachable, and what to do."""
        processes = running_children(DataDir(self.home).registry_file)
        if processes.supervisor is not None:
            return f"Perdure is starting or stopping (supervisor pid {processes.supervisor}); see its terminal"
        if not processes.children:
            return f"No stack is running on the data in {self.home}; start it as before, {HOW_TO_START}"
        running = ", ".join(f"{role} {pid}" for role, pid in processes.children.items())
        return f"The supervisor has exited, but these processes still run: {running}; `make up` stops them and restarts"


def read_run(home: Path) -> dict[str, Any] | None:
    """Reads run.json of a data folder. Returns None if no stack is up: a supervisor that was killed leaves its file
    behind."""
    try:
        run = json.loads((home / "run.json").read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(run, dict):
        return None
    supervisor = run.get("supervisor")
    return None if isinstance(supervisor, int) and alive(supervisor) is None else run


def connect(role: Role, as_name: str | None = None) -> Client:
    """Returns a client with the token of `role`, or of the local user `as_name` if the caller names one.

    Raises: typer.Exit, after a line that names the missing value.
    """
    environment = Environment.read()
    url = _api_url(environment)
    return Client(url, _token(environment, url, role, as_name), patience_seconds=RETRY_SECONDS)


def connect_to_register(*, as_local_admin: bool) -> Client:
    """Returns a client for a user without a token. If `as_local_admin` is set, it uses the local admin's token if there
    is one, so that the first user can register.

    Raises: typer.Exit, after a line that names the missing value.
    """
    environment = Environment.read()
    url = _api_url(environment)
    token = _local_tokens(environment, url).get(Role.ADMIN.value, "") if as_local_admin else ""
    return Client(url, token, patience_seconds=RETRY_SECONDS)


def send_within_limit(send: Callable[[], T]) -> T:
    """Returns the answer of `send`, for commands that read many pages. After a 429 it waits as long as `Retry-After`
    says, and sends again.

    Raises: ApiError if the API names no wait, or one of over `MAX_LIMIT_WAIT_SECONDS`, or after the last wait.
    """
    for _ in range(MAX_LIMIT_WAITS):
        try:
            return send()
        except ApiError as error:
            seconds = error.retry_after_seconds
            if error.status != HTTPStatus.TOO_MANY_REQUESTS or seconds is None or seconds > MAX_LIMIT_WAIT_SECONDS:
                raise
            time.sleep(seconds)
    return send()


def has_server() -> bool:
    """Returns whether a server is known: by PERDURE_URL, or because a stack of the data folder runs."""
    environment = Environment.read()
    return environment.url is not None or environment.run is not None


def _api_url(environment: Environment) -> str:
    if environment.url is not None and not _is_valid_url(environment.url):
        shown = without_userinfo(environment.url)
        expected = f"an http or https URL without a user name, such as {_EXAMPLE_URL}"
        raise fail(f"PERDURE_URL is {shown!r}; it must be {expected}", USAGE)
    url = environment.url or (environment.run or {}).get("api")
    if not isinstance(url, str) or not url:
        raise fail(environment.unreachable_reason(), OTHER)
    return url.rstrip("/")


def _is_valid_url(url: str) -> bool:
    """Returns whether both parsers of addresses, Python's and the client's, accept the URL, and it has no userinfo."""
    try:
        parts, parsed = urlsplit(url), httpx.URL(url)
        if parsed.userinfo:  # httpx would send it in place of the token
            return False
        return parts.scheme in ("http", "https") and bool(parsed.host) and (parts.port is None or parts.port > 0)
    except (ValueError, httpx.InvalidURL):
        return False


def _local_tokens(environment: Environment, url: str) -> dict[str, str]:
    """Returns local tokens by user name; empty if the address is not that of this data folder's stack."""
    run = environment.run or {}
    tokens = run.get("tokens")
    return tokens if isinstance(tokens, dict) and run.get("api") == url else {}


def _token(environment: Environment, url: str, role: Role, as_name: str | None) -> str:
    local_tokens = _local_tokens(environment, url)
    if as_name is not None:
        if as_name not in local_tokens:
            available = ", ".join(sorted(local_tokens)) or "none at this address; set PERDURE_TOKEN"
            raise fail(f"--as must name a local user; available: {available}", USAGE)
        return local_tokens[as_name]
    if environment.token is not None and (fault := header_fault(environment.token)):
        raise fail(f"PERDURE_TOKEN {fault}, so it is not a token; set it to the token alone", USAGE)
    token = environment.token or local_tokens.get(role.value)
    if token is None:
        raise fail(f"No token for {url}; set PERDURE_TOKEN", USAGE)
    return token


def command(*arguments: str) -> str:
    """Returns a command line to show, which works in the caller's folder."""
    environ = own_environ()
    environ["PERDURE_URL"] = without_userinfo(environ.get("PERDURE_URL", ""))
    checkout, installed = ROOT / "bin" / "perdure", Path(sys.executable).parent / "perdure"
    if not checkout.is_file():  # the default data folder of an installed package depends on the current folder
        environ = {"PERDURE_HOME": str(home_of(environ)), **environ}
    settings = [f"{name}={shlex.quote(environ[name])}" for name in ("PERDURE_HOME", "PERDURE_URL") if environ.get(name)]
    if shutil.which("perdure", path=_path_without_interpreter()):
        program = "perdure"
    elif checkout.is_file():
        program = "bin/perdure" if Path.cwd() == ROOT else shlex.quote(str(checkout))
    elif installed.is_file():
        program = shlex.quote(str(installed))
    else:
        program = f"{shlex.quote(sys.executable)} -m perdure"
    return " ".join([*settings, program, *map(shlex.quote, arguments)])


def _path_without_interpreter() -> str:
    """Returns PATH without this interpreter's folder, which `make` or a virtual environment adds for one shell only."""
    interpreter_folder = Path(sys.executable).parent
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(each for each in folders if each and Path(each).absolute() != interpreter_folder)
