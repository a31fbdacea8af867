"""What counts as trouble of a part that still answers: in words for who looks after it, empty where there is none."""

LATE_SECONDS = 60.0
"""What has waited longer in a queue than this is not being worked off."""


def disk_fault(free_bytes: int, least_bytes: int) -> str:
    """Of the disk that holds the data, by what is free on it and what must be."""
    if free_bytes >= least_bytes:
        return ""
    return f"the disk is nearly full: {free_bytes // 1_000_000} MB are free, {least_bytes // 1_000_000} MB are needed"


def queue_fault(workers: int, backlog: int, oldest_seconds: float) -> str:
    """Of a task queue, by who asks for its work, what waits in it, and how long the oldest of that has waited."""
    if workers == 0:
        return "no worker asks for its work"
    if backlog > 0 and oldest_seconds > LATE_SECONDS:
        return f"its oldest task has waited {oldest_seconds:.0f} s"
    return ""


def relay_fault(sessions: int, overdue: int) -> str:
    """Of the relay, by its sessions at Postgres and the wake-ups that it should have delivered by now."""
    if sessions == 0:
        return "no relay is connected to Postgres"
    if overdue > 0:
        return f"{overdue} wake-ups should have been delivered by now"
    return ""
