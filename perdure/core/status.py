"""Faults of parts that still respond, as texts for the operator; an empty text if there is none."""

LATE_SECONDS = 60.0
"""Age in seconds from which a waiting task means that its queue is not being processed."""


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
