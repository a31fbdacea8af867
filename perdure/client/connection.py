"""What both clients share of a connection: its settings, what counts as an answer, how a wait is paced."""

from collections.abc import Mapping
from typing import Any

import httpx
from pydantic import ValidationError

from perdure.client.errors import UNREADABLE, ApiError
from perdure.client.turn_answers import Turn

PATIENCE_SECONDS = 45.0
"""For how long an API that does not answer is asked again: one that is started anew is back by then."""
_SHORTEST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.1, 1.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def http_options(base_url: str, token: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings of an httpx client for this API; without a token, `headers` say who asks."""
    url = httpx.URL(base_url)
    bearer = {"Authorization": f"Bearer {token}"} if token else {}
    return {
        "base_url": base_url,
        "headers": {**bearer, "User-Agent": "perdure-client", **(headers or {})},
        # A proxy in the environment is for the way out, never for this machine's own API.
        "trust_env": url.host not in _LOOPBACK,
        # One who follows a thousand turns holds a thousand streams; httpx lets the hundred-and-first wait for ever.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        # Redirects are not followed, so plain http never becomes https; reading the certificates takes 0.2 s.
        "verify": url.scheme != "http",
    }


def is_answered(response: httpx.Response) -> bool:
    """Whether this is what was asked for."""
    return 200 <= response.status_code < 300


def unreadable(response: httpx.Response, error: ValidationError) -> ApiError:
    """An answer that is not what the contract says: most often another program listens at the address."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or "the body"
    url = response.request.url.copy_with(query=None)
    return ApiError(response.status_code, UNREADABLE, f"{url} answered what this client cannot read ({where})")


def poll_seconds(waited_seconds: float, timeout_seconds: float | None, turn: Turn) -> float:
    """How long to wait before the next look at a turn: a tenth of the wait so far.

    Raises: TimeoutError where the time is over.
    """
    if timeout_seconds is not None and waited_seconds >= timeout_seconds:
        raise TimeoutError(f"turn {turn.turn_id} is still {turn.status} after {waited_seconds:.1f} s")
    pause = min(max(waited_seconds / 10, _SHORTEST_POLL_SECONDS), _LONGEST_POLL_SECONDS)
    return pause if timeout_seconds is None else min(pause, timeout_seconds - waited_seconds)
