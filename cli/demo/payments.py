"""The payments service seen from outside: what it really did, and how to hold its answer back."""

import asyncio
import time
from types import TracebackType
from typing import Any, Self

import httpx

from cli.demo.stage import StageFailed

_HOLD_SECONDS = 60.0
_EFFECT_SECONDS = 30.0


class Payments:
    """A client of its own; nothing in here goes through Perdure."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._http = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, verify=False, timeout=10.0
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def hold_answers(self, kind: str) -> None:
        """Keep the next answer about an effect of this kind back, after the effect is on disk."""
        fault = {"point": "after_commit", "delay_seconds": _HOLD_SECONDS, "times": 1, "kind": kind}
        (await self._http.post("/faults", json=fault)).raise_for_status()

    async def let_go(self) -> None:
        """Hold nothing back any more."""
        (await self._http.delete("/faults")).raise_for_status()

    async def count(self, order: str, kind: str) -> int:
        """How many effects of this kind the service's own ledger has for an order."""
        orders = (await self._get("/ledger"))["orders"]
        return int(orders.get(order, {}).get(kind, 0))

    async def until_made(self, order: str, kind: str) -> None:
        """Wait until the effect is on the service's disk.

        Raises: StageFailed.
        """
        deadline = time.monotonic() + _EFFECT_SECONDS
        while not await self.count(order, kind):
            if time.monotonic() > deadline:
                raise StageFailed(f"no {kind} has reached the payments service after {_EFFECT_SECONDS:.0f} s")
            await asyncio.sleep(0.05)

    async def requests(self, path: str) -> list[dict[str, Any]]:
        """The requests that came for a path, answered or not."""
        received = (await self._get("/requests"))["requests"]
        return [request for request in received if request["path"] == path and request["method"] == "POST"]

    async def last_effect(self) -> str:
        """The newest effect as the ledger names it."""
        effect = (await self._get("/ledger"))["effects"][-1]
        return f"{effect['kind']}-{effect['id']}"

    async def _get(self, path: str) -> dict[str, Any]:
        answer = await self._http.get(path)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found
