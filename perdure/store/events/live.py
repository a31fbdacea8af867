"""Live tokens in Valkey: one stream a conversation, fenced so that a stale attempt cannot speak.

Nothing here is needed for an answer. Losing Valkey never raises into the caller's work: the answer is DEGRADED or
empty, and it is logged once. Everything lives for an hour after the last token.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from typing import Any, cast

from redis.exceptions import NoScriptError

from perdure.contracts.turns import TurnAddress
from perdure.core.events.stream import CallKey, Cursor, Mark, TokenBatch, TokenEntry, entry_order
from perdure.store.valkey import Valkey, messages, subscribed

# --- How the live side's keys and channels in Valkey are named; the braces keep a conversation's keys together in a
# cluster.

WOKEN_BY_EVENTS = "e"
"""What a wake-up says where durable events were committed; one for tokens says `t`."""


def channel(conversation_id: str) -> str:
    """The pub/sub channel of a conversation."""
    return f"perdure:wake:{conversation_id}"


def stream_and_epoch(tenant_id: str, conversation_id: str) -> tuple[str, str]:
    """A conversation's stream, and the key that names the stream's epoch."""
    stem = f"perdure:{tenant_id}:{{{conversation_id}}}"
    return f"{stem}:tokens", f"{stem}:epoch"


def fence_of(stream: str, key: CallKey) -> str:
    """The fence of a model call."""
    return f"{stream}:{key[0]}:{key[1]}"


def stop_of(stream: str, turn_id: str) -> str:
    """What says that a turn is to stop speaking."""
    return f"{stream}:{turn_id}:stop"


# --- The Lua that Valkey runs: each script is one atomic step.
# Keys of a conversation: its stream, its epoch, and for each call a fence {epoch, attempt, end, from, first, last}: the
# attempt that may speak, how many characters of its answer it has sent, from which of them on this epoch's stream has
# them without a gap, and the ids of the attempt's first and latest entry; and `thought`, the characters of its
# reasoning. An entry has t(urn), c(all), a(ttempt), s(tart), f(rom), (t)h(ought before), and x, text of the answer, or
# y, text of the reasoning; an entry without either begins a new attempt.

APPEND = """
local stream, epoch_key, fence, stopped = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local turn, call, attempt, start = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local text, stop = ARGV[5], ARGV[6]
local fresh_epoch, most, ttl, channel = ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local kind, thought, thought_stop = ARGV[11], tonumber(ARGV[12]), ARGV[13]

local held = redis.call('HMGET', fence, 'attempt', 'end', 'from', 'epoch', 'thought')
local speaks, sent, from = tonumber(held[1] or -1), tonumber(held[2] or 0), tonumber(held[3] or 0)
if attempt < speaks then return 'stale' end
if redis.call('EXISTS', stopped) == 1 then return 'stopped' end
if attempt == speaks and (start < sent or thought < tonumber(held[5] or 0)) then return 'accepted' end

-- Stream and epoch stand or fall together: ids of a new stream are not comparable with those of a lost one.
local epoch = redis.call('GET', epoch_key)
if not epoch or redis.call('EXISTS', stream) == 0 then
  epoch = fresh_epoch
  redis.call('DEL', stream)
  redis.call('SET', epoch_key, epoch)
end

local first = false
if attempt > speaks then
  if speaks >= 0 then
    first = redis.call('XADD', stream, 'MAXLEN', '~', most, '*', 't', turn, 'c', call, 'a', attempt, 's', 0, 'f', 0,
      'h', 0)
  end
  sent, from = 0, 0
end
if start > sent or (attempt == speaks and held[4] ~= epoch) then from = start end

local last = redis.call('XADD', stream, 'MAXLEN', '~', most, '*',
  't', turn, 'c', call, 'a', attempt, 's', start, 'f', from, 'h', thought, kind, text)
if attempt > speaks or held[4] ~= epoch then redis.call('HSET', fence, 'first', first or last) end
redis.call('HSET', fence, 'epoch', epoch, 'attempt', attempt, 'end', stop, 'from', from, 'last', last,
  'thought', thought_stop)
for key = 1, 3 do redis.call('PEXPIRE', KEYS[key], ttl) end
redis.call('PUBLISH', channel, 't')
return 'accepted'
"""

READ = """
local epoch = redis.call('GET', KEYS[2])
if not epoch then return {} end
local after = '-'
if epoch == ARGV[1] then after = '(' .. ARGV[2] end
local most, room, rows = tonumber(ARGV[3]), tonumber(ARGV[4]), {}
while true do
  local asked = math.min(most - #rows, 20)
  local some = redis.call('XRANGE', KEYS[1], after, '+', 'COUNT', asked)
  for _, row in ipairs(some) do
    rows[#rows + 1] = row
    room = room - #row[2][#row[2]]  -- the text is an entry's last value
    if #rows == most or room <= 0 then return {epoch, rows, 1} end
  end
  if #some < asked then return {epoch, rows, 0} end
  after = '(' .. some[#some][1]
end
"""


# --- Reading the live side: the entries behind a reader's place, many readers' in one round trip, and marks of calls.
# One reader for the whole process: whoever asks while a round trip is under way shares the next one, so that a thousand
# streams cost a round trip and not a thousand, and the busier the process is the more each carries.
#
# Invariant: an answer comes from a read that began after it was asked for, so nobody misses what woke them.

TokensPlace = tuple[str, str, str, str]
"""Tenant, conversation, epoch, id of the last entry seen."""
Marks = dict[CallKey, Mark]
_Rows = list[tuple[str, dict[str, str]]]

_BATCH_ENTRIES = 200
_BATCH_BYTES = 32_768
"""About what is held for one slow reader: a batch is merged and sent as a whole. The script stops behind the entry
with which they are reached, and an entry is short too (perdure/activities/model.py)."""
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
        await self._valkey.attempt(lambda: self._valkey.client.publish(STOP_CHANNEL, address.turn_id))

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
        answer = await self._valkey.attempt(lambda: marks(self._valkey, tenant_id, conversation_id, cursor, keys))
        return answer or {}


# --- Stops, called out to the workers through Valkey.
# A call that is lost costs a second: the turn's bell comes too.

STOP_CHANNEL = "perdure:stops"
"""What is called out is the turn's id."""


async def stop_signals(valkey: Valkey) -> AsyncGenerator[str, None]:
    """The ids of turns that were asked to stop, from now on.

    Raises: RedisError, OSError, TimeoutError where the subscription is lost.
    """
    async with subscribed(valkey, STOP_CHANNEL) as subscription:
        async for message in messages(subscription):
            yield str(message["data"])
