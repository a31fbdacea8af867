"""One turn, watched over its event stream: stopped at any event, resumed behind it, told as it goes."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from cli.demo.narrator import Narrator
from cli.demo.stage import StageFailed
from perdure.client import AsyncClient, Event, Turn

_EVENT_SECONDS = 90.0
"""Recovery takes 6 to 8 s; a machine on which an event takes this long is not going to show it."""


class Watched:
    """A turn and all that its reader has seen of it."""

    def __init__(self, client: AsyncClient, narrator: Narrator, turn: Turn) -> None:
        self._client = client
        self._narrator = narrator
        self.turn_id = turn.turn_id
        self.conversation_id = turn.conversation_id
        self.events: list[Event] = []
        self.heard: dict[str, str] = {}
        """The text of each model call as the reader holds it, resets obeyed."""

    async def until(self, kind: str, on_event: Callable[[Event], Awaitable[None]] | None = None) -> Event:
        """Read on from where the reading stopped, up to an event of this kind.

        Raises: StageFailed where the turn ends first, or nothing comes.
        """
        try:
            async with asyncio.timeout(_EVENT_SECONDS):
                found = await self._read(kind, on_event)
        except TimeoutError:
            turn = await self._client.turns.get(self.turn_id)
            raise StageFailed(f"no {kind} within {_EVENT_SECONDS:.0f} s; the turn is {turn.status}") from None
        if found is None:
            turn = await self._client.turns.get(self.turn_id)
            raise StageFailed(f"the turn ended as {turn.status} before any {kind}: {turn.error or turn.answer}")
        return found

    async def _read(self, kind: str, on_event: Callable[[Event], Awaitable[None]] | None) -> Event | None:
        last_id = next((event.id for event in reversed(self.events) if event.id), None)
        async with aclosing(self._client.turns.events(self.turn_id, after=last_id)) as stream:
            async for event in stream:
                self.events.append(event)
                self._tell(event)
                if on_event is not None:
                    await on_event(event)
                if event.kind == kind:
                    return event
        return None

    def _tell(self, event: Event) -> None:
        if event.kind == "token":
            text = str(event.data.get("text", ""))
            self.heard[event.call_id] = self.heard.get(event.call_id, "") + text
            self._narrator.hear(text)
        elif event.kind == "reset":
            self.heard[event.call_id] = ""
            self._narrator.now("reset: the half sentence is void, the reader forgets it, and hears it once:")
        elif event.kind == "tool.awaiting_approval":
            self._narrator.now(f"{event.data.get('tool')} waits for an approval; nothing has been sent anywhere")
        elif event.kind == "tool.approved":
            self._narrator.now(f"approved by {event.data.get('by')}")
        elif event.kind == "tool.executing":
            self._narrator.now(f"{event.data.get('tool')} runs, attempt {event.data.get('attempt')}")
        elif event.kind == "tool.result":
            self._narrator.now(f"{event.data.get('tool')} is recorded as done")
        elif event.kind == "tool.error":
            self._narrator.now(f"{event.data.get('tool')}: {event.data.get('code') or event.data.get('message')}")
