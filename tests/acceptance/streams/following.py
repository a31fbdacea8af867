"""People who follow turns with the client that users have, and keep book of what a stream promises."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from perdure.client import AsyncClient, Event
from tests.eventually import until


@dataclass(slots=True)
class Followed:
    turn_id: str
    texts: dict[str, str] = field(default_factory=dict)
    """The text of each call, as a client puts it together: `reset` removes it."""
    words: list[str] = field(default_factory=list)
    """Every word that ever came in a token, also those that were taken back."""
    seqs: list[int] = field(default_factory=list)
    """The numbers of durable events, in the order in which they came."""
    resets: int = 0
    first_token_at: float | None = None
    """The time of the wall clock."""
    status: str = ""
    settled: dict[str, int] = field(default_factory=dict)
    """The number of characters in each call's `generation.complete`."""

    def take(self, event: Event) -> None:
        if event.kind == "token":
            self.first_token_at = self.first_token_at or time.time()
            text = str(event.data["text"])
            self.texts[event.call_id] = self.texts.get(event.call_id, "") + text
            self.words += text.split()
        elif event.kind == "reset":
            self.texts[event.call_id] = ""
            self.resets += 1
        elif event.kind == "workflow_complete":
            self.status = str(event.data["status"])
        elif event.kind != "thinking":
            self.seqs.append(int(event.data["seq"]))
            if event.kind == "generation.complete":
                self.settled[event.call_id] = int(event.data["characters"])

    @property
    def text(self) -> str:
        return next(reversed(self.texts.values()), "")

    def faults(self, answer: str) -> Iterator[str]:
        """Returns the differences from the promise; `answer` is the stored one."""
        if self.text != answer:
            yield f"{self.turn_id}: the reader has {len(self.text)} characters, the answer is {len(answer)} others"
        if self.seqs != list(range(1, len(self.seqs) + 1)):
            yield f"{self.turn_id}: durable events came as {self.seqs}"
        for call_id, characters in self.settled.items():
            if len(self.texts.get(call_id, "")) != characters:
                yield f"{self.turn_id}: {call_id} has {characters} characters, the reader others"


async def follow(client: AsyncClient, followed: Followed) -> Followed:
    """Read a turn's stream to its end, over as many connections as it takes."""
    async for event in client.turns.events(followed.turn_id):
        followed.take(event)
    return followed


class Readers(asyncio.TaskGroup):
    """Readers of turns; the block ends as the last of them has read its turn to the end."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__()
        self._client = client
        self.followed: list[Followed] = []

    def follow(self, ids: Sequence[str]) -> None:
        """One more for each of these turns."""
        for turn_id in ids:
            self.followed.append(Followed(turn_id))
            self.create_task(follow(self._client, self.followed[-1]))

    async def have_heard(self, words: int = 1) -> None:
        await until(lambda: all(len(each.words) >= words for each in self.followed), seconds=90.0)

    @property
    def mid_stream(self) -> int:
        return sum(bool(each.words) and not each.settled for each in self.followed)

    async def faults(self, texts: Sequence[str]) -> list[str]:
        """Returns the faults: each turn must complete with its text, and its reader must have the stored one."""
        found: list[str] = []
        for each, text in zip(self.followed, texts, strict=True):
            turn = await self._client.turns.get(each.turn_id)
            if (turn.status, turn.answer) != ("completed", text):
                found.append(f"{each.turn_id}: {turn.status} with another answer or none")
            found += each.faults(turn.answer or "")
        return found


async def begin(client: AsyncClient, agent: str, text: str) -> str:
    """Starts a turn with this text in a new conversation; returns its id."""
    conversation = await client.conversations.create(agent)
    return (await client.turns.start(conversation.id, f"/echo {text}")).turn_id


async def begin_all(client: AsyncClient, agent: str, texts: Sequence[str], *, at_once: int = 8) -> list[str]:
    """A turn for each text, a few requests at a time."""
    gate = asyncio.Semaphore(at_once)

    async def one(text: str) -> str:
        async with gate:
            return await begin(client, agent, text)

    return list(await asyncio.gather(*(one(text) for text in texts)))


def words(count: int, name: str) -> str:
    """A text of so many words, none like another, so that one lost or doubled is seen."""
    return " ".join(f"{name}-{number}" for number in range(count))
