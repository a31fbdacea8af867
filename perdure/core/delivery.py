"""Webhook deliveries: their signatures, retries and contents.

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
_FIRST_DELAY = timedelta(seconds=5)
_LONGEST_DELAY = timedelta(hours=1)
MAX_ATTEMPTS = 24
"""Delays of 5 s, 10 s, 20 s … up to an hour each: most of a day in total."""
LOW_RISK = "low"
CHAT = "chat"
"""The label of a token with which a chat decides as its owner, and the channel of such a decision."""


def sign(secret: str, timestamp: str, delivery: str, body: bytes) -> str:
    """Returns the signature of one attempt: HMAC-SHA256 of timestamp, delivery id and body, in hexadecimal with the
    scheme's prefix."""
    text = f"{timestamp}.{delivery}.".encode() + body
    return _SCHEME + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def delivery_refusal(
    secret: str, timestamp: str, delivery: str, signature: str, body: bytes, now_seconds: float
) -> str:
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
    if attempts >= MAX_ATTEMPTS:
        return None
    return min(_FIRST_DELAY * 2 ** min(attempts - 1, 20), _LONGEST_DELAY) if attempts > 0 else _FIRST_DELAY


def says_args(risk: str, *, with_args: bool) -> bool:
    """Returns whether a webhook includes the call's arguments: only if its administrator wants it, and only for calls
    that can be decided in a chat. All others are reviewed on their page."""
    return with_args and risk == LOW_RISK


def chat_may_decide(risk: str) -> bool:
    """Returns whether a call with this risk can be decided in a chat."""
    return risk == LOW_RISK
