"""Processes that an app needs beside the engine, declared in the app folder's `app.yaml`.

```yaml
companions:
  - name: payments
    command: [python, -m, payments]      # `python` is this interpreter; the working folder is the app folder
    port_env: PAYMENTS_PORT              # the free port it must listen on, on 127.0.0.1
    url_env: PAYMENTS_URL                # where the workers find it: http://127.0.0.1:<port>
    token_env: PAYMENTS_TOKEN            # optional: a random credential, the same for the companion and the workers
    ready_path: /healthz                 # optional: answers 200 when it is ready; without it an open port is enough
    env: {PAYMENTS_CURRENCY: EUR}        # optional
```
A companion that gives no answer on its `ready_path` for PERDURE_HANG_SECONDS is killed and started again. It gets the
caller's environment without any address of ours, its port, and `PERDURE_COMPANION_HOME`, a folder of its own below the
data folder: it stands for a system outside.
"""

import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from local.child import ChildSpec
from local.errors import StackError
from local.home import Home, write_private
from local.ports import HOST, PortBook
from local.probes import http_get, port_open
from local.spawn import is_stopped

STOP_RANK = 1


class Companion(BaseModel):
    """One declared process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")
    command: tuple[str, ...] = Field(min_length=1)
    port_env: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    url_env: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    token_env: str | None = Field(default=None, pattern=r"^[A-Z][A-Z0-9_]*$")
    ready_path: str | None = Field(default=None, pattern=r"^/")
    env: dict[str, str] = {}


class _AppFile(BaseModel):
    """The part of `app.yaml` that the stack reads; the rest belongs to others."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    companions: tuple[Companion, ...] = ()


def read_companions(app: Path) -> tuple[Companion, ...]:
    """What this app folder declares; none without an `app.yaml`.

    Raises: StackError that names the file and the field.
    """
    path = app / "app.yaml"
    if not path.is_file():
        return ()
    try:
        return _AppFile.model_validate(yaml.safe_load(path.read_text()) or {}).companions
    except yaml.YAMLError as error:
        raise StackError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise StackError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def read_all(apps: Sequence[Path]) -> list[tuple[Path, Companion]]:
    """The companions of all app folders, each with its folder.

    Raises: StackError as well when two have the same name or export the same URL.
    """
    found = [(app, companion) for app in apps for companion in read_companions(app)]
    for label, values in (
        ("name", [companion.name for _, companion in found]),
        ("url_env", [companion.url_env for _, companion in found]),
    ):
        doubled = sorted({value for value in values if values.count(value) > 1})
        if doubled:
            where = [str(app) for (app, _), value in zip(found, values, strict=True) if value == doubled[0]]
            raise StackError(
                f"two companions have the {label} {doubled[0]}, in the app folders {' and '.join(dict.fromkeys(where))}"
            )
    return found


def child_spec(home: Home, app: Path, companion: Companion, port: int, environ: Mapping[str, str]) -> ChildSpec:
    """The companion as a child, with a folder of its own for its data."""
    folder = _folder(home, companion)
    program, *arguments = companion.command

    async def ready(_pid: int) -> bool:
        if companion.ready_path is None:
            return await port_open(HOST, port)
        answer = await http_get(HOST, port, companion.ready_path)
        return answer is not None and answer[0] == 200

    async def lives(pid: int) -> bool:
        if companion.ready_path is None:
            return not is_stopped(pid)  # the kernel accepts connections for a stopped process, too
        return await http_get(HOST, port, companion.ready_path) is not None

    return ChildSpec(
        role=companion.name,
        command=(sys.executable if program == "python" else program, *arguments),
        environ={
            **environ,
            **companion.env,
            companion.port_env: str(port),
            **token_environ(home, companion),
            "PERDURE_COMPANION_HOME": str(folder),
            "PYTHONUNBUFFERED": "1",
        },
        cwd=app,
        log=home.log(companion.name),
        ready=ready,
        lives=lives,
        stop_steps=((signal.SIGTERM, 10.0),),
        stop_rank=STOP_RANK,
        detail=url(port),
    )


def token_environ(home: Home, companion: Companion) -> dict[str, str]:
    """The companion's credential by its variable, made once; empty where it declares none."""
    if companion.token_env is None:
        return {}
    path = _folder(home, companion) / "token"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32))
    return {companion.token_env: path.read_text().strip()}


def _folder(home: Home, companion: Companion) -> Path:
    folder = home.companion(companion.name)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def url(port: int) -> str:
    """Where the workers find the companion on this port."""
    return f"http://{HOST}:{port}"


def take_port(book: PortBook, companion: Companion) -> int:
    """The companion's port, the same at every start while it is free."""
    return book.take(f"companion-{companion.name}")
