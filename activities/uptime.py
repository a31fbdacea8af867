"""Seconds since the machine started, those in which it was suspended included.

A lease that another machine counts must be measured so: on Linux `time.monotonic()` stands still while the machine
sleeps (CLOCK_MONOTONIC), and a claim made before would still look fresh after.
"""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has it; elsewhere CLOCK_MONOTONIC goes on while the machine sleeps, which `time.monotonic()` need not."""


def uptime_seconds() -> float:
    """For differences only."""
    return time.clock_gettime(_CLOCK)
