"""Webhook deliveries: their signatures, retries and contents; and health faults of the deployment.

A receiver accepts a delivery only if its signature matches its time and its id, only within minutes of that time, and
only once. This rejects forged deliveries and copies of earlier ones.
"""

import hashlib
import hmac
from datetime import timedelta

DELIVERY = "x-perdure-delivery"
TIMESTAMP = "x-perdure-timestamp"
SIGNATURE = "x-perdure-signature"
VALID_SECONDS = 300
"""Maximum difference between a delivery's time and the receiver's clock, in seconds."""
_SCHEME = "v1="
_FIRST = timedelta(seconds=5)
_MOST = timedelta(hours=1)
MOST_ATTEMPTS = 24
"""Delays of 5 s, 10 s, 20 s … up to an hour each: most of a day in total."""


def sign(secret: str, timestamp: str, delivery: str, body: bytes) -> str:
    """Returns the signature of one attempt."""
    text = f"{timestamp}.{delivery}.".encode() + body
    return _SCHEME + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def refusal(secret: str, timestamp: str, delivery: str, signature: str, body: bytes, now_seconds: float) -> str:
    """Returns why the delivery is invalid for the holder of `secret`, or an empty text. It does not detect repeats."""
    if not delivery or not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        return "the delivery id or the timestamp is missing"
    expected = sign(secret, timestamp, delivery, body)
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        return "the signature is invalid"
    if abs(int(timestamp) - now_seconds) > VALID_SECONDS:
        return "the timestamp is too old or in the future"
    return ""


def wait_after(attempts: int) -> timedelta | None:
    """Returns the delay until the next attempt after this many failures, or None if there is none."""
    if attempts >= MOST_ATTEMPTS:
        return None
    return min(_FIRST * 2 ** min(attempts - 1, 20), _MOST) if attempts > 0 else _FIRST


def says_args(risk: str, *, with_args: bool) -> bool:
    """Returns whether a webhook includes the call's arguments: only if its administrator wants it, and only for calls
    that can be decided in a chat. All others are reviewed on their page."""
    return with_args and risk == LOW_RISK


LOW_RISK = "low"
CHAT = "chat"
"""The label of a token with which a chat decides as its owner, and the channel of such a decision."""


def chat_may_decide(risk: str) -> bool:
    """Returns whether a call with this risk can be decided in a chat."""
    return risk == LOW_RISK


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
