"""Admission of a message: start, queue, steer, replace or reject.

A conversation has at most one active turn. No admitted message is lost: if the open turn ends before it receives a
steered message, the message becomes a queued turn (perdure/store/turns/steer.py). A replaced turn ends with a record.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.contracts.ids import trace_id
from perdure.core.budgets import Quotas, UsedStorage, exceeded_scope

_SOON_SECONDS, _LATER_SECONDS = 5, 60
INPUT_TYPES: Final = ("text", "audio", "image")
"""Input types of `decision_hub`, which uses placeholders for the last two."""
_INPUT_TYPES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "decision_hub": INPUT_TYPES,
    "context_assembly": INPUT_TYPES[:1],
}
"""Allowed input types by topology. Other topologies do not interpret `input_type`."""


_CUT_REASONS: Final[Mapping[str | None, str]] = {
    "length": "the model reached its output limit",
    "pause_turn": "the provider paused it",
    "content_filter": "the provider's content filter stopped it",
    "refusal": "the model refused to continue",
}


def truncation_notice(finish_reason: str | None) -> str:
    """Returns the words for a truncated answer that ended with this reason; None if no model ended it."""
    reason = _CUT_REASONS.get(finish_reason, "the turn ended before it was complete")
    return f"The answer is truncated: {reason}."


class OnBusy(StrEnum):
    """Treatment of a message if the conversation has an open turn."""

    REJECT = "reject"
    QUEUE = "queue"
    STEER = "steer"
    """The open turn's next model call receives the message."""
    REPLACE = "replace"
    """The open turn is stopped, and the new turn is next."""


class Admission(StrEnum):
    """The result for a new message."""

    START = "start"
    QUEUE = "queue"
    JOIN = "join"
    REPLACE = "replace"
    BUSY = "busy"
    QUEUE_FULL = "queue_full"
    TOO_MANY = "too_many"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class AdmissionLoad:
    """The open turns and stored bytes at admission."""

    busy: bool
    """The conversation has an active turn."""
    queued: int
    """Queued turns of this conversation, and steered messages that its active turn has not received yet."""
    open_of_user: int
    """Open turns of this user in all conversations."""
    waiting_of_user: int = 0
    """Open turns of this user that wait for a person."""
    stopping: bool = False
    """The active turn is being stopped and accepts no further messages."""
    gives_way: int = 0
    """Number of the user's open turns that end if the new turn replaces them."""
    used: UsedStorage = field(default_factory=UsedStorage)
    """The bytes that are stored already."""
    message_bytes: int = 0
    """The bytes that the message adds."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The deployment's limits."""

    queue_depth: int = 20
    turns_a_user: int = 50
    quotas: Quotas = field(default_factory=Quotas)


def admit(load: AdmissionLoad, caps: Caps, on_busy: OnBusy) -> Admission:
    """Returns the admission of a new message.

    A steered message opens no turn: if no model call receives it, its turn replaces the one that ended. A replacing
    message replaces the open turn, so the queue does not get longer.
    """
    if exceeded_scope(load.used, caps.quotas, load.message_bytes) is not None:
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


def too_many(load: AdmissionLoad, caps: Caps) -> CallerError:
    """Returns the error if a user has reached the limit of open turns: 429 `too_many_turns`."""
    message = (
        f"You have {load.open_of_user} open turns, {load.waiting_of_user} of them waiting for an approval; the "
        f"limit is {caps.turns_a_user} per user (PERDURE_LIVE_TURNS_PER_USER)"
    )
    only_waiting = load.waiting_of_user >= load.open_of_user
    do = "have some of them decided, or withdraw or stop them" if only_waiting else "wait until one ends"
    details: dict[str, object] = {
        "open": load.open_of_user,
        "limit": caps.turns_a_user,
        "variable": "PERDURE_LIVE_TURNS_PER_USER",
        "waiting": load.waiting_of_user,
        # No turn that waits for a person ends within seconds.
        "retry_after_seconds": _LATER_SECONDS if only_waiting else _SOON_SECONDS,
    }
    return CallerError("too_many_turns", f"{message}: {do}", details, status=429)


def metadata_refusal(topology: str, metadata: Mapping[str, JsonValue]) -> CallerError | None:
    """Returns the error if a turn of the topology cannot start with this metadata, or None.

    The codes are 422 `bad_input_type`, and `bad_trace_id` if the id could not be stored unchanged.

    It is checked at admission, so that a turn that could only fail does not start.
    """
    taken = _INPUT_TYPES_OF.get(topology)
    if taken is None:
        return None
    if "input_type" in metadata and metadata["input_type"] not in taken:
        why = (
            f"metadata.input_type must be one of {', '.join(taken)}"
            if len(taken) > 1
            else "only text input is supported"
        )
        return CallerError("bad_input_type", why, {"input_types": [*taken]})
    given = metadata.get("trace_id")
    if topology == "decision_hub" and given is not None and trace_id(given, "") != given:
        return CallerError("bad_trace_id", "metadata.trace_id must have 1 to 128 characters: letters, digits and _.:-")
    return None
