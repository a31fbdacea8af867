"""The wait that another side asks for: the Retry-After header, in seconds or as a date (RFC 9110, 10.2.3)."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def retry_after_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """The wait in seconds, or None where none is asked for or it cannot be read; a date gone by is zero.

    `retry-after-ms`, which OpenAI sends, is preferred: it is the finer one. A date counts from `now`.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    finer = _number(lower.get("retry-after-ms", ""))
    if finer is not None:
        return finer / 1000
    value = lower.get("retry-after", "").strip()
    seconds = _number(value)
    return seconds if seconds is not None else _until(value, now)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _until(value: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:  # "-0000" means UTC without a place
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())
