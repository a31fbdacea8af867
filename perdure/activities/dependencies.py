"""What activities are made with; worker.py puts it together."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import structlog
from redis.exceptions import RedisError

from perdure.activities.providers.registry import Models
from perdure.activities.sandbox import ClosedSandbox, Sandbox
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.memory import DEFAULT_LIMITS, MemoryLimits
from perdure.embedding.embedder import Embedder
from perdure.store.agents import AgentShelf, TableShelf
from perdure.store.database import Database
from perdure.store.events import live
from perdure.store.events.live import LiveTokens
from perdure.store.valkey import Valkey
from perdure.telemetry.traces import TurnTraces
from perdure.temporal.workflow_client import Doorbell

# --- Work that a stop of its turn breaks off at once, and not with its next heartbeat.
# A stop reaches an activity in two ways. Its workflow cancels it, which is heard with a heartbeat: up to a second late
# (measured: 0.9 s for a model that says nothing). And it is called out to the workers, which is heard at once where
# Valkey is there. The second only makes the first faster: what is broken off is settled in the same way.

AGAIN_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class StopHeard:
    """Whether a stop broke a block off."""

    def __init__(self) -> None:
        self.yes = False


class Stops:
    """The blocks of this process that a stop breaks off, by turn."""

    def __init__(self) -> None:
        self._blocks: dict[str, set[asyncio.Timeout]] = defaultdict(set)

    @asynccontextmanager
    async def breaking(self, turn_id: str) -> AsyncIterator[StopHeard]:
        """A block that ends early where the turn is stopped; the answer says so afterwards."""
        heard = StopHeard()
        try:
            async with asyncio.timeout(None) as block:
                self._blocks[turn_id].add(block)
                try:
                    yield heard
                finally:
                    self._blocks[turn_id].discard(block)
                    if not self._blocks[turn_id]:
                        del self._blocks[turn_id]
        except TimeoutError:
            if not block.expired():
                raise
            heard.yes = True

    def stop(self, turn_id: str) -> None:
        """Break off what this process does for the turn."""
        now = asyncio.get_running_loop().time()
        for block in self._blocks.get(turn_id, ()):
            if not block.expired():
                block.reschedule(now)

    async def follow(self, valkey: Valkey) -> None:
        """Break off what is called out, until cancelled; where Valkey is away, nothing is."""
        while True:
            try:
                await self._follow(live.stop_signals(valkey))
            except (RedisError, OSError, TimeoutError):
                pass
            except Exception:
                _log.exception("stops.unforeseen")  # without this every stop of the process would come a second late
            await asyncio.sleep(AGAIN_SECONDS)

    async def _follow(self, called: AsyncGenerator[str, None]) -> None:
        async with aclosing(called):
            async for turn_id in called:
                self.stop(turn_id)


@dataclass(frozen=True, slots=True)
class Deps:
    """The clients of one worker process."""

    db: Database
    live: LiveTokens
    toolbox: Toolbox
    models: Models
    doorbell: Doorbell
    shelf: AgentShelf = field(default_factory=AgentShelf)
    sandbox: Sandbox = field(default_factory=lambda: ClosedSandbox("this process was given no sandbox"))
    tables: TableShelf = field(default_factory=TableShelf)
    stops: Stops = field(default_factory=Stops)
    memory: MemoryLimits = DEFAULT_LIMITS
    traces: TurnTraces | None = None
    """None where turns are not traced."""
    embedder: Embedder | None = None
    """None where episodes are searched by words."""
    keeps_facts: bool = True
    """False where the operator keeps none: graphs are then told that memory is unavailable."""
