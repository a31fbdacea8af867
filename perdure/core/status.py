"""Faults of parts that still respond, as texts for the operator; an empty text if there is none. And turns that do not
continue, because their workflow task fails at every attempt."""

from datetime import datetime

from perdure.contracts.errors import Problem
from perdure.contracts.turns import StuckTask

LATE_SECONDS = 60.0
"""Age in seconds from which a waiting task means that its queue is not being processed."""
MIN_FAILURES = 5
"""The failed attempts of a workflow task after which its turn counts as stuck. A killed worker causes one or two.
Their distance grows: the fifth comes after half a minute, the tenth after nine minutes (measured). A signal starts the
count again, and the reconciler can signal every minute."""
_MINUTE = 60


def disk_fault(free_bytes: int, least_bytes: int) -> str:
    """Returns the fault of the data disk, by its free bytes and the required minimum."""
    if free_bytes >= least_bytes:
        return ""
    return f"the disk is nearly full: {free_bytes // 1_000_000} MB are free, {least_bytes // 1_000_000} MB are required"


def queue_fault(workers: int, backlog: int, oldest_seconds: float) -> str:
    """Returns the fault of a task queue, by its number of workers, its backlog and the age of the oldest task."""
    if workers == 0:
        return "no worker polls this queue"
    if backlog > 0 and oldest_seconds > LATE_SECONDS:
        return f"the oldest task has waited {oldest_seconds:.0f} s"
    return ""


def relay_fault(sessions: int, overdue: int) -> str:
    """Returns the fault of the relay, by its Postgres sessions and its overdue wake signals."""
    if sessions == 0:
        return "no relay is connected to Postgres"
    if overdue > 0:
        return f"{overdue} wake-ups are overdue"
    return ""


def is_suspect(attempt: int, known: StuckTask | None) -> bool:
    """Returns whether a turn may be stuck. `attempt` is that of its workflow task; 0 if none is pending."""
    return known is not None or attempt > MIN_FAILURES


def next_attempt(attempt: int, known: StuckTask | None) -> StuckTask | None:
    """Returns a known failing task after a further attempt, or None if only the history shows its state. A signal makes
    Temporal count from 1 again, and so does a task that completed."""
    if known is None or attempt <= MIN_FAILURES:
        return None
    return known.model_copy(update={"failures": max(known.failures, attempt - 1)})


def join_failures(known: StuckTask | None, seen: StuckTask | None) -> StuckTask | None:
    """Returns the failing workflow task of a turn, from what an earlier look and this one found; None if its last task
    did not fail."""
    if known is None or seen is None:
        return seen
    failures, since = max(known.failures, seen.failures), min(known.since, seen.since)
    return seen.model_copy(update={"failures": failures, "since": since, "given_up": known.given_up})


def must_end(stuck: StuckTask, now: datetime, after_seconds: float, seconds_without_worker: float) -> bool:
    """Returns whether a stuck turn must be ended. `after_seconds` is the setting; 0 means never.

    It is not ended if its next attempt has waited for a worker for long. The workers may be stopped for a correction.
    """
    is_due = 0 < after_seconds <= (now - stuck.since).total_seconds()
    return is_due and seconds_without_worker < LATE_SECONDS


def stuck_problem(stuck: StuckTask, now: datetime) -> Problem:
    """Returns the problem with which a stuck turn ends."""
    minutes = round((now - stuck.since).total_seconds() / _MINUTE)
    message = f"The workflow task of this turn failed {stuck.failures} times within {minutes} minutes: {stuck.message}"
    return Problem(code="turn_stuck", message=message)


def stuck_fault(count: int) -> str:
    """Returns the fault of a tenant's open turns, by the number of those that do not continue."""
    return f"{count} open turns do not continue, because their workflow tasks fail" if count else ""
