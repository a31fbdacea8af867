"""Turns of one agent of a running stack, started and decided over REST."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import httpx

from perdure.client import AsyncClient
from tests.acceptance.running import RunningStack

PATIENCE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Happened:
    kind: str
    at: datetime
    call_id: str


async def json_of(request: Awaitable[httpx.Response]) -> Any:
    """Returns the body. Raises httpx.HTTPStatusError for a refusal."""
    return (await request).raise_for_status().json()


class Turns:
    """The turns of the requester, and the decisions of the reviewer."""

    def __init__(self, stack: RunningStack, agent: str) -> None:
        self._agent = agent
        self._held = AsyncExitStack()
        self._client = AsyncClient(stack.api, stack.token("requester"))
        self.requester, self.reviewer = (
            httpx.AsyncClient(base_url=stack.api, timeout=30, headers={"Authorization": f"Bearer {stack.token(name)}"})
            for name in ("requester", "reviewer")
        )

    async def __aenter__(self) -> Self:
        for client in (self._client, self.requester, self.reviewer):
            await self._held.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._held.aclose()

    async def begin(self, message: str) -> str:
        conversation = await self._client.conversations.create(self._agent)
        return (await self._client.turns.start(conversation.id, message)).turn_id

    async def begin_all(self, messages: Sequence[str]) -> list[str]:
        return list(await asyncio.gather(*(self.begin(message) for message in messages)))

    async def read(self, turn_id: str) -> dict[str, Any]:
        turn: dict[str, Any] = await json_of(self.requester.get(f"/v1/turns/{turn_id}"))
        return turn

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

    async def completed(self, turn_id: str) -> dict[str, Any]:
        assert await self.until([turn_id], "completed") == [], await self.read(turn_id)
        return await self.read(turn_id)

    async def approve(self, turn_id: str) -> datetime:
        """Approve what the turn waits for, on the digest that is shown; when the last decision was sent."""
        sent = datetime.now(UTC)
        for approval_id in (await self.read(turn_id))["waiting_for"]["ids"]:
            shown = await json_of(self.reviewer.get(f"/v1/approvals/{approval_id}"))
            sent = datetime.now(UTC)
            body = {"decision": "approve", "digest": shown["digest"]}
            await json_of(self.reviewer.post(f"/v1/approvals/{approval_id}/decision", json=body))
        return sent

    async def unknown_effects(self) -> dict[str, str]:
        """The keys of the effects with an unknown outcome, by turn."""
        asked: dict[str, str | int] = {"state": "outcome_unknown", "limit": 200}
        listed = await json_of(self.reviewer.get("/v1/effects", params=asked))
        return {each["turn_id"]: each["key"] for each in listed["items"]}

    async def settle(self, effect_key: str, comment: str) -> None:
        body = {"outcome": "happened", "comment": comment}
        await json_of(self.reviewer.post(f"/v1/effects/{effect_key}/settle", json=body))

    async def messages(self, turn: dict[str, Any]) -> list[dict[str, Any]]:
        listed = await json_of(self.requester.get(f"/v1/conversations/{turn['conversation_id']}/messages"))
        found: list[dict[str, Any]] = listed["items"]
        return found

    async def events(self, turn_id: str) -> list[Happened]:
        """The durable events of a turn that has ended, read from its stream."""
        return [
            Happened(event.kind, datetime.fromisoformat(event.data["at"]), event.call_id)
            async for event in self._client.turns.events(turn_id)
            if "at" in event.data
        ]
