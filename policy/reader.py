"""What reaches a reader of a stream, and where the reader then stands. Values only; policy/stream.py merges them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pydantic import JsonValue

from policy.cursor import FIRST_ENTRY, NO_EPOCH, Cursor

CallKey = tuple[str, str]
"""A model call: turn id, call id."""

CLOSED_KEPT = 256
"""Calls remembered as over; one that was forgotten is looked up again when a stray entry of it turns up."""


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
        """The call that it is about."""
        return self.turn_id, self.call_id or ""


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A live entry: some text of one attempt of a call, or the beginning of a new attempt."""

    id: str
    turn_id: str
    call_id: str
    attempt: int
    start: int
    """How many characters of this attempt came before."""
    text: str
    begins: bool = False
    """A new attempt begins: what was shown of the call is void."""
    thinking: bool = False
    """`text` is of the model's reasoning, which is no part of the answer."""
    thought: int = 0
    """How many characters of this attempt's reasoning came before."""

    @property
    def key(self) -> CallKey:
        """The call that it belongs to."""
        return self.turn_id, self.call_id


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Live entries after the reader's position, in order; from the beginning where the epoch is another."""

    epoch: str | None
    """None where there is no live stream, or no Valkey."""
    entries: Sequence[TokenEntry] = ()
    more: bool = False
    """There may be entries beyond these."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the reader holds of an open call."""

    attempt: int
    characters: int | None
    """Of the answer. None: it has a hole, or nobody knows what the reader holds."""
    thought: bool = False
    """It was shown some of this attempt's reasoning."""


@dataclass(frozen=True, slots=True)
class ReaderState:
    """One reader between two batches."""

    cursor: Cursor
    """What the reader may claim to have seen."""
    epoch: str = NO_EPOCH
    entry_id: str = FIRST_ENTRY
    """Live entries are read after this one."""
    calls: Mapping[CallKey, Heard] = field(default_factory=dict)
    """Calls begun and not complete."""
    closed: tuple[CallKey, ...] = ()
    """Calls that are over: their stray entries are passed by. A call in neither has not begun."""

    def with_closed(self, keys: Iterable[CallKey]) -> "ReaderState":
        """This state, knowing that `keys` are over."""
        return replace(self, closed=(*self.closed, *keys)[-CLOSED_KEPT:])


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as sent."""

    kind: str
    id: str
    turn_id: str
    data: Mapping[str, JsonValue]
    stored_message_id: str | None = None
    """Set on a token whose `text` is that message's, to be put in by the caller."""
