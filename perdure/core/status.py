"""Faults of parts that still respond, as texts for the operator; an empty text if there is none. And turns that do not
continue, because their workflow task fails at every attempt."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from perdure.contracts.errors import Problem
from perdure.contracts.turns import StuckTask

LATE_SECONDS = 60.0
"""Age in seconds from which a waiting task means that its queue is not being processed."""
HANG_SECONDS = 6.0
"""Age of a heartbeat in seconds from which its process hangs, because it beats every second. The supervisor kills it
later."""
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


def hang_fault(roles: Sequence[str]) -> str:
    """Returns the fault of the processes of an embedded stack, by the roles of those that hang."""
    if not roles:
        return ""
    return f"hangs: {', '.join(roles)}; unless it responds again, it is killed and restarted (PERDURE_HANG_SECONDS)"


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


def join_failures(known: StuckTask | None, seen: StuckTask | None) -> StuckTask | None:
    """Returns the failing workflow task of a turn, from what an earlier look and this one found; None if its last task
    did not fail. The earlier failures do not count if a task of the turn has completed since then."""
    if known is None or seen is None:
        return seen
    if (known.run_id, known.completed_event) != (seen.run_id, seen.completed_event):
        return seen
    return seen.model_copy(
        update={
            "failures": max(known.failures, seen.failures),
            "since": min(known.since, seen.since),
            "given_up": known.given_up,
            "probed_at": known.probed_at,
            "probed_event": known.probed_event,
        }
    )


class StuckStep(StrEnum):
    """The relay's next step with a stuck turn."""

    WAIT = "wait"
    PROBE = "probe"
    """Send a signal, so that Temporal tries the task again soon and records its failure."""
    END = "end"


def stuck_step(stuck: StuckTask, now: datetime, after_seconds: float) -> StuckStep:
    """Returns what to do with a stuck turn. `after_seconds` is the setting; 0 means that it is never ended.

    It is ended only if its task failed again after a signal that was sent when it was due. Its workers may have been
    stopped for a correction, or a corrected one may have the task at this moment. The state of the task shows neither:
    a repeated attempt runs into its timeout and counts as started until then, also without a worker (measured).
    Attempts can be ten minutes apart, so a first signal is sent at half the time.
    """
    due = stuck.since + timedelta(seconds=after_seconds)
    if after_seconds <= 0 or now < due - timedelta(seconds=after_seconds / 2):
        return StuckStep.WAIT
    if stuck.probed_at is None or stuck.probed_at < due <= now:
        return StuckStep.PROBE
    failed_again = stuck.failed_event > stuck.probed_event
    return StuckStep.END if failed_again and stuck.probed_at >= due else StuckStep.WAIT


def stuck_problem(stuck: StuckTask, now: datetime) -> Problem:
    """Returns the problem `turn_stuck`, with the number of failures and the time since the first."""
    minutes = round((now - stuck.since).total_seconds() / _MINUTE)
    message = f"The workflow task of this turn failed {stuck.failures} times within {minutes} minutes: {stuck.message}"
    return Problem(code="turn_stuck", message=message)


def stuck_fault(count: int) -> str:
    """Returns the fault of a tenant's open turns, by the number of those that do not continue."""
    return f"{count} open turns do not continue, because their workflow tasks fail" if count else ""
