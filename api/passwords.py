"""Passwords are checked for strength and hashed, two at a time: argon2id takes 19 MiB and 18 ms of a core on purpose
(measured)."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pwdlib.hashers.argon2 import Argon2Hasher

from contracts.errors import CallerError, LimitReached
from policy.password_strength import names_of, weakness

T = TypeVar("T")
MEMORY_KIB = 19_456
ROUNDS = 2
LANES = 1
AT_ONCE = 2
MOST_WAITING = 64
"""More than these would wait for seconds; they are sent away instead."""
RETRY_AFTER_SECONDS = 2


class Passwords:
    """Hashes and checks, in threads of its own."""

    def __init__(self) -> None:
        self._hasher = Argon2Hasher(time_cost=ROUNDS, memory_cost=MEMORY_KIB, parallelism=LANES)
        self._pool = ThreadPoolExecutor(AT_ONCE, "passwords")
        self._under_way = 0
        self._nobodys = self._hasher.hash("nobody has this password")

    async def hashed(self, password: str) -> str:
        """The hash to be kept.

        Raises: LimitReached `sign_in_busy`.
        """
        return await self._run(lambda: self._hasher.hash(password))

    async def refuse_weak(self, password: str, *names: str) -> None:
        """Raises: CallerError 422 `password_weak` for a common password, or one of these names; LimitReached
        `sign_in_busy`."""
        weak = await self._run(lambda: weakness(password, names_of(*names)))
        if weak is not None:
            raise CallerError("password_weak", weak, {"field": "password"}, status=422)

    async def fits(self, password: str, kept: str | None) -> bool:
        """Whether this is the password of that hash. Where there is none it takes as long, and the answer is no.

        Raises: LimitReached `sign_in_busy`.
        """
        fits = await self._run(lambda: self._hasher.verify(password, kept or self._nobodys))
        return bool(fits) and kept is not None

    async def _run(self, work: Callable[[], T]) -> T:
        if self._under_way >= MOST_WAITING:
            raise LimitReached(
                "sign_in_busy",
                "too many sign in at this moment; try again",
                {"retry_after_seconds": RETRY_AFTER_SECONDS},
            )
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
