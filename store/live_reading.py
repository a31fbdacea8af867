"""Reading the live side: the entries behind a reader's place, many readers' in one round trip, and marks of calls.

One reader for the whole process: whoever asks while a round trip is under way shares the next one, so that a thousand
streams cost a round trip and not a thousand, and the busier the process is the more each carries.

Invariant: an answer comes from a read that began after it was asked for, so nobody misses what woke them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, cast

from redis.exceptions import NoScriptError

from policy.cursor import Cursor, entry_order
from policy.reader import CallKey, TokenBatch, TokenEntry
from policy.resume import Mark
from store.live_keys import fence_of, stream_and_epoch
from store.live_scripts import READ
from store.valkey import Valkey

TokensPlace = tuple[str, str, str, str]
"""Tenant, conversation, epoch, id of the last entry seen."""
Marks = dict[CallKey, Mark]
_Rows = list[tuple[str, dict[str, str]]]

_BATCH_ENTRIES = 200
_BATCH_BYTES = 32_768
"""About what is held for one slow reader: a batch is merged and sent as a whole. The script stops behind the entry
with which they are reached, and an entry is short too (activities/speaking.py)."""
_PLACES_AT_ONCE = 64
"""In one round trip: some 2 MB come back, and nobody waits long for those who are far behind."""
_SEARCH_ENTRIES = 200


class LiveReader:
    """The one reader of live entries of a process."""

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey
        self._script = valkey.client.register_script(READ)
        self._asked: dict[TokensPlace, asyncio.Future[TokenBatch]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def tokens(self, place: TokensPlace) -> TokenBatch:
        """The entries after a place, or from the beginning where the stream's epoch is another."""
        answer = self._asked.get(place)
        if answer is None:
            answer = self._asked[place] = asyncio.get_running_loop().create_future()
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
        # A reader that goes away must not take the answer away from the others.
        return await asyncio.shield(answer)

    async def _read(self) -> None:
        """Answer all that is asked, and what is asked meanwhile."""
        await asyncio.sleep(0)  # everybody whom a bell woke asks in this turn of the loop
        while self._asked:
            asked = dict(islice(self._asked.items(), _PLACES_AT_ONCE))
            for place in asked:
                del self._asked[place]
            try:
                rows = await self._valkey.attempt(partial(self._round_trip, list(asked)))
            except BaseException as error:
                for answer in asked.values():
                    _fail(answer, error)
                if not isinstance(error, Exception):
                    raise  # the process ends
                continue
            for answer, found in zip(asked.values(), rows or [None] * len(asked), strict=True):
                try:
                    batch = _batch(found)
                except Exception as error:  # an entry that nobody of ours has written: nobody else waits for it
                    _fail(answer, error)
                    continue
                if not answer.done():
                    answer.set_result(batch)

    async def _round_trip(self, places: Sequence[TokensPlace]) -> list[Any]:
        try:
            return await self._ask(places)
        except NoScriptError:  # Valkey is a new one, or was told to forget its scripts
            await self._valkey.client.script_load(READ)
            return await self._ask(places)

    async def _ask(self, places: Sequence[TokensPlace]) -> list[Any]:
        async with self._valkey.client.pipeline(transaction=False) as pipe:
            for tenant_id, conversation_id, epoch, entry_id in places:
                keys = stream_and_epoch(tenant_id, conversation_id)
                bounds = str(_BATCH_ENTRIES), str(_BATCH_BYTES)
                pipe.evalsha(self._script.sha, len(keys), *keys, epoch, entry_id, *bounds)
            answers: list[Any] = await pipe.execute()
            return answers


def _fail(answer: "asyncio.Future[TokenBatch]", error: BaseException) -> None:
    if not isinstance(error, Exception):
        answer.cancel()
    elif not answer.done():
        answer.set_exception(error)
        answer.exception()  # an error that nobody is left to hear is not reported as forgotten


def _batch(answer: Any) -> TokenBatch:
    if not answer:
        return TokenBatch(None)
    epoch, rows, more = answer
    entries = [_entry(entry_id, dict(zip(flat[::2], flat[1::2], strict=True))) for entry_id, flat in rows]
    return TokenBatch(epoch, entries, more=bool(more))


async def marks(valkey: Valkey, tenant_id: str, conversation_id: str, cursor: Cursor, keys: Sequence[CallKey]) -> Marks:
    """What the live stream knows of these calls at `cursor`; a call of which it knows nothing is left out.

    Raises: what the driver raises.
    """
    stream, epoch_key = stream_and_epoch(tenant_id, conversation_id)
    async with valkey.client.pipeline(transaction=False) as pipe:
        pipe.get(epoch_key)
        pipe.xrange(stream, count=1)
        for key in keys:
            pipe.hmget(fence_of(stream, key), "epoch", "attempt", "end", "from", "first", "last", "thought")
        epoch, oldest, *fences = await pipe.execute()
    found: Marks = {}
    at = entry_order(cursor.entry_id)
    kept_from = entry_order(oldest[0][0]) if oldest else at
    for key, (fence_epoch, attempt, end, chained_from, first, last, thought) in zip(keys, fences, strict=True):
        if fence_epoch is None or fence_epoch != epoch or epoch != cursor.epoch:
            continue
        if entry_order(first) > at:
            found[key] = Mark(int(attempt), 0, chained_from == "0", begun=False)
        elif entry_order(first) < kept_from:
            # Trimmed: a reader may have come to this place without having seen the call's beginning.
            continue
        elif entry_order(last) <= at:
            found[key] = Mark(int(attempt), int(end), chained_from == "0", thought=int(thought or 0) > 0)
        else:
            # The reader was behind: its place is in the middle of this call, and most often just at the cursor.
            rows = cast(_Rows, await valkey.client.xrevrange(stream, cursor.entry_id, "-", count=_SEARCH_ENTRIES))
            mark = next((_mark(fields) for _, fields in rows if (fields["t"], fields["c"]) == key), None)
            if mark is not None:
                found[key] = mark
    return found


def _entry(entry_id: str, fields: Mapping[str, str]) -> TokenEntry:
    thinking = "y" in fields
    return TokenEntry(
        entry_id,
        fields["t"],
        fields["c"],
        int(fields["a"]),
        int(fields["s"]),
        fields["y"] if thinking else fields.get("x", ""),
        begins=not thinking and "x" not in fields,
        thinking=thinking,
        thought=int(fields.get("h", 0)),
    )


def _mark(fields: Mapping[str, str]) -> Mark:
    thought = "y" in fields or int(fields.get("h", 0)) > 0
    return Mark(int(fields["a"]), int(fields["s"]) + len(fields.get("x", "")), fields["f"] == "0", thought=thought)
