"""The start: which sandbox this machine can have, decided by the self-test, never by what is installed."""

import asyncio
import shutil
import sysconfig
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from activities.sandbox.jail import Jail, demotable
from activities.sandbox.limits import Limits
from activities.sandbox.protocol import SandboxUnavailable

if TYPE_CHECKING:
    from activities.sandbox.monty_sandbox import MontySandbox

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """What the operator decides."""

    bare_allowed: bool = False
    """Without a jail that holds, run blocks by the interpreter alone: no wall but its own to files and network."""
    ceiling: Limits = field(default_factory=Limits)
    """No block gets more."""
    at_once: int | None = None
    """Blocks that run at a time; None: one for each processor."""
    most_workers: int = 8
    """Interpreter processes in all; idle ones hold about 14 MiB, most of it shared."""
    program: Path | None = None
    """The interpreter; None: the one that was installed."""


async def open_sandbox(config: SandboxConfig) -> "MontySandbox":
    """A started sandbox; which one it is, is logged.

    Raises: SandboxUnavailable, with every reason and the next step.
    """
    sandbox, faults = await _opened(config)
    if sandbox.jailed:
        _log.info("sandbox.jailed")
    else:
        _log.warning("sandbox.bare", danger="code blocks run outside any jail, as the operator allowed", why=faults)
    return sandbox


async def open_for_checks(config: SandboxConfig) -> "MontySandbox":
    """The same where no block will run: a command that checks one says what is wrong with it, and nothing else.

    Raises: SandboxUnavailable.
    """
    return (await _opened(config))[0]


async def _opened(config: SandboxConfig) -> tuple["MontySandbox", list[str]]:
    """The sandbox, and why it has no jail where it has none."""
    if find_spec("pydantic_monty") is None:
        raise SandboxUnavailable("code blocks need the extra `sandbox`: pip install 'perdure[sandbox]'")
    from activities.sandbox.monty_sandbox import MontySandbox
    from activities.sandbox.worker import Making

    program = config.program or _interpreter()
    jail, faults = await asyncio.to_thread(_proved, program, config.ceiling)
    if jail is not None:
        making = Making(jail.launcher, config.ceiling, jail.cpu_seconds)
    elif config.bare_allowed:
        making = Making(program, config.ceiling, None)
    else:
        raise SandboxUnavailable(f"code blocks have no jail that holds: {'; '.join(faults)}")
    sandbox = MontySandbox(making, jail, config.at_once, config.most_workers)
    try:
        await sandbox.start()
    except SandboxUnavailable:
        await sandbox.close()
        raise
    return sandbox, faults


def _interpreter() -> Path:
    """The one beside this Python, or on PATH."""
    beside = Path(sysconfig.get_path("scripts"), "monty")
    found = str(beside) if beside.is_file() else shutil.which("monty")
    if found is None:
        raise SandboxUnavailable("the interpreter `monty` is missing; install the extra `sandbox` anew")
    return Path(found)


def _proved(program: Path, ceiling: Limits) -> tuple[Jail | None, list[str]]:
    """The first form of jail that holds here, or why none does."""
    from activities.sandbox.proof import jail_faults

    faults: list[str] = []
    for demoted in [True, False] if demotable(program) else [False]:
        try:
            jail = Jail(program, ceiling, demoted=demoted)
        except SandboxUnavailable as unavailable:
            return None, [*faults, str(unavailable)]
        found = jail_faults(jail, ceiling)
        if not found:
            return jail, []
        jail.close()
        faults += found
    return None, faults
