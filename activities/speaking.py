"""Live tokens of one model call: the first at once, then in batches; fenced by the call's epoch.

Never in the way of the answer: pieces are sent beside the stream that brings them, one append at a time, and what
comes meanwhile goes with the next. So where Valkey is slow batches grow, and the answer does not wait.
"""

import asyncio
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import Self

from contracts.turns import TurnAddress
from store.live import Appended, LiveTokens

FLUSH_SECONDS = 0.04
"""One append for all tokens of this long: 32k tokens/s were measured in batches against 4k one by one."""
FULL_CHARACTERS = 256
"""A batch of so many goes at once."""
MOST_PIECE_CHARACTERS = 16_384
"""More is sent in pieces: whoever is far behind is read for piece by piece (store/live_reading.py)."""
_MOST_WAITING_CHARACTERS = 65_536
"""Beyond them the answer does wait: a provider that never pauses would let nothing else run."""


class Speaker:
    """Sends a call's text and reasoning to its readers as they grow; `async with` sends what is left at its end."""

    def __init__(self, live: LiveTokens, address: TurnAddress, call_id: str, epoch: int) -> None:
        self._live = live
        self._address = address
        self._call_id = call_id
        self._epoch = epoch
        self._sent_characters = 0
        self._thought_characters = 0
        self._waiting: list[tuple[bool, str]] = []
        """Whether it is reasoning, and the piece; neighbours of one kind are joined when they are sent."""
        self._waiting_characters = 0
        self._last_flush = float("-inf")
        self._may_go_on = True
        self._ending = False
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A settle commits after the last append, whatever ended the call: policy/stream.py relies on it."""
        self._ending = True
        self._hush()
        if self._sending is not None:
            await asyncio.wait([self._sending])
        if error is None:
            await self._send()

    async def say(self, text: str) -> bool:
        """Send `text` soon, also if nothing follows; False where the turn was stopped or a later attempt took over."""
        return await self._add(thinking=False, text=text)

    async def think(self, text: str) -> bool:
        """The same for a piece of the model's reasoning."""
        return await self._add(thinking=True, text=text)

    async def _add(self, *, thinking: bool, text: str) -> bool:
        self._waiting.append((thinking, text))
        self._waiting_characters += len(text)
        if self._sending is None:
            self._arrange()
            await asyncio.sleep(0)  # it goes out even where the provider never pauses
        elif self._waiting_characters > _MOST_WAITING_CHARACTERS:
            await asyncio.wait([self._sending])
        return self._may_go_on

    def _arrange(self) -> None:
        """See to it that what waits is sent when it is due. Nothing is being sent."""
        due_at = self._last_flush + FLUSH_SECONDS
        if self._waiting_characters >= FULL_CHARACTERS or asyncio.get_running_loop().time() >= due_at:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(due_at, self._begin)

    def _begin(self) -> None:
        self._hush()
        self._sending = asyncio.create_task(self._send_and_look())

    async def _send_and_look(self) -> None:
        try:
            await self._send()
        finally:
            self._sending = None
        if self._waiting and not self._ending:
            self._arrange()

    async def _send(self) -> None:
        """Send what waits, in order."""
        waiting, self._waiting, self._waiting_characters = self._waiting, [], 0
        self._last_flush = asyncio.get_running_loop().time()
        for thinking, text in _pieces(waiting):
            answer = await self._live.append(
                self._address,
                self._call_id,
                epoch=self._epoch,
                sequence=self._sent_characters,
                text=text,
                thinking=thinking,
                thought=self._thought_characters,
            )
            if thinking:
                self._thought_characters += len(text)
            else:
                self._sent_characters += len(text)
            self._may_go_on = self._may_go_on and answer not in (Appended.STALE, Appended.STOPPED)

    def _hush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _pieces(waiting: list[tuple[bool, str]]) -> Iterator[tuple[bool, str]]:
    """Neighbours of one kind as one piece, and of a long one its parts."""
    for thinking, texts in groupby(waiting, key=itemgetter(0)):
        text = "".join(each for _, each in texts)
        for start in range(0, len(text), MOST_PIECE_CHARACTERS):
            yield thinking, text[start : start + MOST_PIECE_CHARACTERS]
