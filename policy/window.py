"""The one windowing policy (O-1): how much of the past a model sees. Applied to a copy, never to what is stored.

A round of calls and all its results stand or fall together: a tool result without its call and a call without all
its results are both dropped (S2-23), since providers refuse them. The newest round or message always survives (S2-22).
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
    """Indexes of the messages to send, in order; results stand right behind their calls, as providers want them."""
    rounds = _rounds(messages)
    if policy.max_messages is None and policy.max_tokens is None:
        return [message.index for each in rounds for message in each]
    anchors = {each[0].index for each in rounds if each[0].role is Role.SYSTEM}
    if policy.keep_first_user:
        first = next((each[0] for each in rounds if each[0].role is Role.USER), None)
        anchors |= {first.index} if first else set()
    chosen = set(anchors)
    room = policy.max_messages
    tokens = policy.max_tokens
    others = [each for each in rounds if each[0].index not in anchors]
    for each in reversed(others):
        size, weight = len(each), sum(message.tokens for message in each)
        newest = each is others[-1]
        if not newest and ((room is not None and room < size) or (tokens is not None and tokens < weight)):
            break
        chosen |= {message.index for message in each}
        room = None if room is None else room - size
        tokens = None if tokens is None else tokens - weight
    return [message.index for each in rounds for message in each if message.index in chosen]


def halved(messages: Sequence[Windowed], policy: WindowPolicy) -> WindowPolicy:
    """The same policy with room for half of what it would send: for a model that found it too long."""
    kept = set(keep(messages, policy))
    tokens = sum(message.tokens for message in messages if message.index in kept)
    return policy.model_copy(update={"max_tokens": tokens // 2})


def _rounds(messages: Sequence[Windowed]) -> list[list[Windowed]]:
    """What is kept or dropped whole: a single message, or calls with all their answers. Orphans are in none."""
    rounds: list[list[Windowed]] = []
    asking: dict[str, list[Windowed]] = {}
    for message in messages:
        if message.role is Role.TOOL:
            asking.get(message.answers, []).append(message)
            continue
        rounds.append([message])
        asking |= dict.fromkeys(message.call_ids, rounds[-1])
    return [each for each in rounds if set(each[0].call_ids) <= {message.answers for message in each[1:]}]
