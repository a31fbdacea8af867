"""Dependencies of the activities."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import structlog
from redis.exceptions import RedisError

from perdure.activities.providers.registry import Models
from perdure.activities.sandbox import ClosedSandbox, Sandbox
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.memory import DEFAULT_LIMITS, MemoryLimits
from perdure.contracts.messages import WINDOW_TOKENS
from perdure.embedding.embedder import Embedder
from perdure.store.agents import AgentCache, TableCache
from perdure.store.database import Database
from perdure.store.events import live
from perdure.store.events.live import LiveTokens
from perdure.store.valkey import Valkey
from perdure.telemetry.hangs import OpenCalls
from perdure.telemetry.traces import TurnTraces
from perdure.temporal.workflow_client import Notifier

RECONNECT_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class Interruption:
    """The result of a block: `stopped` is true if a stop interrupted it."""

    def __init__(self) -> None:
        self.stopped = False


class Stops:
    """The blocks of this process that a stop interrupts, by turn.

    Such work stops immediately when its turn is stopped, not at its next heartbeat. A stop reaches an activity in two
    ways. The workflow cancels the activity, which takes until the next heartbeat, up to a second (measured: 0.9 s for a
    model that streams nothing). The stop is also broadcast to the workers, which is immediate if Valkey is available.
    The broadcast only makes the first way faster: the interrupted work is settled in the same way.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, set[asyncio.Timeout]] = defaultdict(set)

    @asynccontextmanager
    async def interruptible(self, turn_id: str) -> AsyncIterator[Interruption]:
        """Runs a block that ends early if the turn is stopped; the yielded object then has `stopped` set."""
        interruption = Interruption()
        try:
            async with asyncio.timeout(None) as block:
                self._blocks[turn_id].add(block)
                try:
                    yield interruption
                finally:
                    self._blocks[turn_id].discard(block)
                    if not self._blocks[turn_id]:
                        del self._blocks[turn_id]
        except TimeoutError:
            if not block.expired():
                raise
            interruption.stopped = True

    def stop(self, turn_id: str) -> None:
        """Interrupts this process's work for the turn."""
        now = asyncio.get_running_loop().time()
        for block in self._blocks.get(turn_id, ()):
            if not block.expired():
                block.reschedule(now)

    async def follow(self, valkey: Valkey) -> None:
        """Interrupts turns whose stop is broadcast, until cancelled. Without Valkey, no broadcasts arrive."""
        while True:
            try:
                await self._follow(live.stop_signals(valkey))
            except (RedisError, OSError, TimeoutError):
                pass
            except Exception:
                # without this loop, every stop of the process would be a second late
                _log.exception("stops.unexpected_error")
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self, stopped_turns: AsyncGenerator[str, None]) -> None:
        async with aclosing(stopped_turns):
            async for turn_id in stopped_turns:
                self.stop(turn_id)


@dataclass(frozen=True, slots=True)
class Deps:
    """The clients of one worker process."""

    db: Database
    live: LiveTokens
    toolbox: Toolbox
    models: Models
    notifier: Notifier
    agent_cache: AgentCache = field(default_factory=AgentCache)
    sandbox: Sandbox = field(default_factory=lambda: ClosedSandbox("this process has no sandbox"))
    tables: TableCache = field(default_factory=TableCache)
    stops: Stops = field(default_factory=Stops)
    memory: MemoryLimits = DEFAULT_LIMITS
    traces: TurnTraces | None = None
    """The traces of turns; None if turns are not traced."""
    open_calls: OpenCalls = field(default_factory=OpenCalls)
    """The records of the calls that run, for the next start if the process hangs."""
    embedder: Embedder | None = None
    """The embedder; None if episodes are searched by full text."""
    version_wait_seconds: float = 60.0
    """The time in which another worker may take a call of a tool that has another version here. After it, the approval
    is outdated."""
    shows_failure_messages: bool = True
    """False if the operator hides the messages of tools' exceptions."""
    secrets: Collection[str] = field(default=(), repr=False)
    """The secrets in the environment of this process, which a tool's code can read. Failures do not show them."""
    window_tokens: int = WINDOW_TOKENS
    """The maximum tokens of earlier turns that a model call receives, if the agent sets none; 0: no limit."""
    keeps_facts: bool = True
    """False if the operator disabled facts: graphs then learn that memory is unavailable."""
