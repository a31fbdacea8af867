"""Writes a turn the way workers do: claims, live pieces, settles; for readers to follow."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from pydantic import JsonValue

from perdure.contracts.messages import Role
from perdure.contracts.turns import TurnAddress
from perdure.store.database import Database, new_id
from perdure.store.events.event_log import NewEvent, NewMessage, write
from perdure.store.events.live import AppendResult, LiveTokens
from tests.conftest import Person


@dataclass(slots=True)
class TurnWriter:
    db: Database
    live: LiveTokens
    address: TurnAddress
    _said: dict[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    async def begin(cls, db: Database, live: LiveTokens, person: Person) -> "TurnWriter":
        conversation_id = new_id()
        async with db.transaction(person.tenant_id) as tx:
            await tx.execute(
                "INSERT INTO conversations (id, tenant_id, user_id, agent_id) VALUES ($1, $2, $3, 'refunds')",
                *(conversation_id, person.tenant_id, person.user_id),
            )
        return await cls.turn_in(db, live, person, conversation_id)

    @classmethod
    async def turn_in(cls, db: Database, live: LiveTokens, person: Person, conversation_id: str) -> "TurnWriter":
        turn_id = new_id()
        async with db.transaction(person.tenant_id) as tx:
            await tx.execute(
                "INSERT INTO turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, "
                "status, routing, limits, message_id, through_seq) "
                "VALUES ($1, $2, $3, $4, 'refunds', 'v', 'skill_pipeline', 'running', '{}', '{}', $1, 0)",
                *(turn_id, person.tenant_id, conversation_id, person.user_id),
            )
        address = TurnAddress(tenant_id=person.tenant_id, conversation_id=conversation_id, turn_id=turn_id)
        turn_writer = cls(db, live, address)
        await turn_writer.event("ready")
        return turn_writer

    async def event(self, kind: str, call_id: str | None = None, **data: JsonValue) -> None:
        await self.events(NewEvent(kind, data, call_id))

    async def events(self, *events: NewEvent) -> None:
        async with self.db.transaction(self.address.tenant_id) as tx:
            await write(tx, self.address, events)
        self.live.wake(self.address.conversation_id)

    async def claim(self, call_id: str, epoch: int = 1) -> None:
        await self.event("generation.start", call_id, attempt=epoch)

    async def speak(self, call_id: str, *pieces: str, epoch: int = 1) -> AppendResult:
        answer = AppendResult.ACCEPTED
        for piece in pieces:
            before = self._said.get((call_id, epoch), 0)
            answer = await self.live.append(self.address, call_id, epoch=epoch, sequence=before, text=piece)
            self._said[call_id, epoch] = before + len(piece)
        return answer

    async def settle(self, call_id: str, text: str, epoch: int = 1) -> None:
        message = NewMessage(new_id(), Role.ASSISTANT, text)
        data: dict[str, JsonValue] = {"attempt": epoch, "characters": len(text), "message_id": message.id}
        done = NewEvent("generation.complete", data, call_id)
        async with self.db.transaction(self.address.tenant_id) as tx:
            await write(tx, self.address, [done], [message])
        self.live.wake(self.address.conversation_id)

    async def finish(self) -> None:
        async with self.db.transaction(self.address.tenant_id) as tx:
            ended = "UPDATE turns SET status = 'completed', ended_at = now() WHERE id = $1"
            await tx.execute(ended, self.address.turn_id)
            await write(tx, self.address, [NewEvent("done", {"status": "completed"})])
        self.live.wake(self.address.conversation_id)


@dataclass(frozen=True, slots=True)
class Sent:
    """One event as a client gets it; a comment has no kind."""

    kind: str
    id: str | None
    data: dict[str, object]


def parsed(chunk: bytes) -> list[Sent]:
    sent = []
    for block in chunk.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if lines or block.startswith(":"):
            sent.append(Sent(lines.get("event", ""), lines.get("id"), json.loads(lines.get("data", "{}"))))
    return sent


async def read_until(
    stream: AsyncGenerator[bytes], enough: Callable[[list[Sent]], bool], seconds: float = 10.0
) -> list[Sent]:
    """What comes until `enough` says so, or the stream ends; the stream is left open."""
    got: list[Sent] = []
    async with asyncio.timeout(seconds):
        async for chunk in stream:
            got += parsed(chunk)
            if enough(got):
                break
    return got


def text_of(sent: list[Sent], call_id: str = "m1") -> str:
    text = ""
    for event in sent:
        if event.data.get("call_id") == call_id:
            text = "" if event.kind == "reset" else text + str(event.data["text"]) if event.kind == "token" else text
    return text
