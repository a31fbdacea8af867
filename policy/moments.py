"""A time as people are told it."""

from datetime import UTC, datetime


def told(at: datetime) -> str:
    """For example `2026-03-01 00:00:00 UTC`."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
