"""Selects the sandbox for this machine. The self-test decides, not the installed programs."""

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
from perdure.activities.sandbox.protocol import BlockResult, ClosedSandbox, Flaw, Limits, Sandbox, SandboxUnavailable

if TYPE_CHECKING:
    from perdure.activities.sandbox.pool import MontySandbox

RETRY_SECONDS = 30.0
"""A sandbox that could not be opened is opened again by the first block after this time."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """Settings of the operator."""

    bare_allowed: bool = False
    """Permission to run blocks without a secure jail. Then only the interpreter protects files and network."""
    ceiling: Limits = field(default_factory=Limits)
    """Upper limits of every block."""
    max_running: int | None = None
    """Number of blocks that run at a time; None: one per processor."""
    max_workers: int = 8
    """Number of interpreter processes. Idle ones use about 14 MiB, most of it shared."""
    program: Path | None = None
    """The interpreter; None: the installed one."""


async def open_sandbox(config: SandboxConfig) -> "MontySandbox":
    """Returns a started sandbox and logs its kind.

    Raises: SandboxUnavailable, with every reason and the next step.
    """
    sandbox, faults = await _start_sandbox(config)
    if sandbox.jailed:
        _log.info("sandbox.jailed")
    else:
        _log.warning(
            "sandbox.bare", danger="code blocks run without a jail, because PERDURE_SANDBOX_BARE is set", why=faults
        )
    return sandbox


async def open_for_checks(config: SandboxConfig) -> "MontySandbox":
    """Returns a started sandbox for checks only, without logging its kind: a command that checks a block prints nothing
    else.

    Raises: SandboxUnavailable.
    """
    return (await _start_sandbox(config))[0]


async def _start_sandbox(config: SandboxConfig) -> tuple["MontySandbox", list[str]]:
    """Returns the sandbox, and the reasons if it has no jail."""
    if find_spec("pydantic_monty") is None:
        raise SandboxUnavailable("code blocks need the extra `sandbox`: pip install 'perdure[sandbox]'")
    from perdure.activities.sandbox.pool import MontySandbox
    from perdure.activities.sandbox.worker import WorkerSettings

    program = config.program or _interpreter()
    jail, faults = await asyncio.to_thread(_find_jail, program, config.ceiling)
    if jail is not None:
        settings = WorkerSettings(jail.launcher, config.ceiling, jail.cpu_seconds)
    elif config.bare_allowed:
        settings = WorkerSettings(program, config.ceiling, None)
    else:
        raise SandboxUnavailable(f"no working jail for code blocks: {'; '.join(faults)}")
    sandbox = MontySandbox(settings, jail, config.max_running, config.max_workers)
    try:
        await sandbox.start()
    except SandboxUnavailable:
        await sandbox.close()
        raise
    return sandbox, faults


def _interpreter() -> Path:
    """Returns the interpreter next to this Python, or the one on PATH."""
    sibling = Path(sysconfig.get_path("scripts"), "monty")
    program = str(sibling) if sibling.is_file() else shutil.which("monty")
    if program is None:
        raise SandboxUnavailable("the interpreter `monty` is missing; reinstall the extra `sandbox`")
    return Path(program)


def _find_jail(program: Path, ceiling: Limits) -> tuple[Jail | None, list[str]]:
    """Returns the first form of jail that passes the self-test, or the reasons why none does."""
    from perdure.activities.sandbox.jail_check import jail_faults

    faults: list[str] = []
    for demoted in [True, False] if demotable(program) else [False]:
        try:
            jail = Jail(program, ceiling, demoted=demoted)
        except SandboxUnavailable as unavailable:
            return None, [*faults, str(unavailable)]
        jail_problems = jail_faults(jail, ceiling)
        if not jail_problems:
            return jail, []
        jail.close()
        faults += jail_problems
    return None, faults


class LazySandbox:
    """Opens a sandbox in the background. If that fails, logs the reason and answers every block with it. For one event
    loop. It opens in the background or at the first block, so that the start does not wait for it."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._opening: asyncio.Task[Sandbox] | None = None
        self._retry_at = 0.0
        """The earliest time for another attempt to open, by the monotonic clock."""

    def open_soon(self) -> None:
        """Starts opening the sandbox; only blocks wait for it."""
        self._opening_task()

    async def run(
        self, tenant_id: str, code: str, inputs: Mapping[str, JsonValue], limits: Limits | None = None
    ) -> BlockResult:
        """Runs a block as `Sandbox.run` describes."""
        return await (await self._sandbox()).run(tenant_id, code, inputs, limits)

    async def check(
        self, code: str, input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]
    ) -> tuple[Flaw, ...]:
        """Checks a block as `Sandbox.check` describes."""
        return await (await self._sandbox()).check(code, input_schema, output_schema)

    async def close(self) -> None:
        """Ends all workers, and also those of a sandbox that is still opening."""
        if self._opening is not None:
            await (await self._opening).close()

    async def _sandbox(self) -> Sandbox:
        if self._opening is not None and self._opening.done() and 0.0 < self._retry_at <= time.monotonic():
            self._opening = None
        return await asyncio.shield(self._opening_task())

    def _opening_task(self) -> "asyncio.Task[Sandbox]":
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        return self._opening

    async def _open(self) -> Sandbox:
        try:
            sandbox = await open_sandbox(self._config)
        except Exception as error:  # includes errors of the self-test on a machine that fails
            reason = (
                str(error) if isinstance(error, SandboxUnavailable) else f"the start failed ({type(error).__name__})"
            )
            self._retry_at = time.monotonic() + RETRY_SECONDS
            _log.error("sandbox.closed", why=reason, meaning="every code block returns an error")
            return ClosedSandbox(reason)
        self._retry_at = 0.0
        return sandbox
