"""Times and lengths of time as people are told them."""

from datetime import UTC, datetime, timedelta


def told(at: datetime) -> str:
    """For example `2026-03-01 00:00:00 UTC`."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def left(until: datetime, now: datetime) -> str:
    """How long until then: `6 d 23 h`, `59 min`; empty where it is over."""
    return span(until - now) if until > now else ""


def ago(at: datetime, now: datetime) -> str:
    """How long since then; a clock that is ahead of this one counts as now."""
    return span(max(now - at, timedelta(0)))


def span(length: timedelta) -> str:
    """`12 s`, `59 min`, `3 h 5 min`, `6 d 23 h`."""
    seconds = int(length.total_seconds())
    minutes, hours = seconds // 60, seconds // 3600
    if minutes < 1:
        return f"{seconds} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
