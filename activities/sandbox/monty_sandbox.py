"""The sandbox that runs blocks by Monty, a Python interpreter of its own, in worker processes."""

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydantic import JsonValue

from activities.sandbox.crew import Crew
from activities.sandbox.inspection import code_flaws, schema_flaws
from activities.sandbox.jail import Jail
from activities.sandbox.limits import Limits
from activities.sandbox.protocol import Flaw
from activities.sandbox.ran import Ran
from activities.sandbox.worker import GRACE_SECONDS, Making, Worker

T = TypeVar("T")
_CHORE_THREADS = 4
"""For starting and ending workers beside those that run."""
_CHECK_SECONDS = 15.0
"""For both checks of a block; measured: 0.03 to 0.2 s."""


class MontySandbox:
    """Blocks in `jail`, or in bare processes where that is None. For one event loop."""

    def __init__(self, making: Making, jail: Jail | None, at_once: int | None, most_workers: int) -> None:
        """`at_once` blocks run at a time, as many as there are processors where it is None."""
        self._making = making
        self._jail = jail
        places = at_once or os.cpu_count() or 1
        self._threads = ThreadPoolExecutor(places + _CHORE_THREADS, thread_name_prefix="sandbox")
        self._crew = Crew(lambda: Worker(making), self._threads, places, most_workers)

    @property
    def jailed(self) -> bool:
        """Whether more than the interpreter itself stands between a block and this machine."""
        return self._jail is not None

    async def start(self) -> None:
        """Have a worker ready.

        Raises: SandboxUnavailable.
        """
        await self._crew.fill()

    async def run(
        self, tenant_id: str, code: str, inputs: Mapping[str, JsonValue], limits: Limits | None = None
    ) -> Ran:
        """See Sandbox.run; a bound above the driver's own is lowered to it."""
        bounds = (limits or self._making.ceiling).within(self._making.ceiling)
        async with self._crew.worker_for(tenant_id) as worker:
            return await self._watched(worker, bounds.wall_seconds + GRACE_SECONDS, worker.run, code, inputs, bounds)

    async def check(
        self, code: str, input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]
    ) -> tuple[Flaw, ...]:
        """See Sandbox.check; each check has a worker of its own, which ends with it."""
        flaws = schema_flaws(input_schema, output_schema)
        if flaws:
            return flaws
        async with self._crew.worker_for(None) as worker:
            given = (worker, code, input_schema, output_schema, self._making.ceiling)
            return await self._watched(worker, _CHECK_SECONDS, code_flaws, *given)

    async def close(self) -> None:
        """End all workers and remove the launcher."""
        await self._crew.close()
        self._threads.shutdown(wait=False)
        if self._jail is not None:
            self._jail.close()

    async def _watched(self, worker: Worker, seconds: float, work: Callable[..., T], *given: object) -> T:
        """What `work` comes to, on a thread; where it takes longer its worker is killed, and the result tells."""
        result = asyncio.get_running_loop().run_in_executor(self._threads, work, *given)
        done, _ = await asyncio.wait({result}, timeout=seconds)
        if not done:
            worker.kill()
        return await result
