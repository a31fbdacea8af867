"""Turns of one agent of a running stack, asked for and decided over REST as its users do it."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import httpx

from tests.acceptance.running import RunningStack

PATIENCE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Happened:
    kind: str
    at: datetime
    call_id: str


class Turns:
    """The requester's turns, and the reviewer who decides them."""

    def __init__(self, stack: RunningStack, agent: str) -> None:
        self._agent = agent
        self._held = AsyncExitStack()
        self.requester, self.reviewer = (
            httpx.AsyncClient(base_url=stack.api, timeout=30, headers={"Authorization": f"Bearer {stack.token(name)}"})
            for name in ("requester", "reviewer")
        )

    async def __aenter__(self) -> Self:
        for client in (self.requester, self.reviewer):
            await self._held.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._held.aclose()

    async def begin(self, message: str) -> str:
        made = await self.requester.post("/v1/conversations", json={"agent": self._agent})
        made.raise_for_status()
        started = await self.requester.post(f"/v1/conversations/{made.json()['id']}/turns", json={"message": message})
        started.raise_for_status()
        return str(started.json()["turn_id"])

    async def begin_all(self, messages: Sequence[str]) -> list[str]:
        return list(await asyncio.gather(*(self.begin(message) for message in messages)))

    async def read(self, turn_id: str) -> dict[str, Any]:
        answer = await self.requester.get(f"/v1/turns/{turn_id}")
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    async def read_all(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(self.read(turn_id) for turn_id in ids)))

    async def until(self, ids: Sequence[str], status: str, seconds: float = PATIENCE_SECONDS) -> list[str]:
        """Wait until each turn is in `status`; those that did not come there in time."""
        missing = list(ids)
        deadline = time.monotonic() + seconds
        while missing and time.monotonic() < deadline:
            missing = [turn["turn_id"] for turn in await self.read_all(missing) if turn["status"] != status]
            await asyncio.sleep(0.05 if len(ids) == 1 else 0.2)  # many at once would be load of our own
        return missing

    async def approve(self, turn_id: str) -> datetime:
        """Approve what the turn waits for, on the digest that is shown; when the last decision was sent."""
        sent = datetime.now(UTC)
        for approval_id in (await self.read(turn_id))["waiting_for"]["ids"]:
            shown = await self.reviewer.get(f"/v1/approvals/{approval_id}")
            sent = datetime.now(UTC)
            answer = await self.reviewer.post(
                f"/v1/approvals/{approval_id}/decision", json={"decision": "approve", "digest": shown.json()["digest"]}
            )
            answer.raise_for_status()
        return sent

    async def unknown_effects(self) -> dict[str, str]:
        """The keys of the effects whose outcome nobody knows, by turn."""
        listed = await self.reviewer.get("/v1/effects", params={"state": "outcome_unknown", "limit": 200})
        listed.raise_for_status()
        return {each["turn_id"]: each["key"] for each in listed.json()["items"]}

    async def settle(self, effect_key: str, comment: str) -> None:
        answer = await self.reviewer.post(
            f"/v1/effects/{effect_key}/settle", json={"outcome": "happened", "comment": comment}
        )
        answer.raise_for_status()

    async def messages(self, turn: dict[str, Any]) -> list[dict[str, Any]]:
        answer = await self.requester.get(f"/v1/conversations/{turn['conversation_id']}/messages")
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    async def events(self, turn_id: str) -> list[Happened]:
        """The durable events of a turn that has ended, read from its stream."""
        found: list[Happened] = []
        async with self.requester.stream("GET", f"/v1/turns/{turn_id}/events") as stream:
            kind = ""
            async for line in stream.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = json.loads(line.removeprefix("data: "))
                    if "at" in data:
                        found.append(Happened(kind, datetime.fromisoformat(data["at"]), data.get("call_id") or ""))
        return found
