"""Merges durable events and live tokens into one reader's stream.

1. Tokens of a call come after its `generation.start` and before its `generation.complete`.
2. At `generation.complete` the reader has exactly the settled text. If the live tokens differ from it, the merge sends
   `reset` and the stored text. A `reset` is also sent when a new attempt begins, and when a call ends without a settled
   text. Text is therefore never duplicated.
3. Reasoning is sent as it arrives and is never corrected, because it is not part of the answer. `reset` voids it, too.
4. A cursor covers only live entries whose text was sent. While the text of an open call has a gap, the merge holds live
   tokens back, and the live half of the cursor does not advance. A reader that resumes there finds the same gap.

The order never depends on clocks. A claim commits its start before the first token is sent, and a settle commits after
the last. A caller that reads the events first and the tokens second therefore sees every token of a completed call.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pydantic import JsonValue

from perdure.contracts.events import DONE, GENERATION_COMPLETE, GENERATION_START, RESET, THINKING, TOKEN

FIRST_ENTRY = "0-0"
"""The position before every entry."""
NO_EPOCH = "0"
"""The reader has never seen a live entry."""
LOST_EPOCH = "x"
"""The reader's live entries are unknown: it received a `reset`, or it sent a bare number."""

_FULL = re.compile(r"([0-9]{1,18})\.([0-9a-z]{1,32})\.([0-9]{1,18}-[0-9]{1,18})")
_BARE = re.compile(r"[0-9]{1,18}")
CLOSED_KEPT = 256
"""The number of closed calls in the state. If a late entry of a forgotten call arrives, the caller looks it up again.
"""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The positions in both stores: `<durable seq>.<stream epoch>.<stream id>`. A cursor is the position of a reader,
    as the opaque id of every event: the last durable event and the last live entry that the reader has seen. Entries
    are comparable only within one epoch of the live stream. A loss of Valkey starts a new epoch."""

    seq: int = 0
    epoch: str = NO_EPOCH
    entry_id: str = FIRST_ENTRY

    def __str__(self) -> str:
        return f"{self.seq}.{self.epoch}.{self.entry_id}"


def parse_cursor(text: str) -> Cursor | None:
    """Parses a cursor, or a bare durable number. Returns None if `text` is neither."""
    full = _FULL.fullmatch(text)
    if full is not None:
        return Cursor(int(full[1]), full[2], full[3])
    if _BARE.fullmatch(text):
        return Cursor(int(text), LOST_EPOCH)
    return None


def entry_order(entry_id: str) -> tuple[int, int]:
    """Returns the position of an entry within its epoch, for comparisons."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number)


CallKey = tuple[str, str]
"""The key of a model call: turn id, call id."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """A durable event of the conversation."""

    seq: int
    turn_id: str
    kind: str
    call_id: str | None
    data: Mapping[str, JsonValue]
    at: datetime

    @property
    def key(self) -> CallKey:
        """The call of the event."""
        return self.turn_id, self.call_id or ""


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A live entry: text of one attempt of a call, or the start of a new attempt."""

    id: str
    turn_id: str
    call_id: str
    attempt: int
    start: int
    """The number of characters of this attempt before this text."""
    text: str
    begins: bool = False
    """True if a new attempt begins, which voids the text that was sent for the call."""
    thinking: bool = False
    """True if `text` is reasoning of the model, which is not part of the answer."""
    thought: int = 0
    """The number of characters of this attempt's reasoning before this text."""

    @property
    def key(self) -> CallKey:
        """The call of the entry."""
        return self.turn_id, self.call_id


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Live entries after the reader's position, in order; from the beginning if the epoch has changed."""

    epoch: str | None
    """The epoch of the live stream; None without a live stream or without Valkey."""
    entries: Sequence[TokenEntry] = ()
    more: bool = False
    """True if further entries are possible."""


@dataclass(frozen=True, slots=True)
class HeldCall:
    """The reader's state of an open call."""

    attempt: int
    characters: int | None
    """The characters of the answer. None if the text has a gap, or if the reader's text is unknown."""
    thought: bool = False
    """True if the reader received reasoning of this attempt."""


@dataclass(frozen=True, slots=True)
class ReaderState:
    """The state of one reader between two batches."""

    cursor: Cursor
    """The position that the reader can claim to have seen."""
    epoch: str = NO_EPOCH
    entry_id: str = FIRST_ENTRY
    """Live entries are read after this one."""
    calls: Mapping[CallKey, HeldCall] = field(default_factory=dict)
    """Calls that have started and are not complete."""
    closed: tuple[CallKey, ...] = ()
    """Calls that have ended; their late entries are skipped. A call in neither collection has not started."""

    def with_closed(self, keys: Iterable[CallKey]) -> "ReaderState":
        """Returns this state with `keys` added to the closed calls. Only the newest `CLOSED_KEPT` stay."""
        return replace(self, closed=(*self.closed, *keys)[-CLOSED_KEPT:])


@dataclass(frozen=True, slots=True)
class Frame:
    """An event in the form that is sent."""

    kind: str
    id: str
    turn_id: str
    data: Mapping[str, JsonValue]
    stored_message_id: str | None = None
    """The message whose text the caller inserts into the `text` of a token."""
    stored_range: tuple[int, int | None] = (0, None)
    """The part of that text, from the first character to the one after the last. A message that was continued has the
    texts of several calls."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The frames to send now, and the state of the reader after them."""

    frames: Sequence[Frame]
    state: ReaderState
    blocked: bool = False
    """True if the next entry belongs to a call whose start is in the log but not among these events."""
    starved: bool = False
    """True if more entries must be read before the next event can be sent."""


def unknown_calls(
    state: ReaderState, events: Sequence[LoggedEvent], batch: TokenBatch, turn_id: str | None = None
) -> list[CallKey]:
    """Returns the calls with live entries that the state does not know. The caller finds out which have ended."""
    known = {*state.calls, *state.closed, *(event.key for event in events if event.kind == GENERATION_START)}
    found = dict.fromkeys(entry.key for entry in batch.entries if turn_id is None or entry.turn_id == turn_id)
    return [key for key in found if key not in known]


def merge(
    state: ReaderState, events: Sequence[LoggedEvent], batch: TokenBatch, *, turn_id: str | None = None
) -> MergeResult:
    """Merges a batch of events with the live entries that were read after it.

    `turn_id` limits the stream to one turn. Entries and events that were not consumed come after the new state's
    positions. The caller has added to `closed` the calls from `unknown_calls` that began before the state's events.
    """
    return _StreamMerge(state, batch, turn_id).run(events)


class _StreamMerge:
    def __init__(self, state: ReaderState, batch: TokenBatch, turn_id: str | None) -> None:
        self.cursor = state.cursor
        self.epoch, self.entry_id = state.epoch, state.entry_id
        if batch.epoch is not None and batch.epoch != state.epoch:
            self.epoch, self.entry_id = batch.epoch, FIRST_ENTRY
        self.calls = dict(state.calls)
        self.closed = list(state.closed)
        self.entries = list(batch.entries)
        self.next_entry = 0
        self.more = batch.more
        self.only = turn_id
        self.frames: list[Frame] = []
        self.blocked = False

    def run(self, events: Sequence[LoggedEvent]) -> MergeResult:
        starved = False
        for event in events:
            self._take_live_entries()
            starved = event.kind == GENERATION_COMPLETE and self.more and not self.blocked and not self._is_whole(event)
            if starved:
                break
            self._take_stored_event(event)
        if not starved:
            self._take_live_entries()
        state = ReaderState(self.cursor, self.epoch, self.entry_id, self.calls, tuple(self.closed[-CLOSED_KEPT:]))
        return MergeResult(self.frames, state, self.blocked, starved)

    def _take_live_entries(self) -> None:
        self.blocked = False
        while self.next_entry < len(self.entries):
            entry = self.entries[self.next_entry]
            foreign = self.only is not None and entry.turn_id != self.only
            if not foreign and entry.key in self.calls:
                self._take_live_entry(entry)
            elif not foreign and entry.key not in self.closed:
                self.blocked = True
                return
            self.next_entry += 1
            self.entry_id = entry.id
            self._claim_entries()

    def _take_live_entry(self, entry: TokenEntry) -> None:
        held = self.calls[entry.key]
        if entry.attempt < held.attempt:
            return
        if any(other.characters is None for key, other in self.calls.items() if key != entry.key):
            # A cursor cannot express "this call's text, but not that one's", so this text is held back, too. Text that
            # was sent remains valid, so the attempt stays as well: the start of a newer one must still void it.
            if not entry.thinking:
                self.calls[entry.key] = HeldCall(held.attempt, None)
            return
        anew = entry.begins or (entry.start == 0 and not (entry.thinking and entry.thought))
        if entry.attempt > held.attempt or (held.characters is None and anew):
            self._send_reset_of_open_call(entry.key, held)
            held = HeldCall(entry.attempt, 0)
        self.calls[entry.key] = held
        if held.characters is None or not entry.text:
            return
        if entry.start > held.characters:
            self.calls[entry.key] = HeldCall(entry.attempt, None)
        elif entry.start == held.characters:
            self._send_live_text(entry, held.thought, held.characters)

    def _send_live_text(self, entry: TokenEntry, thought: bool, characters: int) -> None:
        kind = THINKING if entry.thinking else TOKEN
        characters += 0 if entry.thinking else len(entry.text)
        self.calls[entry.key] = HeldCall(entry.attempt, characters, thought or entry.thinking)
        self.entry_id = entry.id
        self._claim_entries()
        text = entry.text
        if self._last_frame_continues(entry, kind):
            text = str(self.frames.pop().data["text"]) + text
        at = datetime.fromtimestamp(entry_order(entry.id)[0] / 1000, UTC)
        self._send_frame(kind, entry.turn_id, at, {"call_id": entry.call_id, "attempt": entry.attempt, "text": text})

    def _last_frame_continues(self, entry: TokenEntry, kind: str) -> bool:
        last = self.frames[-1] if self.frames else None
        if last is None or last.kind != kind or last.stored_message_id is not None or last.turn_id != entry.turn_id:
            return False
        return last.data["call_id"] == entry.call_id and last.data["attempt"] == entry.attempt

    def _claim_entries(self) -> None:
        """Advances the cursor to the last entry that was read, unless the text of an open call has a gap."""
        if self.entry_id != FIRST_ENTRY and all(held.characters is not None for held in self.calls.values()):
            self.cursor = replace(self.cursor, epoch=self.epoch, entry_id=self.entry_id)

    def _take_stored_event(self, event: LoggedEvent) -> None:
        key = event.key
        if event.kind == GENERATION_START:
            self._begin_call(key, _number(event.data, "attempt") or 0)
        elif event.kind == GENERATION_COMPLETE:
            self._complete_call(key, event)
        elif event.kind == DONE:
            for open_key in [open_key for open_key in self.calls if open_key[0] == event.turn_id]:
                self._send_reset(open_key, self.calls[open_key], event.at)
                self._close_call(open_key)
        self.cursor = replace(self.cursor, seq=event.seq)
        data = {**event.data} if event.call_id is None else {**event.data, "call_id": event.call_id}
        self._send_frame(event.kind, event.turn_id, event.at, data)

    def _begin_call(self, key: CallKey, attempt: int) -> None:
        held = self.calls.get(key)
        if held is None:
            self.calls[key] = HeldCall(attempt, 0)
        elif attempt > held.attempt:
            # The reset comes before the event itself, so that no cursor after the event keeps the old text.
            self._send_reset_of_open_call(key, held)
            # After a gap, it is unknown how much of the new attempt is behind the reader's position in the live stream.
            self.calls[key] = HeldCall(attempt, None if held.characters is None else 0)

    def _is_whole(self, event: LoggedEvent) -> bool:
        held = self.calls.get(event.key)
        characters, attempt = _number(event.data, "characters"), _number(event.data, "attempt")
        if characters is None:
            return True
        if held is None or held.characters != characters:
            return False
        return characters == 0 or attempt is None or attempt == held.attempt

    def _complete_call(self, key: CallKey, event: LoggedEvent) -> None:
        if not self._is_whole(event):
            held = self.calls.get(key, HeldCall(0, None))
            message_id = event.data.get("message_id")
            characters, start = _number(event.data, "characters"), _number(event.data, "start") or 0
            if characters and isinstance(message_id, str):
                # A reader that disconnects between these frames and the event receives them again, so the reset is
                # never lost.
                self._send_reset(key, HeldCall(0, None), event.at)
                data: dict[str, JsonValue] = {"call_id": key[1], "attempt": event.data.get("attempt"), "text": ""}
                self._send_frame(TOKEN, key[0], event.at, data, message_id, cursor=self._without_live_position())
                self.frames[-1] = replace(self.frames[-1], stored_range=(start, start + characters))
            else:
                self._send_reset(key, held, event.at)
        self._close_call(key)

    def _close_call(self, key: CallKey) -> None:
        self.calls.pop(key, None)
        self.closed.append(key)
        self._claim_entries()

    def _send_reset(self, key: CallKey, held: HeldCall, at: datetime | None = None) -> None:
        """Sends a reset if the reader has any text of the call."""
        if held.characters != 0 or held.thought:
            self._send_frame(RESET, key[0], at, {"call_id": key[1]}, cursor=self._without_live_position())

    def _send_reset_of_open_call(self, key: CallKey, held: HeldCall) -> None:
        """Sends a reset for a call that continues; the old live position would restore the void text."""
        self._send_reset(key, held)
        if held.characters is None:
            self.cursor = self._without_live_position()

    def _without_live_position(self) -> Cursor:
        """Returns a cursor without a live position: a reader that resumes with it starts with a reset."""
        return replace(self.cursor, epoch=LOST_EPOCH, entry_id=FIRST_ENTRY)

    def _send_frame(
        self,
        kind: str,
        turn_id: str,
        at: datetime | None,
        data: Mapping[str, JsonValue],
        stored_message_id: str | None = None,
        *,
        cursor: Cursor | None = None,
    ) -> None:
        marks: dict[str, JsonValue] = {"turn_id": turn_id, "seq": self.cursor.seq}
        if at is not None:
            marks["at"] = at.isoformat()
        self.frames.append(Frame(kind, str(cursor or self.cursor), turn_id, {**data, **marks}, stored_message_id))


def _number(data: Mapping[str, JsonValue], name: str) -> int | None:
    value = data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that had started and was not complete at the cursor."""

    key: CallKey
    attempt: int
    """The attempt of its latest `generation.start` at the cursor."""


@dataclass(frozen=True, slots=True)
class StreamMark:
    """The live stream's data of a call at the cursor, within the cursor's epoch."""

    attempt: int
    characters: int
    """The characters that a reader of every entry up to the cursor has received."""
    is_whole: bool
    """True if this stream contains the attempt's text from its first character, without a gap."""
    begun: bool = True
    """False if its first entry comes after the cursor."""
    thought: bool = False
    """True if some of the attempt's reasoning came before the cursor."""


def resume_reader(cursor: Cursor, open_calls: Sequence[OpenCall], marks: Mapping[CallKey, StreamMark]) -> ReaderState:
    """Returns the state of a reader that resumes with `cursor`. `marks` lacks the calls that the live stream does not
    know.

    The state has the text that a returning reader has of the calls that are still open at its cursor. The durable half
    of the cursor determines which calls had started, and in which attempt. The live half, together with the live
    stream's data of each call, determines how much text was sent. If that is unknown, the call has a gap, which the
    merge corrects with `reset`.
    """
    calls = {call.key: _held_call(cursor, call, marks.get(call.key)) for call in open_calls}
    return ReaderState(cursor, cursor.epoch, cursor.entry_id, calls)


def _held_call(cursor: Cursor, call: OpenCall, mark: StreamMark | None) -> HeldCall:
    if cursor.epoch == NO_EPOCH:
        return HeldCall(call.attempt, 0)
    if mark is None:
        return HeldCall(call.attempt, None)
    if mark.begun and mark.attempt < call.attempt:
        # The newer attempt's start has been sent, and the text of the older one was voided before it.
        return HeldCall(call.attempt, 0 if mark.is_whole else None)
    if not mark.begun:
        return HeldCall(call.attempt, 0 if mark.is_whole and mark.attempt == call.attempt else None)
    return HeldCall(mark.attempt, mark.characters if mark.is_whole else None, mark.thought)
