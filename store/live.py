"""Live tokens in Valkey: one stream a conversation, fenced so that a stale attempt cannot speak.

Nothing here is needed for an answer. Losing Valkey never raises into the caller's work: the answer is DEGRADED or
empty, and it is logged once. Everything lives for an hour after the last token.
"""

import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import chain
from typing import cast

from contracts.turns import TurnAddress
from policy.cursor import Cursor, entry_order
from policy.reader import CallKey, TokenBatch, TokenEntry
from policy.resume import Mark
from store.live_scripts import APPEND, READ
from store.valkey import Valkey

LIVE_SECONDS = 3_600
LIVE_ENTRIES = 10_000
"""The stream of a conversation is trimmed to about this many entries."""
_BATCH_ENTRIES = 200
_BATCH_CHARACTERS = 32_768
"""About what is held for one slow reader: a batch is merged and sent as a whole."""
_SEARCH_ENTRIES = 200
_FORGOTTEN_AT_ONCE = 500

WOKEN_BY_EVENTS = "e"
"""What a wake-up says where durable events were committed; one for tokens says `t`."""

Marks = dict[CallKey, Mark]
_Rows = list[tuple[str, dict[str, str]]]


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
        self._read = valkey.client.register_script(READ)

    @classmethod
    def connect(cls, url: str) -> "LiveTokens":
        """The live side at this address; it connects when it is first used."""
        return cls(Valkey.connect(url))

    async def close(self) -> None:
        """Close the connection that `connect` opened."""
        await self._valkey.close()

    async def append(self, address: TurnAddress, call_id: str, *, epoch: int, sequence: int, text: str) -> Appended:
        """Send the next piece of a call's text to its readers.

        `epoch` is the attempt that claimed the call, `sequence` the number of its characters that came before `text`.
        A piece sent twice is shown once; where one is missing, readers wait for the settled text.
        """
        if not text:
            return Appended.ACCEPTED
        stream, epoch_key = _keys(address.tenant_id, address.conversation_id)
        call_key, stop_key = _call_key(stream, (address.turn_id, call_id)), _stop_key(stream, address.turn_id)
        arguments = (
            address.turn_id,
            call_id,
            epoch,
            sequence,
            text,
            sequence + len(text),
            secrets.token_hex(6),
            LIVE_ENTRIES,
            LIVE_SECONDS * 1_000,
            channel(address.conversation_id),
        )
        answer = await self._valkey.attempt(
            lambda: self._append(keys=[stream, epoch_key, call_key, stop_key], args=arguments)
        )
        return Appended.DEGRADED if answer is None else Appended(answer)

    async def stop(self, address: TurnAddress) -> None:
        """Tell whoever speaks for this turn to stop: its next piece is answered STOPPED."""
        stream, _ = _keys(address.tenant_id, address.conversation_id)
        key = _stop_key(stream, address.turn_id)
        await self._valkey.attempt(lambda: self._valkey.client.set(key, "1", ex=LIVE_SECONDS))

    async def forget(self, tenant_id: str, conversation_ids: Sequence[str]) -> None:
        """Take away what was said live in these conversations; a reader of one is not disturbed. Where Valkey is out of
        reach it goes by itself, an hour after the last token."""
        for start in range(0, len(conversation_ids), _FORGOTTEN_AT_ONCE):
            keys = [_keys(tenant_id, each) for each in conversation_ids[start : start + _FORGOTTEN_AT_ONCE]]
            await self._valkey.attempt(partial(self._valkey.client.unlink, *chain.from_iterable(keys)))

    async def wake(self, conversation_id: str) -> None:
        """Tell the readers of a conversation that durable events were committed."""
        await self._valkey.attempt(lambda: self._valkey.client.publish(channel(conversation_id), WOKEN_BY_EVENTS))

    async def tokens(self, tenant_id: str, conversation_id: str, epoch: str, entry_id: str) -> TokenBatch:
        """The entries after `entry_id`, or from the beginning where the stream's epoch is not `epoch`."""
        answer = await self._valkey.attempt(
            lambda: self._read(keys=_keys(tenant_id, conversation_id), args=[epoch, entry_id, _BATCH_ENTRIES])
        )
        if not answer:
            return TokenBatch(None)
        now, rows = answer
        entries: list[TokenEntry] = []
        characters = 0
        for entry_id, flat in rows:
            entries.append(_entry(entry_id, dict(zip(flat[::2], flat[1::2], strict=True))))
            characters += len(entries[-1].text)
            if characters > _BATCH_CHARACTERS:
                break
        return TokenBatch(now, entries, more=len(entries) == _BATCH_ENTRIES or len(entries) < len(rows))

    async def marks(self, tenant_id: str, conversation_id: str, cursor: Cursor, keys: Sequence[CallKey]) -> Marks:
        """What the stream knows of these calls at `cursor`; a call of which it knows nothing is left out."""
        if not keys:
            return {}
        answer = await self._valkey.attempt(lambda: self._look(_keys(tenant_id, conversation_id), cursor, keys))
        return answer or {}

    async def _look(self, stream_and_epoch: tuple[str, str], cursor: Cursor, keys: Sequence[CallKey]) -> Marks:
        stream, epoch_key = stream_and_epoch
        client = self._valkey.client
        async with client.pipeline(transaction=False) as pipe:
            pipe.get(epoch_key)
            pipe.xrange(stream, count=1)
            for key in keys:
                pipe.hmget(_call_key(stream, key), "epoch", "attempt", "end", "from", "first", "last")
            epoch, oldest, *fences = await pipe.execute()
        found: Marks = {}
        at = entry_order(cursor.entry_id)
        kept_from = entry_order(oldest[0][0]) if oldest else at
        for key, (fence_epoch, attempt, end, chained_from, first, last) in zip(keys, fences, strict=True):
            if fence_epoch is None or fence_epoch != epoch or epoch != cursor.epoch:
                continue
            if entry_order(first) > at:
                found[key] = Mark(int(attempt), 0, chained_from == "0", begun=False)
            elif entry_order(first) < kept_from:
                # Trimmed: a reader may have come to this place without having seen the call's beginning.
                continue
            elif entry_order(last) <= at:
                found[key] = Mark(int(attempt), int(end), chained_from == "0")
            else:
                # The reader was behind: its place is in the middle of this call, and most often just at the cursor.
                rows = cast(_Rows, await client.xrevrange(stream, cursor.entry_id, "-", count=_SEARCH_ENTRIES))
                mark = next((_mark(fields) for _, fields in rows if (fields["t"], fields["c"]) == key), None)
                if mark is not None:
                    found[key] = mark
        return found


def channel(conversation_id: str) -> str:
    """The pub/sub channel of a conversation."""
    return f"perdure:wake:{conversation_id}"


def _keys(tenant_id: str, conversation_id: str) -> tuple[str, str]:
    """The stream and its epoch; the braces keep a conversation's keys together in a cluster."""
    stem = f"perdure:{tenant_id}:{{{conversation_id}}}"
    return f"{stem}:tokens", f"{stem}:epoch"


def _call_key(stream_key: str, key: CallKey) -> str:
    return f"{stream_key}:{key[0]}:{key[1]}"


def _stop_key(stream_key: str, turn_id: str) -> str:
    return f"{stream_key}:{turn_id}:stop"


def _entry(entry_id: str, fields: Mapping[str, str]) -> TokenEntry:
    return TokenEntry(
        entry_id,
        fields["t"],
        fields["c"],
        int(fields["a"]),
        int(fields["s"]),
        fields.get("x", ""),
        begins="x" not in fields,
    )


def _mark(fields: Mapping[str, str]) -> Mark:
    return Mark(int(fields["a"]), int(fields["s"]) + len(fields.get("x", "")), fields["f"] == "0")
