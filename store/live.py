"""Live tokens in Valkey: one stream a conversation, fenced so that a stale attempt cannot speak.

Nothing here is needed for an answer. Losing Valkey never raises into the caller's work: the answer is DEGRADED or
empty, and it is logged once. Everything lives for an hour after the last token.
"""

import secrets
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from itertools import chain

from contracts.turns import TurnAddress
from policy.cursor import Cursor
from policy.reader import CallKey, TokenBatch
from store import live_reading, stop_calls
from store.live_keys import WOKEN_BY_EVENTS, channel, fence_of, stop_of, stream_and_epoch
from store.live_reading import LiveReader, Marks
from store.live_scripts import APPEND
from store.valkey import Valkey

LIVE_SECONDS = 3_600
LIVE_ENTRIES = 10_000
"""The stream of a conversation is trimmed to about this many entries."""
_FORGOTTEN_AT_ONCE = 500


class Appended(StrEnum):
    """What became of some text."""

    ACCEPTED = "accepted"
    STALE = "stale"
    """A later attempt of this call speaks: give up."""
    STOPPED = "stopped"
    """The turn was asked to stop: end the call and keep what there is."""
    DEGRADED = "degraded"
    """Valkey is out of reach: go on, readers get the settled text instead."""


class LiveTokens:
    """The live side of the event streams."""

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey
        self._append = valkey.client.register_script(APPEND)
        self._reader = LiveReader(valkey)

    @classmethod
    def connect(cls, url: str) -> "LiveTokens":
        """The live side at this address; it connects when it is first used."""
        return cls(Valkey.connect(url))

    async def close(self) -> None:
        """Close the connection that `connect` opened."""
        await self._valkey.close()

    async def append(
        self,
        address: TurnAddress,
        call_id: str,
        *,
        epoch: int,
        sequence: int,
        text: str,
        thinking: bool = False,
        thought: int = 0,
    ) -> Appended:
        """Send the next piece of a call's text to its readers, or with `thinking` of its reasoning.

        `epoch` is the attempt that claimed the call, `sequence` the number of its characters that came before `text`,
        `thought` that of its reasoning's. A piece sent twice is shown once; where one of the text is missing, readers
        wait for the settled text.
        """
        if not text:
            return Appended.ACCEPTED
        stream, epoch_key = stream_and_epoch(address.tenant_id, address.conversation_id)
        fence, stop = fence_of(stream, (address.turn_id, call_id)), stop_of(stream, address.turn_id)
        arguments = (
            address.turn_id,
            call_id,
            epoch,
            sequence,
            text,
            sequence + (0 if thinking else len(text)),
            secrets.token_hex(6),
            LIVE_ENTRIES,
            LIVE_SECONDS * 1_000,
            channel(address.conversation_id),
            "y" if thinking else "x",
            thought,
            thought + (len(text) if thinking else 0),
        )
        answer = await self._valkey.attempt(lambda: self._append(keys=[stream, epoch_key, fence, stop], args=arguments))
        return Appended.DEGRADED if answer is None else Appended(answer)

    async def stop(self, address: TurnAddress) -> None:
        """Tell whoever speaks for this turn to stop: its next piece is answered STOPPED, and its worker is called."""
        stream, _ = stream_and_epoch(address.tenant_id, address.conversation_id)
        key = stop_of(stream, address.turn_id)
        await self._valkey.attempt(lambda: self._valkey.client.set(key, "1", ex=LIVE_SECONDS))
        await self._valkey.attempt(lambda: self._valkey.client.publish(stop_calls.CHANNEL, address.turn_id))

    async def forget(self, tenant_id: str, conversation_ids: Sequence[str]) -> None:
        """Take away what was said live in these conversations; a reader of one is not disturbed. Where Valkey is out of
        reach it goes by itself, an hour after the last token."""
        for start in range(0, len(conversation_ids), _FORGOTTEN_AT_ONCE):
            keys = [stream_and_epoch(tenant_id, each) for each in conversation_ids[start : start + _FORGOTTEN_AT_ONCE]]
            await self._valkey.attempt(partial(self._valkey.client.unlink, *chain.from_iterable(keys)))

    async def wake(self, conversation_id: str) -> None:
        """Tell the readers of a conversation that durable events were committed."""
        await self._valkey.attempt(lambda: self._valkey.client.publish(channel(conversation_id), WOKEN_BY_EVENTS))

    async def tokens(self, tenant_id: str, conversation_id: str, epoch: str, entry_id: str) -> TokenBatch:
        """The entries after `entry_id`, or from the beginning where the stream's epoch is not `epoch`."""
        return await self._reader.tokens((tenant_id, conversation_id, epoch, entry_id))

    async def marks(self, tenant_id: str, conversation_id: str, cursor: Cursor, keys: Sequence[CallKey]) -> Marks:
        """What the stream knows of these calls at `cursor`; a call of which it knows nothing is left out."""
        if not keys:
            return {}
        answer = await self._valkey.attempt(
            lambda: live_reading.marks(self._valkey, tenant_id, conversation_id, cursor, keys)
        )
        return answer or {}
