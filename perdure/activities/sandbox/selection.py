"""The start: which sandbox this machine can have, decided by the self-test, never by what is installed."""

import asyncio
import shutil
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pydantic import JsonValue

from perdure.activities.sandbox.jail import Jail, demotable
from perdure.activities.sandbox.protocol import ClosedSandbox, Flaw, Limits, Ran, Sandbox, SandboxUnavailable

if TYPE_CHECKING:
    from perdure.activities.sandbox.pool import MontySandbox

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
    from perdure.activities.sandbox.pool import MontySandbox
    from perdure.activities.sandbox.worker import Making

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
    from perdure.activities.sandbox.jail_check import jail_faults

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


# --- A sandbox that is opened beside the rest of a start, or by the first block: a start waits for none.

AGAIN_SECONDS = 30.0
"""A sandbox that could not be opened is tried again by the first block after this."""


class StandbySandbox:
    """Opens by itself; where that fails it says so, and every block is answered with why. For one event loop."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._opening: asyncio.Task[Sandbox] | None = None
        self._again_at = 0.0
        """When a failed opening is worth another, by the monotonic clock."""

    def open_soon(self) -> None:
        """Begin to open it; nothing waits for it but the blocks."""
        self._begun()

    async def run(
        self, tenant_id: str, code: str, inputs: Mapping[str, JsonValue], limits: Limits | None = None
    ) -> Ran:
        """See Sandbox.run."""
        return await (await self._opened()).run(tenant_id, code, inputs, limits)

    async def check(
        self, code: str, input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]
    ) -> tuple[Flaw, ...]:
        """See Sandbox.check."""
        return await (await self._opened()).check(code, input_schema, output_schema)

    async def close(self) -> None:
        """End all workers; one that is just being opened too."""
        if self._opening is not None:
            await (await self._opening).close()

    async def _opened(self) -> Sandbox:
        if self._opening is not None and self._opening.done() and 0.0 < self._again_at <= time.monotonic():
            self._opening = None
        return await asyncio.shield(self._begun())

    def _begun(self) -> "asyncio.Task[Sandbox]":
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        return self._opening

    async def _open(self) -> Sandbox:
        try:
            opened = await open_sandbox(self._config)
        except Exception as error:  # also what a self-test meets on a machine that is in trouble
            why = str(error) if isinstance(error, SandboxUnavailable) else f"its start failed ({type(error).__name__})"
            self._again_at = time.monotonic() + AGAIN_SECONDS
            _log.error("sandbox.closed", why=why, meaning="every code block is answered with an error")
            return ClosedSandbox(why)
        self._again_at = 0.0
        return opened
