"""What of a turn that broke off stays in its conversation.

A round whose calls did something must be remembered, or the next turn does it again. The round that was open as the
turn broke off stays too, as its reader has seen it: what was asked for, and that it was not run. Of an earlier round
that did nothing only what the model said with it stays: it was answered in words, and an answer made now would come
behind them. No call is left without an answer, since providers refuse that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.tools import CallState

DID_SOMETHING = frozenset({CallState.DONE, CallState.FAILED, CallState.RESERVED, CallState.OUTCOME_UNKNOWN})
"""States of a call that has, or may have, reached its tool."""


@dataclass(frozen=True, slots=True)
class Round:
    """An assistant message that made calls, and the tool messages that answer them."""

    message_id: str
    calls: tuple[str, ...]
    answers: Mapping[str, str]
    """Call id to the id of its tool message."""
    has_text: bool = False
    is_open: bool = False
    """Nothing has been said since but its calls' answers."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A round that stays: its messages, and the calls that need an answer made for them."""

    message_ids: tuple[str, ...]
    unanswered: tuple[str, ...]


def words_only(rounds: Sequence[Round], kept: Sequence[Kept]) -> tuple[str, ...]:
    """The messages of the rounds that do not stay but said something: they stay without their calls."""
    whole = {each.message_ids[0] for each in kept}
    return tuple(each.message_id for each in rounds if each.has_text and each.message_id not in whole)


def keep_rounds(rounds: Sequence[Round], states: Mapping[str, CallState]) -> tuple[Kept, ...]:
    """The rounds that stay with their calls, in order."""
    return tuple(
        Kept(
            (each.message_id, *(each.answers[call] for call in each.calls if call in each.answers)),
            tuple(call for call in each.calls if call not in each.answers),
        )
        for each in rounds
        if each.is_open
        or all(call in each.answers for call in each.calls)
        or any(states.get(call) in DID_SOMETHING for call in each.calls)
    )


def told_of(state: CallState | None, refused: str | None = None) -> tuple[str, str]:
    """(status, sentence) that a conversation is told of a call that has no result; `refused` says who did not allow it,
    where that is so."""
    if state in (CallState.RESERVED, CallState.OUTCOME_UNKNOWN):
        return "not_known", "the turn ended while this call was under way; whether it happened is not known"
    if refused is not None:
        return "denied", refused
    return "not_run", "the turn ended before this call ran"
