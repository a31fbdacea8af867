"""Parses and verifies approval webhooks. Raises: InvalidDelivery with the reason if a request is invalid.

    notice = read(secret, request.headers, await request.body())

A notice is valid only with a matching signature, and only for five minutes. The receiver must recognize repeated
notices: keep the `id` of each notice for that long, and the highest `version` of each approval permanently.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

from perdure.core.delivery import DELIVERY, SIGNATURE, TIMESTAMP, VALID_SECONDS, delivery_refusal

__all__ = ["VALID_SECONDS", "InvalidDelivery", "read"]


class InvalidDelivery(Exception):
    """The request is not a valid notice. Respond with 400, and do nothing."""


def read(secret: str, headers: Mapping[str, str], body: bytes, *, now_seconds: float | None = None) -> dict[str, Any]:
    """Returns the notice in a request: {id, event, at, sent_at, url, approval: {id, status, version, tool, agent, risk,
    requested_by, expires_at, decision, decided_by, …}}.

    Raises: InvalidDelivery.
    """
    lowercased = {name.lower(): value for name, value in headers.items()}
    timestamp, delivery, signature = (lowercased.get(name, "") for name in (TIMESTAMP, DELIVERY, SIGNATURE))
    now = time.time() if now_seconds is None else now_seconds
    refusal = delivery_refusal(secret, timestamp, delivery, signature, body, now)
    if refusal:
        raise InvalidDelivery(refusal)
    try:
        notice = json.loads(body)
    except ValueError as error:
        raise InvalidDelivery("the body is not valid JSON") from error
    if not isinstance(notice, dict) or notice.get("id") != delivery:
        raise InvalidDelivery("the body belongs to another delivery")
    return notice
