"""The program's own processes as children: their environment, their readiness, their drain; and the prepare step."""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from local.child import ChildSpec
from local.config import ROOT, Program, StackConfig
from local.errors import StackError
from local.home import Home
from local.ports import HOST
from local.probes import beats, http_get

STOP_RANK = 0


def environment(config: StackConfig, home: Home, data: Mapping[str, str], urls: Mapping[str, str]) -> dict[str, str]:
    """What every program process gets: the addresses in `data`, the companions' `urls`, the stack's own settings."""
    return {
        **data,
        **urls,
        "PERDURE_LOCAL": "1",
        "PERDURE_PORT": str(config.port),
        "PERDURE_HOME": str(home.root),
        "PERDURE_APP": os.pathsep.join(map(str, config.app_dirs)),
        "PERDURE_ROUTING": config.routing,
        "PERDURE_START_GATE": str(home.gate_file),
        "PYTHONUNBUFFERED": "1",
    }


def child_spec(config: StackConfig, home: Home, program: Program, environ: Mapping[str, str]) -> ChildSpec:
    """One process; SIGTERM lets it drain."""
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
        lives=beats(ready_file),
        held=lambda: not home.gate_file.exists(),
        stop_steps=((signal.SIGTERM, config.drain_seconds),),
        stop_rank=STOP_RANK,
        before_start=lambda: ready_file.unlink(missing_ok=True),
        imports=program.imports,
        detail=f"http://{HOST}:{config.port}" if program.ready == "http" else "",
    )


def shared_imports(config: StackConfig) -> tuple[str, ...]:
    """What the nursery imports for them, each module once, in the order in which they are to start."""
    return tuple(dict.fromkeys(module for program in config.programs for module in program.imports))


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the prepare step said with its last line."""

    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    left_out: tuple[str, ...] = ()
    """Lines that tell which agents are not there, and why."""
    setup_code: str = field(default="", repr=False)
    """Lets the first person register; empty once there are people."""


def prepared_from(lines: list[str], log: Path) -> Prepared:
    """The local tokens, and which agents are left out, from the prepare step's last line.

    Raises: StackError when that is not the promised JSON; the line itself is not repeated, it may hold secrets.
    """
    try:
        said = json.loads(lines[-1])
        tokens = {str(role): str(token) for role, token in dict(said["tokens"]).items()}
        left_out = tuple(str(each) for each in said.get("left_out", ()))
        return Prepared(tokens, left_out, str(said.get("setup_code", "")))
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise StackError(f"prepare did not end with its tokens as JSON (log: {log})") from error
