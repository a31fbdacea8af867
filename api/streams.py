"""Server-sent events of a turn or a conversation: durable events and live tokens, merged for each reader.

A reader that goes away never stops a turn. A reader that comes back with its last id goes on behind it. A slow one is
simply read for less often (api/stream_reader.py). One who would not be let in again is sent away by the next heartbeat.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

import asyncpg
import structlog
from fastapi.sse import KEEPALIVE_COMMENT

from api.metrics import STREAMS
from api.sse import encoded, ending
from api.stream_reader import BATCH_EVENTS, EventReads, EventsPlace, StreamReader
from contracts.events import DONE
from policy.cursor import Cursor
from policy.reader import Frame, LoggedEvent
from store import event_log
from store.database import Database
from store.live import LiveTokens
from store.shared_reads import SharedReads
from store.wakes import Wakes

HEARTBEAT_SECONDS = 15.0
_BLOCKED_SECONDS = 0.02
_DATABASE_LOST_SECONDS = 1.0
_DATABASE_LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

Welcome = Callable[[], Awaitable[bool]]
"""Whether a reader may still be there."""

log = structlog.get_logger(__name__)


class Streams:
    """The streams of this process."""

    def __init__(
        self, database: Database, live: LiveTokens, wakes: Wakes, *, heartbeat_seconds: float = HEARTBEAT_SECONDS
    ) -> None:
        self._database = database
        self._live = live
        self._wakes = wakes
        self._heartbeat_seconds = heartbeat_seconds
        self._events: EventReads = SharedReads(self._read_events)

    async def _read_events(self, place: EventsPlace) -> list[LoggedEvent]:
        tenant_id, conversation_id, turn_id, seq = place
        async with self._database.transaction(tenant_id) as tx:
            return await event_log.read_after(tx, conversation_id, seq, BATCH_EVENTS, turn_id=turn_id)

    async def is_over(self, tenant_id: str, turn_id: str, cursor: Cursor) -> bool:
        """Whether a reader of this turn has seen its last event: there will be nothing more."""
        async with self._database.transaction(tenant_id) as tx:
            done = await event_log.done_seq(tx, turn_id)
        return done is not None and cursor.seq >= done

    async def _told(self, tenant_id: str, done: Frame) -> Frame:
        """The last event with its status; where its words went with an erased person, as the turn's row says it."""
        if "status" in done.data:
            return done
        async with self._database.transaction(tenant_id) as tx:
            status = await event_log.status_of(tx, done.turn_id)
        return replace(done, data={**done.data, "status": status})

    async def frames(
        self,
        tenant_id: str,
        conversation_id: str,
        cursor: Cursor,
        turn_id: str | None = None,
        welcome: Welcome | None = None,
    ) -> AsyncGenerator[bytes]:
        """The stream behind `cursor`, encoded; with `turn_id` that turn's alone, to its end."""
        loop = asyncio.get_running_loop()
        asks_at = beats_at = loop.time() + self._heartbeat_seconds
        reader = StreamReader(self._database, self._live, self._events, tenant_id, conversation_id, turn_id)
        with STREAMS.track_inprogress():
            async with self._wakes.listen(tenant_id, conversation_id) as bell:
                look = True
                while not self._wakes.closing:
                    look = bell.quiet() or look
                    try:
                        if welcome is not None and loop.time() >= asks_at:
                            if not await welcome():
                                return
                            asks_at = loop.time() + self._heartbeat_seconds
                        frames, look = await reader.advance(cursor, look)
                    except _DATABASE_LOST as error:
                        log.warning("stream.database_lost", error=type(error).__name__)
                        yield KEEPALIVE_COMMENT
                        await asyncio.sleep(_DATABASE_LOST_SECONDS)
                        look = True
                        continue
                    done = next((frame for frame in frames if frame.kind == DONE), None) if turn_id else None
                    if done is not None:
                        frames = frames[: frames.index(done)]
                        done = await self._told(tenant_id, done)
                        frames = [*frames, done]
                    if frames:
                        yield b"".join(map(encoded, frames))
                        beats_at = loop.time() + self._heartbeat_seconds
                    if done is not None:
                        yield ending(done)
                        return
                    if loop.time() >= beats_at:  # the bell may ring all the while, for other turns
                        yield KEEPALIVE_COMMENT
                        beats_at = loop.time() + self._heartbeat_seconds
                    elif reader.blocked:
                        await asyncio.sleep(_BLOCKED_SECONDS)
                    elif not reader.behind:
                        await bell.wait(beats_at - loop.time())
