"""Responses about effects of the ledger."""

from datetime import datetime
from typing import Any

from perdure.schemas.base import Answer


class KnownOfEffect(Answer):
    """The end of an effect whose outcome is unknown, as far as it is known."""

    code: str
    """`raised_before_send`, `raised_after_send`, `raised`, `answered_error`, `answer_not_read`, `no_answer`,
    `timed_out`, `stopped`, `earlier_attempt`, `worker_lost`, `worker_hung` or `turn_ended`."""
    message: str = ""
    """A sentence with the request that was sent and the target's words, if there are any. It also has what is known of
    other attempts."""


class Effect(Answer):
    """An effect of the ledger. `get_effect` returns it with all fields."""

    key: str
    tool: str
    state: str
    turn_id: str = ""
    call_id: str = ""
    agent: str = ""
    args: dict[str, Any] = {}
    effect: str = ""
    attempts: int = 0
    """The number of workers that have owned the call."""
    first_sent_at: datetime | None = None
    """The time after which the effect may have happened."""
    deadline: datetime | None = None
    """The time until which a frozen worker may still send the effect. Before it, the outcome cannot be "did not
    happen"."""
    settled_at: datetime | None = None
    settled_by: str | None = None
    comment: str | None = None
    """The evidence of the user who settled it."""
    known: KnownOfEffect | None = None
    """Only if the outcome is unknown."""
    failure: str | None = None
    """The error that the tool raised and its place, if the outcome is unknown: `KeyError: 'id' at tools/desk.py:41`."""
    created_at: datetime | None = None


class Settled(Answer):
    """The outcome that a user recorded for an effect."""

    key: str
    outcome: str
