"""Server-sent events of a turn or a conversation: stored events and live tokens, merged for each reader.

A reader that disconnects never stops a turn. A reader that reconnects with its last id receives what follows it. For a
slow reader, the stores are read less often. The heartbeat ends a stream if its reader is no longer authorized.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

import structlog
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from perdure.api.health import STREAMS
from perdure.contracts.events import DONE, WORKFLOW_COMPLETE
from perdure.core.events.stream import (
    LOST_EPOCH,
    Cursor,
    Frame,
    LoggedEvent,
    ReaderState,
    merge,
    resume_reader,
    unknown_calls,
)
from perdure.store.database import Database
from perdure.store.events import event_log
from perdure.store.events.live import LiveTokens
from perdure.store.events.subscriptions import LOOK_SECONDS, ConversationWakes, ReaderWake, ReviewChanges, SharedReads

# Memory holds one batch of each store per reader, even if the reader is slow. If the live stream was trimmed beyond the
# reader's position, the reader receives the stored text instead.

BATCH_EVENTS = 200

EventsKey = tuple[str, str, str | None, int]
"""Tenant, conversation, turn, `seq` of the last event that was read."""
EventReads = SharedReads[EventsKey, list[LoggedEvent]]
"""The reads that readers of one conversation share."""
HEARTBEAT_SECONDS = 15.0
_BLOCKED_POLL_SECONDS = 0.02
_DATABASE_RETRY_SECONDS = 1.0
_DATABASE_ERRORS = (*Database.outages, OSError)
_LINE_ENDS = {ord(each): f"\\u{ord(each):04x}" for each in "\u0085\u2028\u2029"}
QUEUE_CHANGED = "approvals"


class StreamReader:
    """The position of one reader in both stores."""

    def __init__(
        self,
        database: Database,
        live: LiveTokens,
        events: EventReads,
        tenant_id: str,
        conversation_id: str,
        turn_id: str | None,
    ) -> None:
        self._database = database
        self._live = live
        self._shared = events
        self._tenant_id = tenant_id
        self._conversation_id = conversation_id
        self._turn_id = turn_id
        self._state: ReaderState | None = None
        self.blocked = False
        """True if the call of the next token has begun, but its start was not among the events just read."""
        self.behind = False
        """True if there is more to read immediately."""

    async def advance(self, cursor: Cursor, read_events: bool) -> tuple[Sequence[Frame], bool]:
        """Returns the next frames and whether the events must be read again.

        `read_events` states whether there may be new events. The state advances only if every step succeeds.

        Raises: the errors of Postgres.
        """
        state = self._state or await self._resume(cursor)
        events: list[LoggedEvent] = await self._read_new_events(state) if read_events else []
        # Tokens are read after the events. All tokens of a call that is complete in those events are then visible.
        batch = await self._live.tokens(self._tenant_id, self._conversation_id, state.epoch, state.entry_id)
        unknown = unknown_calls(state, events, batch, self._turn_id)
        if unknown and not read_events:
            self._state, self.blocked, self.behind = state, False, True
            return (), True
        if unknown:
            async with self._database.transaction(self._tenant_id) as tx:
                state = state.with_closed(await event_log.begun_until(tx, unknown, state.cursor.seq))
        merged = merge(state, events, batch, turn_id=self._turn_id)
        frames = await self._with_stored_texts(merged.frames)
        self._state, self.blocked = merged.state, merged.blocked
        more_events = merged.starved or len(events) == BATCH_EVENTS
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
        return resume_reader(cursor, open_calls, marks)

    async def _read_new_events(self, state: ReaderState) -> list[LoggedEvent]:
        return await self._shared.get((self._tenant_id, self._conversation_id, self._turn_id, state.cursor.seq))

    async def _with_stored_texts(self, frames: Sequence[Frame]) -> Sequence[Frame]:
        """Returns the frames, with stored texts where tokens were missing."""
        ids = [frame.stored_message_id for frame in frames if frame.stored_message_id]
        if not ids:
            return frames
        async with self._database.transaction(self._tenant_id) as tx:
            texts = await event_log.message_texts(tx, ids)
        return [_with_text(frame, texts) for frame in frames]


def _with_text(frame: Frame, texts: Mapping[str, str]) -> Frame:
    if frame.stored_message_id is None:
        return frame
    text = texts.get(frame.stored_message_id, "")[slice(*frame.stored_range)]
    return replace(frame, data={**frame.data, "text": text})


AccessCheck = Callable[[], Awaitable[bool]]
"""Returns whether a reader is still authorized."""

log = structlog.get_logger(__name__)


class Streams:
    """The streams of this process."""

    def __init__(
        self,
        database: Database,
        live: LiveTokens,
        wakes: ConversationWakes,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._database = database
        self._live = live
        self._wakes = wakes
        self._heartbeat_seconds = heartbeat_seconds
        self._read_new_events: EventReads = SharedReads(self._read_events)

    async def _read_events(self, key: EventsKey) -> list[LoggedEvent]:
        tenant_id, conversation_id, turn_id, seq = key
        async with self._database.transaction(tenant_id) as tx:
            return await event_log.read_after(tx, conversation_id, seq, BATCH_EVENTS, turn_id=turn_id)

    async def is_over(self, tenant_id: str, turn_id: str, cursor: Cursor) -> bool:
        """Returns whether `cursor` is at or after the last event of this turn."""
        async with self._database.transaction(tenant_id) as tx:
            done = await event_log.done_seq(tx, turn_id)
        return done is not None and cursor.seq >= done

    async def _with_status(self, tenant_id: str, done: Frame) -> Frame:
        """Returns the last event with its status. If the event's data was erased with its user, the status comes from
        the turn's row."""
        if "status" in done.data:
            return done
        async with self._database.transaction(tenant_id) as tx:
            status = await event_log.status_of(tx, done.turn_id)
        return replace(done, data={**done.data, "status": status})

    async def _up_to_end(self, tenant_id: str, frames: Sequence[Frame]) -> tuple[Sequence[Frame], Frame | None]:
        """Returns the frames of one turn up to its last event, and that event if it is among them."""
        for index, frame in enumerate(frames):
            if frame.kind == DONE:
                done = await self._with_status(tenant_id, frame)
                return [*frames[:index], done], done
        return frames, None

    async def frames(
        self,
        tenant_id: str,
        conversation_id: str,
        cursor: Cursor,
        turn_id: str | None = None,
        has_access: AccessCheck | None = None,
    ) -> AsyncGenerator[bytes]:
        """Yields the encoded stream after `cursor`. With `turn_id`, yields only that turn's events, until it ends."""
        loop = asyncio.get_running_loop()
        heartbeat_at = loop.time() + self._heartbeat_seconds
        access = _ReaderAccess(has_access, self._heartbeat_seconds)
        reader = StreamReader(self._database, self._live, self._read_new_events, tenant_id, conversation_id, turn_id)
        with STREAMS.track_inprogress():
            async with self._wakes.listen(tenant_id, conversation_id) as wake:
                read_events = True
                while not self._wakes.closing:
                    read_events = wake.clear() or read_events
                    try:
                        if not await access.is_still_authorized():
                            return
                        frames, read_events = await reader.advance(cursor, read_events)
                    except _DATABASE_ERRORS as error:
                        log.warning("stream.database_lost", error=type(error).__name__)
                        yield KEEPALIVE_COMMENT
                        await asyncio.sleep(_DATABASE_RETRY_SECONDS)
                        read_events = True
                        continue
                    frames, done = await self._up_to_end(tenant_id, frames) if turn_id else (frames, None)
                    if frames:
                        yield b"".join(map(encode_frame, frames))
                        heartbeat_at = loop.time() + self._heartbeat_seconds
                    if done is not None:
                        yield end_of_stream(done)
                        return
                    if loop.time() >= heartbeat_at:  # Other turns can send wake signals continuously.
                        yield KEEPALIVE_COMMENT
                        heartbeat_at = loop.time() + self._heartbeat_seconds
                    else:
                        await _wait_for_events(reader, wake, heartbeat_at - loop.time())


async def _wait_for_events(reader: StreamReader, wake: ReaderWake, seconds: float) -> None:
    if reader.blocked:
        await asyncio.sleep(_BLOCKED_POLL_SECONDS)
    elif not reader.behind:
        await wake.wait(seconds)


class _ReaderAccess:
    """Checks at intervals whether the reader of one stream is still authorized."""

    def __init__(self, has_access: AccessCheck | None, seconds: float) -> None:
        self._has_access = has_access
        self._seconds = seconds
        self._next_check_at = time.monotonic() + seconds

    async def is_still_authorized(self) -> bool:
        if self._has_access is None or time.monotonic() < self._next_check_at:
            return True
        if not await self._has_access():
            return False
        self._next_check_at = time.monotonic() + self._seconds
        return True


def encode_frame(frame: Frame) -> bytes:
    """Encodes an event as a server-sent event."""
    return format_sse_event(data_str=_compact_json(frame.data), event=frame.kind, id=frame.id)


def end_of_stream(done: Frame) -> bytes:
    """Returns the event after the last event. It has no id, since reconnecting with the last event's own id returns
    204."""
    data = {"turn_id": done.turn_id, "status": done.data["status"]}
    return format_sse_event(data_str=_compact_json(data), event=WORKFLOW_COMPLETE)


def _compact_json(data: Mapping[str, object]) -> str:
    """Returns JSON in one line, also for readers to whom every line end of Unicode ends a line (`str.splitlines`)."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)


async def review_frames(changes: ReviewChanges, wakes: ConversationWakes, tenant_id: str) -> AsyncGenerator[bytes]:
    """Yields `approvals` immediately and at each change, until the reader disconnects or the process stops. There is
    nothing to resume: a reader that reconnects receives an event immediately. The stream reports only that something
    changed. Each reader then requests its own rows."""
    sent_at = time.monotonic()
    async with aclosing(changes.heads(tenant_id, LOOK_SECONDS)) as heads:
        async for head in heads:
            if wakes.closing:
                return
            if head is not None:
                yield format_sse_event(event=QUEUE_CHANGED, data_str="{}")
            elif time.monotonic() - sent_at > HEARTBEAT_SECONDS:
                yield KEEPALIVE_COMMENT
            else:
                continue
            sent_at = time.monotonic()
