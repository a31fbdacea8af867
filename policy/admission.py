"""Whether a new message starts a turn, waits, joins or replaces the one under way, or is refused (O-15, O-16).

A conversation has one active turn. Nothing admitted is lost: what joins a turn and is not heard by it becomes a queued
turn when that one ends (store/joining.py), and a turn that is replaced ends on record.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from contracts.errors import CallerError
from policy.quotas import Quotas, Used, exceeded

_SOON_SECONDS, _LATER_SECONDS = 5, 60


class OnBusy(StrEnum):
    """What a caller wants where the conversation has an open turn."""

    REJECT = "reject"
    QUEUE = "queue"
    STEER = "steer"
    """The message joins the open turn at its next model call."""
    REPLACE = "replace"
    """The open turn is stopped, then this one is the next."""


class Admission(StrEnum):
    """What becomes of a new message."""

    START = "start"
    QUEUE = "queue"
    JOIN = "join"
    REPLACE = "replace"
    BUSY = "busy"
    QUEUE_FULL = "queue_full"
    TOO_MANY = "too_many"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class Load:
    """What is open now."""

    busy: bool
    """The conversation has an active turn."""
    queued: int
    """Turns that wait in this conversation, and messages that have joined its active turn and were not heard yet."""
    open_of_user: int
    """Live turns of this user in all conversations."""
    waiting_of_user: int = 0
    """Those of them that wait for a person."""
    stopping: bool = False
    """The active turn was asked to stop: it will hear nothing more."""
    gives_way: int = 0
    """Those of the user's live turns that end for one which replaces."""
    used: Used = field(default_factory=Used)
    """The bytes that are kept already."""
    message_bytes: int = 0
    """Those that the message adds."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The deployment's caps."""

    queue_depth: int = 20
    turns_a_user: int = 50
    quotas: Quotas = field(default_factory=Quotas)


def admit(load: Load, caps: Caps, on_busy: OnBusy) -> Admission:
    """The one answer for a new message.

    One that joins opens no turn: where it is left over, its turn takes the place of the one that has ended. One that
    replaces takes the place of the turn under way, so the queue is as long as before.
    """
    if exceeded(load.used, caps.quotas, load.message_bytes) is not None:
        return Admission.QUOTA
    has_room = load.queued < caps.queue_depth
    if on_busy is OnBusy.STEER and load.busy and not load.stopping:
        return Admission.JOIN if has_room else Admission.QUEUE_FULL
    replaces = load.busy and on_busy is OnBusy.REPLACE
    if load.open_of_user - (load.gives_way if replaces else 0) >= caps.turns_a_user:
        return Admission.TOO_MANY
    if not load.busy:
        return Admission.START
    if on_busy is OnBusy.REJECT:
        return Admission.BUSY
    if replaces:
        return Admission.REPLACE
    return Admission.QUEUE if has_room else Admission.QUEUE_FULL


def too_many(load: Load, caps: Caps) -> CallerError:
    """What the user is told who has as many open turns as one may: 429 `too_many_turns`."""
    said = (
        f"you have {load.open_of_user} open turns, and the limit is {caps.turns_a_user} a user "
        f"(PERDURE_LIVE_TURNS_PER_USER); turns that wait for approval count too, and {load.waiting_of_user} of yours do"
    )
    only_waiting = load.waiting_of_user >= load.open_of_user
    do = "have some decided on, or withdraw or stop them" if only_waiting else "wait for one to end"
    details: dict[str, object] = {
        "open": load.open_of_user,
        "limit": caps.turns_a_user,
        "variable": "PERDURE_LIVE_TURNS_PER_USER",
        "waiting": load.waiting_of_user,
        # No turn that waits for a person ends within seconds.
        "retry_after_seconds": _LATER_SECONDS if only_waiting else _SOON_SECONDS,
    }
    return CallerError("too_many_turns", f"{said}: {do}", details, status=429)
