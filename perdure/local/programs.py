"""App services: processes that an app needs in addition to the engine, declared in the app folder's `app.yaml`.

```yaml
companions:
  - name: payments
    command: [python, -m, payments]      # `python` is this interpreter; the working folder is the app folder
    port_env: PAYMENTS_PORT              # the free port it must listen on, on 127.0.0.1
    url_env: PAYMENTS_URL                # its address for the workers: http://127.0.0.1:<port>
    token_env: PAYMENTS_TOKEN            # optional: a random token, the same for the app service and the workers
    ready_path: /healthz                 # optional: returns 200 when it is ready; without it an open port is enough
    env: {PAYMENTS_CURRENCY: EUR}        # optional
```

An app service that does not respond on its `ready_path` for PERDURE_HANG_SECONDS is killed and restarted. It gets the
caller's environment without Perdure's addresses, its port, and `PERDURE_COMPANION_HOME`, its own folder below the data
folder: it represents an external system.
"""

import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.core.calls.hangs import hang_file
from perdure.core.faults import file_fault
from perdure.local.child import ChildSpec
from perdure.local.config import ROOT, Program, StackConfig
from perdure.local.data_dir import DataDir, StackError, write_private
from perdure.local.ports import HOST, PortFile, heartbeat_probe, http_get, port_open
from perdure.local.processes import is_stopped

APP_SERVICE_STOP_RANK = 1
PROGRAM_STOP_RANK = 0


class AppService(BaseModel):
    """One declared app service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")
    command: tuple[str, ...] = Field(min_length=1)
    port_env: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    url_env: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    token_env: str | None = Field(default=None, pattern=r"^[A-Z][A-Z0-9_]*$")
    ready_path: str | None = Field(default=None, pattern=r"^/")
    env: dict[str, str] = {}


class _AppFile(BaseModel):
    """The part of `app.yaml` that the stack reads; other parts are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    companions: tuple[AppService, ...] = ()


def read_app_services(app: Path) -> tuple[AppService, ...]:
    """Returns the app services that this app folder declares; none without an `app.yaml`.

    Raises: StackError that names the file and the field.
    """
    path = app / "app.yaml"
    if not path.is_file():
        return ()
    try:
        return _AppFile.model_validate(yaml.safe_load(path.read_text("utf-8")) or {}).companions
    except (OSError, UnicodeDecodeError) as error:
        raise StackError(file_fault(path, error, "save it as UTF-8 text that this user can read")) from error
    except yaml.YAMLError as error:
        raise StackError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise StackError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def read_all_app_services(apps: Sequence[Path]) -> list[tuple[Path, AppService]]:
    """Returns the app services of all app folders, each with its folder.

    Raises: StackError, for example if two have the same name or export the same URL.
    """
    declared = [(app, service) for app in apps for service in read_app_services(app)]
    for label, values in (
        ("name", [service.name for _, service in declared]),
        ("url_env", [service.url_env for _, service in declared]),
    ):
        duplicates = sorted({value for value in values if values.count(value) > 1})
        if duplicates:
            folders = [str(app) for (app, _), value in zip(declared, values, strict=True) if value == duplicates[0]]
            raise StackError(
                f"two app services have the {label} {duplicates[0]}, in the app folders "
                f"{' and '.join(dict.fromkeys(folders))}"
            )
    return declared


def app_service_spec(home: DataDir, app: Path, service: AppService, port: int, environ: Mapping[str, str]) -> ChildSpec:
    """Returns the child for the app service, with its own folder for its data."""
    folder = _folder(home, service)
    program, *arguments = service.command

    async def ready(_pid: int) -> bool:
        if service.ready_path is None:
            return await port_open(HOST, port)
        answer = await http_get(HOST, port, service.ready_path)
        return answer is not None and answer[0] == 200

    async def responds(pid: int) -> bool:
        if service.ready_path is None:
            return not is_stopped(pid)  # the kernel accepts connections for a stopped process, too
        return await http_get(HOST, port, service.ready_path) is not None

    return ChildSpec(
        role=service.name,
        command=(sys.executable if program == "python" else program, *arguments),
        environ={
            **environ,
            **service.env,
            service.port_env: str(port),
            **token_environ(home, service),
            "PERDURE_COMPANION_HOME": str(folder),
            "PYTHONUNBUFFERED": "1",
        },
        cwd=app,
        log=home.log(service.name),
        ready=ready,
        responds=responds,
        stop_steps=((signal.SIGTERM, 10.0),),
        stop_rank=APP_SERVICE_STOP_RANK,
        ports=(port,),
        detail=f"{app_service_url(port)} (service of the app {app.name})",
    )


def token_environ(home: DataDir, service: AppService) -> dict[str, str]:
    """Returns the app service's token by its variable, created once; empty if it declares none.

    Raises: StackError if the file is unreadable.
    """
    if service.token_env is None:
        return {}
    path = _folder(home, service) / "token"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32))
    try:
        return {service.token_env: path.read_text("utf-8").strip()}
    except (OSError, UnicodeDecodeError) as error:
        raise StackError(file_fault(path, error, "move it away to create a new token")) from error


def _folder(home: DataDir, service: AppService) -> Path:
    folder = home.service(service.name)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def app_service_url(port: int) -> str:
    """Returns the app service's address for the workers on this port."""
    return f"http://{HOST}:{port}"


def take_port(port_file: PortFile, service: AppService) -> int:
    """Returns the app service's port, the same at every start while it is free."""
    return port_file.take(f"companion-{service.name}")


def environment(config: StackConfig, home: DataDir, data: Mapping[str, str], urls: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of every program: the addresses in `data`, the app services' `urls` and the stack's
    settings."""
    return {
        **data,
        **urls,
        "PERDURE_LOCAL": "1",
        "PERDURE_PORT": str(config.port),
        "PERDURE_HOME": str(home.root),
        "PERDURE_APP": os.pathsep.join(map(str, config.app_dirs)),
        "PERDURE_EXAMPLES": "true" if config.examples else "false",
        "PERDURE_ROUTING": config.routing,
        "PERDURE_START_GATE": str(home.gate_file),
        "PYTHONUNBUFFERED": "1",
    }


def note_kill(ready_file: Path, seconds: float) -> None:
    """Records for the next start that the process is killed, because it has not responded for `seconds`."""
    with suppress(OSError), hang_file(ready_file).open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(f"The supervisor killed it after {seconds:.0f} s without a response\n".encode())


def program_spec(config: StackConfig, home: DataDir, program: Program, environ: Mapping[str, str]) -> ChildSpec:
    """Returns the child for one program; it drains on SIGTERM."""
    ready_file = home.ready_file(program.role)

    async def answers(_pid: int) -> bool:
        answer = await http_get(HOST, config.port, "/readyz")
        return answer is not None and answer[0] == 200

    async def wrote_file(_pid: int) -> bool:
        return ready_file.exists()

    return ChildSpec(
        role=program.role,
        command=program.command,
        environ={**environ, "PERDURE_READY_FILE": str(ready_file)},
        cwd=ROOT,
        log=home.log(program.role),
        ready=answers if program.ready == "http" else wrote_file,
        responds=heartbeat_probe(ready_file),
        hung=partial(note_kill, ready_file),
        waits_for_others=lambda: not home.gate_file.exists(),
        stop_steps=((signal.SIGTERM, config.drain_seconds),),
        stop_rank=PROGRAM_STOP_RANK,
        ports=(config.port,) if program.ready == "http" else (),
        port_setting="PERDURE_PORT",
        before_start=lambda: ready_file.unlink(missing_ok=True),
        imports=program.imports,
        detail=f"http://{HOST}:{config.port}" if program.ready == "http" else "",
    )


def shared_imports(config: StackConfig) -> tuple[str, ...]:
    """Returns the modules that the fork server imports for the programs, each once, in the order in which they
    start."""
    return tuple(dict.fromkeys(module for program in config.programs for module in program.imports))


@dataclass(frozen=True, slots=True)
class BootstrapLine:
    """The last line of the prepare step."""

    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    left_out: tuple[str, ...] = ()
    """Lines about agents that are left out, with the reasons."""
    setup_code: str = field(default="", repr=False)
    """The code that registers the first user; empty once there are users."""
    setup_code_expires_at: datetime | None = None
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """If no app was requested: the agents that stay published, by app."""


def bootstrap_line_from(lines: list[str], log: Path) -> BootstrapLine:
    """Parses the prepare step's last line.

    Raises: StackError if it is not the expected JSON. The line itself is not repeated, because it may contain secrets.
    """
    try:
        fields = json.loads(lines[-1])
        tokens = {str(role): str(token) for role, token in dict(fields["tokens"]).items()}
        left_out = tuple(str(each) for each in fields.get("left_out", ()))
        kept = {str(app): tuple(map(str, agents)) for app, agents in dict(fields.get("kept", {})).items()}
        expires_at = fields.get("setup_code_expires_at")
        expires_at = datetime.fromisoformat(expires_at) if expires_at else None
        return BootstrapLine(tokens, left_out, str(fields.get("setup_code", "")), expires_at, kept)
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise StackError(f"prepare did not print its tokens as JSON (log: {log})") from error
