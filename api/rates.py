"""How much one caller may ask for in a minute, counted in Valkey by all API processes together.

Where Valkey is away every process counts for itself, up to a low fixed number: whoever takes Valkey down gains nothing.
"""

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from contracts.errors import LimitReached
from policy.addresses import counted_as
from store.valkey import Valkey

ALONE_PER_MINUTE = 20
"""Of one process without Valkey."""
RETRY_AFTER_SECONDS = 15
"""The window slides, so a quarter of it makes room again."""
CALLS_OF_A_PAGE = 5
"""A page that a person opens asks the API several times, so what pages ask counts apart, up to this much more."""
_INSIDE = "perdure.inside"
_UNCOUNTED = frozenset({"/healthz", "/readyz"})
_PREFIX = "perdure:rates"


class Inside:
    """The API for the pages of this process: what they ask is known to come from them. No connection can say so."""

    def __init__(self, api: ASGIApp) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on, marked."""
        await self._api({**scope, _INSIDE: True}, receive, send)


class Rates:
    """Counts callers."""

    def __init__(self, valkey: Valkey, per_minute: int, *, enabled: bool = True) -> None:
        self._valkey = valkey
        self._enabled = enabled
        self._per_minute = per_minute
        # The pool is the one that everything else here uses; the address is read and never gone to.
        storage = RedisStorage(
            "async+redis://localhost:6379",
            implementation="redispy",
            connection_pool=valkey.client.connection_pool,  # type: ignore[arg-type]
        )
        self._shared = SlidingWindowCounterRateLimiter(storage)
        self._own = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def count(self, *caller: str, times: int = 1) -> None:
        """One more request of this caller, who may send so many `times` more than others.

        Raises: LimitReached `rate_limited`.
        """
        if not self._enabled:
            return
        together = RateLimitItemPerMinute(self._per_minute * times, namespace=_PREFIX)
        within = await self._valkey.attempt(lambda: self._shared.hit(together, *caller))
        if within is None:
            alone = RateLimitItemPerMinute(min(self._per_minute, ALONE_PER_MINUTE) * times, namespace=_PREFIX)
            within = await self._own.hit(alone, *caller)
        if not within:
            raise LimitReached(
                "rate_limited", "too many requests; slow down", {"retry_after_seconds": RETRY_AFTER_SECONDS}
            )

    async def count_request(self, scope: Scope, *caller: str) -> None:
        """One more request of this caller, or of whoever cannot be told but by the address; those of pages apart, and
        those of the operator's probes not at all.

        Raises: LimitReached `rate_limited`.
        """
        if scope["path"] in _UNCOUNTED:
            return
        of = caller or ("address", counted_as((scope.get("client") or ("", 0))[0]))
        await (self.count("page", *of, times=CALLS_OF_A_PAGE) if scope.get(_INSIDE) else self.count(*of))
