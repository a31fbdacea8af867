"""Who may do a call's work, and what a repeated attempt does (design section 4).

A claim has an owner epoch: each accepted claim takes the next one, and only the holder of the current epoch may
settle. A claim by an attempt that Temporal has already replaced is refused. Attempts are ordered within one run; a
later run of the same turn (a reset, a cold restart) is newer than every attempt of an earlier one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from perdure.contracts.calls import CallState, EffectClass
from perdure.contracts.errors import Problem

ZOMBIE_GRACE = timedelta(seconds=10)
"""Added to a tool's own time-out: how long a reservation may still be acted on."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What the locked turn row says."""

    ended: bool
    stopped: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """An activity attempt as Temporal names it."""

    run_id: str
    number: int


@dataclass(frozen=True, slots=True)
class Held:
    """The claim on record."""

    epoch: int
    by: Attempt
    settled: bool


class Claim(StrEnum):
    """What an attempt may do."""

    ACT = "act"
    REPLAY = "replay"
    """Settled before: answer with the stored result."""
    STOPPED = "stopped"
    ENDED = "ended"
    STALE = "stale"
    """A later attempt has claimed."""
    UNKNOWN = "unknown"
    """An opaque call that a dead attempt may have sent: a person settles it."""
    DENIED = "denied"
    """No approval that covers exactly this call."""


def claim(gate: Gate, held: Held | None, attempt: Attempt) -> Claim:
    """Whether `attempt` may do a call's work. A settled result is given even to a stopped turn."""
    if held is not None and held.settled:
        return Claim.REPLAY
    if gate.ended:
        return Claim.ENDED
    if held is not None and held.by.run_id == attempt.run_id and held.by.number > attempt.number:
        return Claim.STALE
    if gate.stopped:
        return Claim.STOPPED
    return Claim.ACT


@dataclass(frozen=True, slots=True)
class Reservation:
    """A tool call's row in the ledger, as far as a new attempt must know it."""

    state: CallState
    held: Held | None
    effect: EffectClass
    first_sent_at: datetime | None = None
    key_ttl_seconds: float | None = None
    timeout_seconds: float = 0.0
    """How long an attempt may take until it has sent: the key must be honoured until then."""


SETTLED = frozenset({CallState.DONE, CallState.FAILED, CallState.DENIED})


def claim_tool(gate: Gate, row: Reservation, attempt: Attempt, *, allowed: bool, now: datetime) -> Claim:
    """Whether `attempt` may run a tool call.

    `allowed` says whether the call needs no approval or has one for exactly these arguments and this version.
    """
    if row.state in SETTLED:
        return Claim.REPLAY
    if row.state is CallState.OUTCOME_UNKNOWN:
        return Claim.UNKNOWN
    verdict = claim(gate, row.held, attempt)
    if verdict is Claim.STALE:
        return verdict
    if verdict is Claim.ACT and allowed and (row.state is not CallState.RESERVED or may_send_again(row, now)):
        return verdict
    if may_have_happened(row):
        return Claim.UNKNOWN  # neither to be done again nor to be called undone
    return verdict if verdict is not Claim.ACT else Claim.DENIED


def may_have_happened(row: Reservation) -> bool:
    """Whether a lost attempt may have reached somebody outside."""
    return row.state is CallState.RESERVED and row.effect in (EffectClass.KEYED, EffectClass.OPAQUE)


def may_send_again(row: Reservation, now: datetime) -> bool:
    """Whether a call that a lost attempt had reserved may be done by the next one."""
    if row.effect in (EffectClass.READ, EffectClass.LOCAL):
        return True
    if row.effect is EffectClass.OPAQUE:
        return False
    if row.first_sent_at is None or row.key_ttl_seconds is None:
        return row.first_sent_at is None
    sent_by = now + timedelta(seconds=row.timeout_seconds)
    return sent_by - row.first_sent_at < timedelta(seconds=row.key_ttl_seconds)


class Acted(StrEnum):
    """How a tool's run ended, as the caller saw it."""

    RETURNED = "returned"
    REFUSED = "refused"
    """A definite no: nothing happened."""
    NOT_SENT = "not_sent"
    """Nothing was sent; may be tried again."""
    NOT_OWNED = "not_owned"
    """This attempt sent nothing: the call was no longer its own to send, or nobody could say."""
    AMBIGUOUS = "ambiguous"
    """It may have happened: time-out or a broken connection after the request went out."""


class Settle(StrEnum):
    """What is recorded, or what is tried next."""

    DONE = "done"
    FAILED = "failed"
    RELEASE = "release"
    """Back to planned, and the attempt fails so that Temporal tries again."""
    RETRY = "retry"
    """The reservation stands; Temporal tries again with the same key."""
    OUTCOME_UNKNOWN = "outcome_unknown"


def after_act(
    effect: EffectClass,
    acted: Acted,
    *,
    last_attempt: bool,
    timed_out: bool = False,
    hopeless: bool = False,
    sent_before: bool = False,
) -> Settle:
    """What to record after a tool ran. Nothing is guessed: a call that may have happened is never called undone.

    `sent_before` says that a lost attempt may have sent it: then this attempt's own "no" or "not sent" settles nothing.
    A read that passed its own time-out is not tried again: it was given its time (S2-40); nor is one that is
    `hopeless`, broken by a mistake in the tool's own code. A keyed call is: its next try may still tell what happened.
    An attempt that may not send settles nothing, not even as the last: whoever may send does, or the end of the turn.
    """
    if acted is Acted.RETURNED:
        return Settle.DONE
    if acted is Acted.NOT_OWNED:
        return Settle.RETRY if sent_before else Settle.RELEASE
    if sent_before:
        return Settle.OUTCOME_UNKNOWN if last_attempt or acted is Acted.REFUSED else Settle.RETRY
    if acted is Acted.REFUSED:
        return Settle.FAILED
    if acted is Acted.NOT_SENT:
        return Settle.FAILED if last_attempt else Settle.RELEASE
    if effect is EffectClass.OPAQUE:
        return Settle.OUTCOME_UNKNOWN
    if effect is EffectClass.KEYED:
        return Settle.OUTCOME_UNKNOWN if last_attempt else Settle.RETRY
    if effect is EffectClass.LOCAL:
        return Settle.FAILED  # its transaction was rolled back: nothing happened
    return Settle.FAILED if last_attempt or timed_out or hopeless else Settle.RETRY


def reservation_deadline(now: datetime) -> datetime:
    """Until when the owner of a reservation may still send; a person may not settle before this and the tool's own
    time-out have passed."""
    return now + ZOMBIE_GRACE


# --- Why work is not done, as nodes, streams and clients are told.

STOPPED = Problem(code="stopped", message="the turn was stopped")
OVER = Problem(code=STOPPED.code, message="the turn was stopped or has ended")
"""Where one look at the turn's row answers both."""

REFUSED: Mapping[Claim, Problem] = MappingProxyType(
    {
        Claim.STOPPED: STOPPED,
        Claim.ENDED: Problem(code="turn_ended", message="the turn has ended"),
        Claim.STALE: Problem(code="stale_attempt", message="a later attempt has claimed this call"),
    }
)
"""What a claim that may not act answers with."""
