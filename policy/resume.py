"""What a reader that comes back holds of the calls still open at its cursor.

The durable half of the cursor says which calls had begun and in which attempt; the live half, together with what the
live stream still knows of each call, says how much text was shown. Where that cannot be told the call has a hole,
which policy/stream.py mends by `reset`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policy.cursor import NO_EPOCH, Cursor
from policy.reader import CallKey, Heard, ReaderState


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that had begun and was not complete at the cursor."""

    key: CallKey
    attempt: int
    """Of its latest `generation.start` at the cursor."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What the live stream knows of a call at the cursor, within the cursor's epoch."""

    attempt: int
    characters: int
    """Shown to a reader that has seen every entry up to the cursor."""
    whole: bool
    """The attempt's text has been in this stream from its first character, without a gap."""
    begun: bool = True
    """False: its first entry lies beyond the cursor."""
    thought: bool = False
    """Some of the attempt's reasoning came before the cursor."""


def resumed(cursor: Cursor, open_calls: Sequence[OpenCall], marks: Mapping[CallKey, Mark]) -> ReaderState:
    """The state of a reader that comes back with `cursor`; `marks` lacks what the live stream cannot tell."""
    calls = {call.key: _heard(cursor, call, marks.get(call.key)) for call in open_calls}
    return ReaderState(cursor, cursor.epoch, cursor.entry_id, calls)


def _heard(cursor: Cursor, call: OpenCall, mark: Mark | None) -> Heard:
    if cursor.epoch == NO_EPOCH:
        return Heard(call.attempt, 0)
    if mark is None:
        return Heard(call.attempt, None)
    if mark.begun and mark.attempt < call.attempt:
        # The newer attempt's start has been sent, and whatever was shown of the older one was voided before it.
        return Heard(call.attempt, 0 if mark.whole else None)
    if not mark.begun:
        return Heard(call.attempt, 0 if mark.whole and mark.attempt == call.attempt else None)
    return Heard(mark.attempt, mark.characters if mark.whole else None, mark.thought)
