"""Ledger rules: which attempt can run a call, and what a repeated attempt does.

A claim has an owner epoch: each accepted claim takes the next one, and only the holder of the current epoch can settle.
A claim by an attempt that Temporal has already replaced is refused. Attempts are ordered within one run. A later run of
the same turn (a reset, a cold restart) is newer than every attempt of an earlier one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from perdure.contracts.calls import CallState, EffectClass
from perdure.contracts.errors import Problem
from perdure.core.calls.hangs import MAX_HANGS

MAX_LOST_ATTEMPTS = 12
"""A call with so many attempts that did not end is not run again. Otherwise a tool that blocks or kills its worker
would take every worker of its queue for ever."""
ZOMBIE_GRACE = timedelta(seconds=10)
"""The time that is added to a tool's own timeout, in which the owner of a reservation can still act."""
SETTLED = frozenset({CallState.DONE, CallState.FAILED, CallState.DENIED})
STOPPED = Problem(code="stopped", message="the turn was stopped")
STOPPED_OR_ENDED = Problem(code=STOPPED.code, message="the turn was stopped or has ended")
"""The problem for a single read of the turn's row that covers both cases."""


@dataclass(frozen=True, slots=True)
class LockedTurn:
    """The state of the locked turn row."""

    ended: bool
    stopped: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """An activity attempt, as Temporal identifies it."""

    run_id: str
    number: int


@dataclass(frozen=True, slots=True)
class RecordedClaim:
    """The claim on a call that its row holds: by which attempt, and whether its outcome is settled."""

    epoch: int
    by: Attempt
    settled: bool


class Claim(StrEnum):
    """The answer to an attempt's claim."""

    ACT = "act"
    REPLAY = "replay"
    """The call is settled: answer with the stored result."""
    STOPPED = "stopped"
    ENDED = "ended"
    STALE = "stale"
    """A later attempt has the claim."""
    LOST = "lost"
    """Too many attempts did not end, or two made their worker hang: it fails, because it may be the reason."""
    UNKNOWN = "unknown"
    """A lost attempt may have sent the call, and it must not be sent again; a person settles it."""
    DENIED = "denied"
    """No approval covers exactly this call."""


def claim(gate: LockedTurn, held: RecordedClaim | None, attempt: Attempt) -> Claim:
    """Returns whether `attempt` can run a call. A stopped turn still receives a settled result."""
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
    """A tool call's row in the ledger, as a new attempt needs it."""

    state: CallState
    held: RecordedClaim | None
    effect: EffectClass
    first_sent_at: datetime | None = None
    key_ttl_seconds: float | None = None
    timeout_seconds: float = 0.0
    """The maximum time from the claim to the send. The idempotency key must be valid until then."""
    lost: int = 0
    """Attempts that did not end: their worker was lost, or could not record the end."""
    hung: int = 0
    """Lost attempts in which the call made its worker hang."""

    @property
    def is_given_up(self) -> bool:
        """True if the call is not run again, because it may end its worker each time."""
        return self.lost >= MAX_LOST_ATTEMPTS or self.hung >= MAX_HANGS


def claim_tool(gate: LockedTurn, row: Reservation, attempt: Attempt, *, allowed: bool, now: datetime) -> Claim:
    """Returns whether `attempt` can run a tool call.

    `allowed` means that the call needs no approval, or has one for exactly these arguments and this version.
    """
    if row.state in SETTLED:
        return Claim.REPLAY
    if row.state is CallState.OUTCOME_UNKNOWN:
        return Claim.UNKNOWN
    verdict = claim(gate, row.held, attempt)
    if verdict is Claim.STALE:
        return verdict
    if verdict is Claim.ACT and allowed and (row.state is not CallState.RESERVED or may_send_again(row, now)):
        if row.state is not CallState.RESERVED or not row.is_given_up:
            return verdict
        return Claim.UNKNOWN if may_have_happened(row) else Claim.LOST
    if may_have_happened(row):
        return Claim.UNKNOWN  # The call must neither be repeated nor reported as undone.
    return verdict if verdict is not Claim.ACT else Claim.DENIED


def may_have_happened(row: Reservation) -> bool:
    """Returns whether a lost attempt may have reached the target."""
    return row.state is CallState.RESERVED and row.effect in (EffectClass.KEYED, EffectClass.OPAQUE)


def may_send_again(row: Reservation, now: datetime) -> bool:
    """Returns whether the next attempt can run a call that a lost attempt had reserved."""
    if row.effect in (EffectClass.READ, EffectClass.LOCAL):
        return True
    if row.effect is EffectClass.OPAQUE:
        return False
    if row.first_sent_at is None or row.key_ttl_seconds is None:
        return row.first_sent_at is None
    sent_by = now + timedelta(seconds=row.timeout_seconds)
    return sent_by - row.first_sent_at < timedelta(seconds=row.key_ttl_seconds)


def may_be_resumed(gate: LockedTurn, row: Reservation, attempt: Attempt, now: datetime) -> bool:
    """Returns whether a worker with the right version of the tool could run a call that a lost attempt had reserved."""
    if row.state is not CallState.RESERVED or claim(gate, row.held, attempt) is not Claim.ACT:
        return False
    return not row.is_given_up and may_send_again(row, now)


class ActionEnd(StrEnum):
    """The end of a tool's run, as its caller saw it."""

    RETURNED = "returned"
    REFUSED = "refused"
    """The tool rejected the call, and nothing happened."""
    NOT_SENT = "not_sent"
    """The attempt failed before it sent anything; a retry is safe."""
    NOT_OWNED = "not_owned"
    """This attempt sent nothing: it no longer owned the call, or its ownership could not be checked."""
    AMBIGUOUS = "ambiguous"
    """The effect may have happened: a timeout or a broken connection after the request was sent."""


class SettleAction(StrEnum):
    """The record of a run, or the next attempt."""

    DONE = "done"
    FAILED = "failed"
    RELEASE = "release"
    """The call returns to planned, and the attempt fails so that Temporal retries it."""
    RETRY = "retry"
    """The reservation remains; Temporal retries with the same idempotency key."""
    OUTCOME_UNKNOWN = "outcome_unknown"


def after_act(
    effect: EffectClass,
    acted: ActionEnd,
    *,
    last_attempt: bool,
    timed_out: bool = False,
    permanent: bool = False,
    sent_before: bool = False,
) -> SettleAction:
    """Returns what to record after a tool ran. A call that may have happened is never recorded as undone.

    `sent_before` means that a lost attempt may have sent the call. This attempt's own rejection or "not sent" then
    proves nothing.

    A read that exceeded its own timeout is not retried, because it had its time. `permanent` means that a bug in
    the tool's code broke the call. No call is retried then: another attempt would break in the same way.

    An attempt that is not allowed to send settles nothing, not even as the last. The attempt that owns the call settles
    it, or the end of the turn does.
    """
    if acted is ActionEnd.RETURNED:
        return SettleAction.DONE
    if acted is ActionEnd.NOT_OWNED:
        return SettleAction.RETRY if sent_before else SettleAction.RELEASE
    if sent_before:
        ends = last_attempt or permanent or acted is ActionEnd.REFUSED
        return SettleAction.OUTCOME_UNKNOWN if ends else SettleAction.RETRY
    if acted is ActionEnd.REFUSED:
        return SettleAction.FAILED
    if acted is ActionEnd.NOT_SENT:
        return SettleAction.FAILED if last_attempt else SettleAction.RELEASE
    if effect is EffectClass.OPAQUE:
        return SettleAction.OUTCOME_UNKNOWN
    if effect is EffectClass.KEYED:
        return SettleAction.OUTCOME_UNKNOWN if last_attempt or permanent else SettleAction.RETRY
    if effect is EffectClass.LOCAL:
        return SettleAction.FAILED  # Its transaction was rolled back, so nothing happened.
    return SettleAction.FAILED if last_attempt or timed_out or permanent else SettleAction.RETRY


def reservation_deadline(now: datetime) -> datetime:
    """Returns until when the owner of a reservation can still send.

    A person cannot settle the call before this time and the tool's own timeout have passed.
    """
    return now + ZOMBIE_GRACE


PROBLEM_OF_CLAIM: Mapping[Claim, Problem] = MappingProxyType(
    {
        Claim.STOPPED: STOPPED,
        Claim.ENDED: Problem(code="turn_ended", message="the turn has ended"),
        Claim.STALE: Problem(code="stale_attempt", message="another attempt has taken over this call"),
    }
)
"""The problem for each claim that does not allow the attempt to act."""
