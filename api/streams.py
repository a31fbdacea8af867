"""Server-sent events of a turn or a conversation: durable events and live tokens, merged for each reader.

A reader that goes away never stops a turn. A reader that comes back with its last id goes on behind it. What is kept
for a reader is one batch of each store; a slow one is simply read for less often.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace

import asyncpg
import structlog
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from api.metrics import STREAMS
from contracts.events import DONE, WORKFLOW_COMPLETE
from policy.cursor import LOST_EPOCH, Cursor
from policy.reader import Frame, LoggedEvent, ReaderState, TokenBatch
from policy.resume import resumed
from policy.stream import merge, unknown_calls
from store import event_log
from store.database import Database
from store.live import LiveTokens
from store.shared_reads import SharedReads
from store.wakes import Wakes

HEARTBEAT_SECONDS = 15.0
_BATCH_EVENTS = 200
_BLOCKED_SECONDS = 0.02
_DATABASE_LOST_SECONDS = 1.0
_DATABASE_LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

log = structlog.get_logger(__name__)


EventsPlace = tuple[str, str, str | None, int]
"""Tenant, conversation, turn, number of the last event seen."""
TokensPlace = tuple[str, str, str, str]
"""Tenant, conversation, epoch, id of the last entry seen."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The reads that readers of one conversation share."""

    events: SharedReads[EventsPlace, list[LoggedEvent]]
    tokens: SharedReads[TokensPlace, TokenBatch]


class Streams:
    """The streams of this process."""

    def __init__(
        self, database: Database, live: LiveTokens, wakes: Wakes, *, heartbeat_seconds: float = HEARTBEAT_SECONDS
    ) -> None:
        self._database = database
        self._live = live
        self._wakes = wakes
        self._heartbeat_seconds = heartbeat_seconds
        self._reads = Reads(SharedReads(self._read_events), SharedReads(self._read_tokens))

    async def _read_events(self, place: EventsPlace) -> list[LoggedEvent]:
        tenant_id, conversation_id, turn_id, seq = place
        async with self._database.transaction(tenant_id) as tx:
            return await event_log.read_after(tx, conversation_id, seq, _BATCH_EVENTS, turn_id=turn_id)

    async def _read_tokens(self, place: TokensPlace) -> TokenBatch:
        return await self._live.tokens(*place)

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
        self, tenant_id: str, conversation_id: str, cursor: Cursor, turn_id: str | None = None
    ) -> AsyncGenerator[bytes]:
        """The stream behind `cursor`, encoded; with `turn_id` that turn's alone, to its end."""
        reader = _Reader(self._database, self._live, self._reads, tenant_id, conversation_id, turn_id)
        with STREAMS.track_inprogress():
            async with self._wakes.listen(tenant_id, conversation_id) as bell:
                look = True
                while not self._wakes.closing:
                    look = bell.quiet() or look
                    try:
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
                        yield b"".join(map(_encoded, frames))
                    if done is not None:
                        yield _ending(done)
                        return
                    if reader.blocked:
                        await asyncio.sleep(_BLOCKED_SECONDS)
                    elif not reader.behind and not await bell.wait(self._heartbeat_seconds):
                        yield KEEPALIVE_COMMENT


class _Reader:
    """One reader's place in both stores."""

    def __init__(
        self,
        database: Database,
        live: LiveTokens,
        reads: Reads,
        tenant_id: str,
        conversation_id: str,
        turn_id: str | None,
    ) -> None:
        self._database = database
        self._live = live
        self._reads = reads
        self._tenant_id = tenant_id
        self._conversation_id = conversation_id
        self._turn_id = turn_id
        self._state: ReaderState | None = None
        self.blocked = False
        """The next token's call has begun, but its start was not among the events just read."""
        self.behind = False
        """There is more to read at once."""

    async def advance(self, cursor: Cursor, look: bool) -> tuple[Sequence[Frame], bool]:
        """The next frames, and whether the events must be read again; `look` says whether they may be new.

        The state moves only when all of it succeeded. Raises: what asyncpg raises.
        """
        state = self._state or await self._resume(cursor)
        events: list[LoggedEvent] = await self._events(state) if look else []
        # After the events: then every token of a call that is complete among them is there to be seen.
        batch = await self._reads.tokens.get((self._tenant_id, self._conversation_id, state.epoch, state.entry_id))
        unknown = unknown_calls(state, events, batch, self._turn_id)
        if unknown and not look:
            self._state, self.blocked, self.behind = state, False, True
            return (), True
        if unknown:
            async with self._database.transaction(self._tenant_id) as tx:
                state = state.with_closed(await event_log.begun_until(tx, unknown, state.cursor.seq))
        merged = merge(state, events, batch, turn_id=self._turn_id)
        frames = await self._filled(merged.frames)
        self._state, self.blocked = merged.state, merged.blocked
        more_events = merged.starved or len(events) == _BATCH_EVENTS
        self.behind = more_events or batch.more
        return frames, more_events or merged.blocked

    async def _resume(self, cursor: Cursor) -> ReaderState:
        if cursor.seq == 0:
            return ReaderState(cursor)
        async with self._database.transaction(self._tenant_id) as tx:
            last = (await event_log.last_seqs(tx, [self._conversation_id])).get(self._conversation_id, 0)
            if cursor.seq > last:
                cursor = Cursor(last, LOST_EPOCH)
            open_calls = await event_log.open_calls(tx, self._conversation_id, cursor.seq)
        if self._turn_id is not None:
            open_calls = [call for call in open_calls if call.key[0] == self._turn_id]
        keys = [call.key for call in open_calls]
        marks = await self._live.marks(self._tenant_id, self._conversation_id, cursor, keys)
        return resumed(cursor, open_calls, marks)

    async def _events(self, state: ReaderState) -> list[LoggedEvent]:
        return await self._reads.events.get((self._tenant_id, self._conversation_id, self._turn_id, state.cursor.seq))

    async def _filled(self, frames: Sequence[Frame]) -> Sequence[Frame]:
        """The frames with stored texts put in where tokens were missing."""
        ids = [frame.stored_message_id for frame in frames if frame.stored_message_id]
        if not ids:
            return frames
        async with self._database.transaction(self._tenant_id) as tx:
            texts = await event_log.message_texts(tx, ids)
        return [_with_text(frame, texts) for frame in frames]


def _with_text(frame: Frame, texts: Mapping[str, str]) -> Frame:
    if frame.stored_message_id is None:
        return frame
    return replace(frame, data={**frame.data, "text": texts.get(frame.stored_message_id, "")})


def _encoded(frame: Frame) -> bytes:
    return format_sse_event(data_str=_json(frame.data), event=frame.kind, id=frame.id)


def _ending(done: Frame) -> bytes:
    """The line after the last event. It has no id: coming back with the last event's own is answered 204."""
    data = {"turn_id": done.turn_id, "status": done.data["status"]}
    return format_sse_event(data_str=_json(data), event=WORKFLOW_COMPLETE)


def _json(data: Mapping[str, object]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
