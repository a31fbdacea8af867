"""One reader's place in both stores, and the next frames for it.

What is kept for a reader is one batch of each store, however slow it is: where it has fallen so far behind that the
live stream was trimmed before it, it gets the stored text instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from policy.cursor import LOST_EPOCH, Cursor
from policy.reader import Frame, LoggedEvent, ReaderState
from policy.resume import resumed
from policy.stream import merge, unknown_calls
from store import event_log
from store.database import Database
from store.live import LiveTokens
from store.shared_reads import SharedReads

BATCH_EVENTS = 200

EventsPlace = tuple[str, str, str | None, int]
"""Tenant, conversation, turn, number of the last event seen."""
EventReads = SharedReads[EventsPlace, list[LoggedEvent]]
"""The reads that readers of one conversation share."""


class StreamReader:
    """One reader's place in both stores."""

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
        batch = await self._live.tokens(self._tenant_id, self._conversation_id, state.epoch, state.entry_id)
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
        return resumed(cursor, open_calls, marks)

    async def _events(self, state: ReaderState) -> list[LoggedEvent]:
        return await self._shared.get((self._tenant_id, self._conversation_id, self._turn_id, state.cursor.seq))

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
