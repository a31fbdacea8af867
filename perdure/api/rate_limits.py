"""Rate limits of callers per minute, which all API processes count together in Valkey.

If Valkey is unavailable, every process counts for itself, up to a low fixed number. Taking Valkey down gains nothing.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.contracts.errors import LimitReached
from perdure.core.request_origin import counted_as
from perdure.store.valkey import Valkey

FALLBACK_PER_MINUTE = 20
"""The limit of one process without Valkey."""
RETRY_AFTER_SECONDS = 15
"""The window slides, so a quarter of it frees enough requests."""
PAGE_LIMIT_FACTOR = 5
"""Opening a page causes several API requests. Requests of pages are therefore counted separately, with a limit that is
this many times higher."""
_PAGE_CALL_MARK = "perdure.inside"
_UNCOUNTED_PATHS = frozenset({"/healthz", "/readyz"})
_KEY_PREFIX = "perdure:rates"


class PageApi:
    """The API as the pages of this process call it. It marks their requests, which no connection can do."""

    def __init__(self, api: ASGIApp) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with the mark."""
        await self._api({**scope, _PAGE_CALL_MARK: True}, receive, send)


class RateLimits:
    """Counts the requests of callers."""

    def __init__(self, valkey: Valkey, per_minute: int, *, enabled: bool = True) -> None:
        self._valkey = valkey
        self._enabled = enabled
        self._per_minute = per_minute
        # The storage uses the connection pool of the rest of the process. The address is parsed but never connected to.
        storage = RedisStorage(
            "async+redis://localhost:6379",
            implementation="redispy",
            connection_pool=valkey.client.connection_pool,  # type: ignore[arg-type]
        )
        self._shared = SlidingWindowCounterRateLimiter(storage)
        self._local = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def count(self, *caller: str, factor: int = 1) -> None:
        """Counts one request of this caller, whose limit is `factor` the usual one.

        Raises: LimitReached `rate_limited`.
        """
        if not self._enabled:
            return
        shared_limit = RateLimitItemPerMinute(self._per_minute * factor, namespace=_KEY_PREFIX)
        is_within = await self._valkey.attempt(lambda: self._shared.hit(shared_limit, *caller))
        if is_within is None:
            own_limit = RateLimitItemPerMinute(
                min(self._per_minute, FALLBACK_PER_MINUTE) * factor, namespace=_KEY_PREFIX
            )
            is_within = await self._local.hit(own_limit, *caller)
        if not is_within:
            raise LimitReached(
                "rate_limited",
                "Rate limit exceeded; retry after the time in Retry-After",
                {"retry_after_seconds": RETRY_AFTER_SECONDS},
            )

    async def count_request(self, scope: Scope, *caller: str) -> None:
        """Counts one request of this caller, or of its address if the caller is unknown. Requests of pages are counted
        separately, and the operator's probes not at all.

        Raises: LimitReached `rate_limited`.
        """
        if scope["path"] in _UNCOUNTED_PATHS:
            return
        key = caller or ("address", counted_as((scope.get("client") or ("", 0))[0]))
        await (self.count("page", *key, factor=PAGE_LIMIT_FACTOR) if scope.get(_PAGE_CALL_MARK) else self.count(*key))


class OpenStreams:
    """Counts the open streams. A stream uses a connection and about 40 KB of the process that serves it, so each
    process counts its own."""

    def __init__(self, per_user: int, per_tenant: int) -> None:
        self._per_user = per_user
        self._per_tenant = per_tenant
        self._open: Counter[tuple[str, ...]] = Counter()

    @contextmanager
    def counting(self, tenant_id: str, user_id: str) -> Iterator[None]:
        """Counts a stream of this user while the block runs.

        Raises: LimitReached `too_many_streams`.
        """
        user, tenant = (tenant_id, user_id), (tenant_id,)
        self._check_open(user, self._per_user, "PERDURE_STREAMS_PER_USER", "You have")
        self._check_open(tenant, self._per_tenant, "PERDURE_STREAMS_PER_TENANT", "Your tenant has")
        self._open.update((user, tenant))
        try:
            yield
        finally:
            for key in (user, tenant):
                self._open[key] -= 1
                if not self._open[key]:
                    del self._open[key]

    def _check_open(self, key: tuple[str, ...], limit: int, variable: str, subject: str) -> None:
        open_streams = self._open[key]
        if open_streams < limit:
            return
        details: dict[str, object] = {
            "open": open_streams,
            "limit": limit,
            "variable": variable,
            "retry_after_seconds": RETRY_AFTER_SECONDS,
        }
        advice = "close a stream that is not in use, or follow a conversation's turns with one conversation stream"
        raise LimitReached(
            "too_many_streams", f"{subject} {open_streams} open streams, the limit ({variable}); {advice}", details
        )
