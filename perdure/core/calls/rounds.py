"""Settled rounds of tool calls as ranges of steps, so that the state of a long turn stays small.

A round is an assistant message with calls, followed by the answer of each call. Its messages are in Postgres under the
turn and the step of its calls, so two numbers are enough to find them. A turn of 6,400 calls then carries one range
instead of 6,500 references.
"""

from collections.abc import Iterable, Iterator, Sequence

from perdure.contracts.ids import step_of
from perdure.contracts.messages import MessageRef, Role


def fold_rounds(messages: Sequence[MessageRef]) -> list[MessageRef]:
    """Returns the messages with every settled round as part of a range, and the other stored messages without their
    text. Notes about refused rounds that follow each other become one. The order stays, so notes and the user's
    messages separate ranges. Folding twice changes nothing more.

    A round with a call that has no stored answer, or that a reviewer has made again, stays as it is.
    """
    folded: list[MessageRef] = []
    place = 0
    while place < len(messages):
        end = _end_of_round(messages, place)
        if end:
            first = step_of(messages[place].calls[0].call_id)
            tokens = sum(message.tokens for message in messages[place:end])
            _append(folded, MessageRef(role=Role.TOOL, tokens=tokens, rounds=((first, first),)))
            place = end
        else:
            _append(folded, _without_text(messages[place]))
            place += 1
    return folded


def rounds_in(message: MessageRef) -> int:
    """Returns the number of rounds that a reference stands for: 1 for an assistant message with calls."""
    return sum(last - first + 1 for first, last in message.rounds) or int(bool(message.calls))


def ranges_of(messages: Iterable[MessageRef]) -> tuple[tuple[int, int], ...]:
    """Returns the ranges of steps, as (first, last), of all messages that stand for settled rounds."""
    return tuple(each for message in messages for each in message.rounds)


def steps_in(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yields every step of these ranges, first and last included."""
    return (step for first, last in ranges for step in range(first, last + 1))


def range_bounds(ranges: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Returns the first and the last steps of the ranges, as SQL takes them."""
    first_and_last = [*ranges]
    return [first for first, _ in first_and_last], [last for _, last in first_and_last]


def is_in(step: int, ranges: Iterable[tuple[int, int]]) -> bool:
    """Returns whether one of the ranges contains the step."""
    return any(first <= step <= last for first, last in ranges)


def _end_of_round(messages: Sequence[MessageRef], place: int) -> int:
    """Returns the place after the settled round that begins at `place`, or 0 if no such round begins there."""
    calls = [call.call_id for call in messages[place].calls]
    if not messages[place].id or not calls or not all(call_id.startswith("t") for call_id in calls):
        return 0
    end = place + 1 + len(calls)
    answers = messages[place + 1 : end]
    if any(not answer.id or answer.role is not Role.TOOL for answer in answers):
        return 0
    return end if sorted(answer.call_id for answer in answers) == sorted(calls) else 0


def _append(folded: list[MessageRef], message: MessageRef) -> None:
    """Appends the message, or joins its range to the one before it."""
    before = folded[-1] if folded else None
    if before is not None and before.rounds and message.rounds:
        joined = {"tokens": before.tokens + message.tokens, "rounds": _joined(before.rounds, message.rounds)}
        folded[-1] = before.model_copy(update=joined)
    elif before is not None and before.refused and message.refused:
        folded[-1] = before.model_copy(update={"refused": _joined(before.refused, message.refused)})
    else:
        folded.append(message)


def _joined(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    ranges = [*before]
    for first, last in after:
        if ranges[-1][1] + 1 == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return tuple(ranges)


def _without_text(message: MessageRef) -> MessageRef:
    return message.model_copy(update={"text": ""}) if message.id else message
