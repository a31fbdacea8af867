"""When a request may be sent again, and when to give up. Pure: neither sleeps nor sends.

Sent again: after a broken or refused connection, and after a 503 that names a wait. Both are safe, because a change
carries its Idempotency-Key; one without is sent again only if it never left. Anything else is the API's answer.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import httpx

from perdure.client.errors import ApiError, error_of, unreachable
from policy.retry_after import retry_after_seconds

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 5.0
_NEVER_AGAIN = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(slots=True)
class Patience:
    """For how long one request, or one stream, may go unanswered. The waits are 0.2 0.4 0.8 1.6 3.2 5 5 … seconds."""

    base_url: str
    seconds: float
    _since: float | None = None
    _failures: int = 0

    def answered(self) -> None:
        """It answers: all patience is back."""
        self._since, self._failures = None, 0

    def after_break(self, error: httpx.TransportError, now: float, *, may_repeat: bool = True) -> float:
        """How long to wait after a connection that broke or never was.

        Without `may_repeat` only a request that was never sent is sent again.

        Raises: ApiError `unreachable` where patience is at its end or waiting cannot help.
        """
        failure = unreachable(self.base_url, error)
        if isinstance(error, _NEVER_AGAIN) or not (may_repeat or isinstance(error, _NEVER_SENT)):
            raise failure
        return self._wait(now, failure, 0.0)

    def after_answer(self, response: httpx.Response, now: float) -> float:
        """How long to wait after an answer that is an error; the answer's body has been read.

        Raises: ApiError, the answer itself, unless it is a 503 that names a wait.
        """
        wait = retry_after_seconds(response.headers, datetime.now(UTC)) if response.status_code == 503 else None
        if wait is None:
            raise error_of(response)
        return self._wait(now, error_of(response), wait)

    def after_end(self, now: float) -> float:
        """How long to wait after a stream's connection that ended in order, before its last event."""
        return self._wait(now, unreachable(self.base_url, ConnectionError("the stream ends again and again")), 0.0)

    def _wait(self, now: float, failure: ApiError, at_least: float) -> float:
        self._since = now if self._since is None else self._since
        wait = max(at_least, min(FIRST_WAIT_SECONDS * 2.0 ** min(self._failures, 10), LONGEST_WAIT_SECONDS))
        self._failures += 1
        if now + wait - self._since > self.seconds:
            raise failure
        return wait
