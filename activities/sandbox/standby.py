"""A sandbox that is opened beside the rest of a start, or by the first block: a start waits for none."""

import asyncio
import time
from collections.abc import Mapping

import structlog
from pydantic import JsonValue

from activities.sandbox.limits import Limits
from activities.sandbox.opening import SandboxConfig, open_sandbox
from activities.sandbox.protocol import ClosedSandbox, Flaw, Sandbox, SandboxUnavailable
from activities.sandbox.ran import Ran

AGAIN_SECONDS = 30.0
"""A sandbox that could not be opened is tried again by the first block after this."""
_log = structlog.get_logger(__name__)


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
