"""Notices to receivers outside: how they are signed, when they are tried again, what they may say.

A receiver takes a notice only with a signature that fits its time and its delivery, only within minutes of that time,
and only once: then nobody else's notice, and no copy of an earlier one, moves it.
"""

import hashlib
import hmac
from datetime import timedelta

DELIVERY = "x-perdure-delivery"
TIMESTAMP = "x-perdure-timestamp"
SIGNATURE = "x-perdure-signature"
VALID_SECONDS = 300
"""How far a notice's time may lie from the receiver's clock."""
_SCHEME = "v1="
_FIRST = timedelta(seconds=5)
_MOST = timedelta(hours=1)
MOST_ATTEMPTS = 24
"""5 s, 10 s, 20 s … an hour each: most of a day."""


def sign(secret: str, timestamp: str, delivery: str, body: bytes) -> str:
    """The signature of one attempt."""
    text = f"{timestamp}.{delivery}.".encode() + body
    return _SCHEME + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def refusal(secret: str, timestamp: str, delivery: str, signature: str, body: bytes, now_seconds: float) -> str:
    """Why this is no notice for whoever has `secret`; empty where it is one. Whether it came before is not asked."""
    if not delivery or not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        return "it lacks its delivery or its time"
    expected = sign(secret, timestamp, delivery, body)
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        return "its signature does not fit"
    if abs(int(timestamp) - now_seconds) > VALID_SECONDS:
        return "it is too old, or from the future"
    return ""


def wait_after(attempts: int) -> timedelta | None:
    """How long until the next attempt after so many that failed; None: there is none."""
    if attempts >= MOST_ATTEMPTS:
        return None
    return min(_FIRST * 2 ** min(attempts - 1, 20), _MOST) if attempts > 0 else _FIRST


def says_args(risk: str, *, with_args: bool) -> bool:
    """Whether a notice carries the call's arguments: only where its administrator wants it, for what may be decided
    from a chat. Everything else is looked at on its page."""
    return with_args and risk == LOW_RISK


LOW_RISK = "low"
CHAT = "chat"
"""The label of a token by which a chat decides as the person whom it belongs to, and the channel of such a decision."""


def chat_may_decide(risk: str) -> bool:
    """Whether this may be decided from a chat at all."""
    return risk == LOW_RISK


# --- What counts as trouble of a part that still answers: in words for who looks after it, empty where there is none.

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
