"""The one windowing policy (O-1): how much of the past a model sees. Applied to a copy, never to what is stored.

The newest message always survives (S2-22); a tool result without its call and a call without all its results are
both dropped (S2-23), since providers refuse them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.messages import Role, WindowPolicy


@dataclass(frozen=True, slots=True)
class Windowed:
    """A message as far as windowing must know it."""

    index: int
    role: Role
    tokens: int
    call_ids: tuple[str, ...] = ()
    """For an assistant message: the calls it makes."""
    answers: str = ""
    """For a tool message: the call it answers."""


def keep(messages: Sequence[Windowed], policy: WindowPolicy) -> list[int]:
    """Indexes of the messages to send, in order."""
    repaired = _repair(messages)
    if policy.max_messages is None and policy.max_tokens is None:
        return [message.index for message in repaired]
    anchors = {message.index for message in repaired if message.role is Role.SYSTEM}
    if policy.keep_first_user:
        first = next((message for message in repaired if message.role is Role.USER), None)
        anchors |= {first.index} if first else set()
    chosen = set(anchors)
    room = policy.max_messages
    tokens = policy.max_tokens
    for position, message in enumerate(reversed(repaired)):
        if message.index in anchors:
            continue
        newest = position == 0
        if not newest and ((room is not None and room <= 0) or (tokens is not None and message.tokens > tokens)):
            break
        chosen.add(message.index)
        room = None if room is None else room - 1
        tokens = None if tokens is None else tokens - message.tokens
    return [message.index for message in _repair([m for m in repaired if m.index in chosen])]


def _repair(messages: Sequence[Windowed]) -> list[Windowed]:
    """`messages` without both kinds of orphans, but for the newest round, which may still be under way."""
    answered = {message.answers for message in messages if message.answers}
    asked = {call_id for message in messages if set(message.call_ids) <= answered for call_id in message.call_ids}
    kept = []
    for message in messages:
        if message.call_ids and not set(message.call_ids) <= answered:
            continue
        if message.role is Role.TOOL and message.answers not in asked:
            continue
        kept.append(message)
    return kept
