"""What a failed attempt of an assembly tool means: tried again or not, and after how long (S1-28 to S1-30).

What only a slow or absent target explains is tried again. A target that answered with a no, and a tool that broke in a
way that nobody has classified, are not: trying again would hide it.
"""

from enum import StrEnum


class Fault(StrEnum):
    """How an attempt failed."""

    TIMEOUT = "timeout"
    """The tool's own time passed."""
    CONNECT = "connect"
    """No connection came about."""
    READ_TIMEOUT = "read_timeout"
    STATUS = "status"
    """The target answered with an HTTP status that is no success."""
    REFUSED = "refused"
    """Its arguments or its output are not what they must be, or the tool said no."""
    UNCLASSIFIED = "unclassified"


_LATER = frozenset({Fault.TIMEOUT, Fault.CONNECT, Fault.READ_TIMEOUT})


def is_retried(fault: Fault, status: int = 0) -> bool:
    """Whether another attempt may end otherwise; of an HTTP status only from 500 on."""
    return fault in _LATER or (fault is Fault.STATUS and status >= 500)


def goes_again(fault: Fault, status: int, *, failed: int, max_retries: int) -> bool:
    """Whether there is another attempt after `failed` failed ones, this one counted."""
    return is_retried(fault, status) and failed <= max_retries


def wait_seconds(backoff_seconds: float, failed: int) -> float:
    """The wait after `failed` failed attempts: the backoff, twice it, four times it ... None follows the last."""
    return float(backoff_seconds * 2 ** (failed - 1))
