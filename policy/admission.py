"""Whether a new turn starts, waits or is refused: one active turn a conversation (O-15, O-16)."""

from dataclasses import dataclass
from enum import StrEnum


class OnBusy(StrEnum):
    """What a caller wants where the conversation has an open turn."""

    REJECT = "reject"
    QUEUE = "queue"


class Admission(StrEnum):
    """What becomes of a new turn."""

    START = "start"
    QUEUE = "queue"
    BUSY = "busy"
    QUEUE_FULL = "queue_full"
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Load:
    """What is open now."""

    busy: bool
    """The conversation has an active turn."""
    queued: int
    """Turns that wait in this conversation."""
    open_of_user: int
    """Live turns of this user in all conversations."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The deployment's caps."""

    queue_depth: int = 20
    turns_a_user: int = 50


def admit(load: Load, caps: Caps, on_busy: OnBusy) -> Admission:
    """The one answer for a new turn."""
    if load.open_of_user >= caps.turns_a_user:
        return Admission.TOO_MANY
    if not load.busy:
        return Admission.START
    if on_busy is OnBusy.REJECT:
        return Admission.BUSY
    return Admission.QUEUE if load.queued < caps.queue_depth else Admission.QUEUE_FULL
