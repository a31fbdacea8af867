"""The apps of this installation as they may be published: checked against its tools, its topologies, the scripted
model's form and, as far as this machine has one, the sandbox's type checker.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from activities.clients.script import Script
from activities.sandbox import Sandbox, SandboxConfig, SandboxUnavailable, open_for_checks
from activities.toolbox.entities import CORE_BY_NAME
from contracts.agents import PublishedAgent
from contracts.digests import digest_of
from contracts.skills import CodeBlock
from graph.registry import names
from perdure.apps import App, BlockFault, Engine, check_source, find_apps, load_app, schema_as_called


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What was found."""

    apps: tuple[App, ...]
    unchecked: str = ""
    """Why code blocks were not type-checked, where they were not."""


def block_digests(agents: Sequence[PublishedAgent]) -> frozenset[str]:
    """The blocks of published agents: they were checked when they were published."""
    return frozenset(_digest(block) for agent in agents for skill in agent.definition.skills for block in skill.blocks)


async def shipped_and_own(
    own: Sequence[Path], sandbox: SandboxConfig, checked: Collection[str] = frozenset()
) -> Catalogue:
    """The shipped apps and those in `own`; blocks whose digests are in `checked` are not type-checked again."""
    checker = _Checker(sandbox, checked, asyncio.get_running_loop())
    try:
        apps = await asyncio.to_thread(find_apps, own, checker.engine)
        return Catalogue(tuple(apps), checker.unchecked)
    finally:
        await checker.close()


async def one_app(folder: Path, sandbox: SandboxConfig) -> Catalogue:
    """The app in `folder`."""
    checker = _Checker(sandbox, frozenset(), asyncio.get_running_loop())
    try:
        return Catalogue((await asyncio.to_thread(load_app, folder, checker.engine),), checker.unchecked)
    finally:
        await checker.close()


class _Checker:
    """Checks blocks on the thread that loads apps, in a sandbox of the loop, which is opened for the first of them."""

    def __init__(self, config: SandboxConfig, checked: Collection[str], loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._checked = checked
        self._loop = loop
        self._sandbox: Sandbox | None = None
        self.unchecked = ""
        self.engine = Engine(
            core_tools=tuple(CORE_BY_NAME), topologies=names(), script=Script, check_block=self._faults
        )

    async def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            await self._sandbox.close()

    def _faults(self, block: CodeBlock) -> list[BlockFault]:
        faults = check_source(block)
        if faults or self.unchecked or _digest(block) in self._checked:
            return faults
        return asyncio.run_coroutine_threadsafe(self._typed(block), self._loop).result()

    async def _typed(self, block: CodeBlock) -> list[BlockFault]:
        try:
            if self._sandbox is None:
                self._sandbox = await open_for_checks(self._config)
            flaws = await self._sandbox.check(block.source, schema_as_called(block), block.output)
        except SandboxUnavailable as why:
            self.unchecked = str(why)
            return []
        return [BlockFault(flaw.line, flaw.message) for flaw in flaws]


def _digest(block: CodeBlock) -> str:
    return digest_of(block.model_dump(mode="json"))
