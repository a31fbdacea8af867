"""Live tokens in Valkey: one stream per conversation, fenced so that a stale attempt cannot append.

Turns do not depend on this data. If Valkey is unavailable, no error reaches the caller: the result is `DEGRADED` or
empty, and the outage is logged once. All keys expire one hour after the last token.
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
from perdure.core.events.stream import CallKey, Cursor, StreamMark, TokenBatch, TokenEntry, entry_order
from perdure.store.valkey import Valkey, read_messages, subscribe

# The braces in the names of keys and channels keep the keys of a conversation together in a cluster.
WOKEN_BY_EVENTS = "e"
"""The message that announces committed events; `t` announces tokens."""
_BATCH_ENTRIES = 200
_BATCH_BYTES = 32_768
"""The approximate memory per slow reader, because a batch is merged and sent as a whole. The script stops after the
entry that reaches a limit. Entries are short too (`perdure/activities/model.py`)."""
_POSITIONS_AT_ONCE = 64
"""The maximum per round trip: about 2 MB are returned, so that readers do not wait long for those far behind."""
_SEARCH_ENTRIES = 200
LIVE_SECONDS = 3_600
LIVE_ENTRIES = 10_000
"""The approximate length to which a conversation's stream is trimmed."""
_FORGOTTEN_AT_ONCE = 500


def channel(conversation_id: str) -> str:
    """Returns the Valkey channel on which a conversation's readers are woken."""
    return f"perdure:wake:{conversation_id}"


def stream_and_epoch(tenant_id: str, conversation_id: str) -> tuple[str, str]:
    """Returns the key of a conversation's stream and the key of the stream's epoch."""
    stem = f"perdure:{tenant_id}:{{{conversation_id}}}"
    return f"{stem}:tokens", f"{stem}:epoch"


def fence_of(stream: str, key: CallKey) -> str:
    """Returns the key of a model call's fence."""
    return f"{stream}:{key[0]}:{key[1]}"


def stop_of(stream: str, turn_id: str) -> str:
    """Returns the key that marks a turn as stopped."""
    return f"{stream}:{turn_id}:stop"


# Each script is one atomic step in Valkey.
#
# A conversation has a stream, an epoch, and a fence per model call. The fields of a fence:
# - `attempt`: the attempt that can append.
# - `end`: the number of characters of the answer sent so far.
# - `from`: the position from which this epoch's stream has the answer without a gap.
# - `first`, `last`: the ids of the attempt's first and latest entry.
# - `thought`: the number of characters of the reasoning sent so far.
# - `epoch`: the stream's epoch of the latest entry.
#
# The fields of an entry are t (turn), c (call), a (attempt), s (start), f (from) and h (characters of the reasoning
# before it). Its text is x (answer) or y (reasoning). An entry without x and y begins a new attempt.
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


TokensPosition = tuple[str, str, str, str]
"""Tenant, conversation, epoch and id of the last entry that the reader has."""
Marks = dict[CallKey, StreamMark]
_Rows = list[tuple[str, dict[str, str]]]


class LiveReader:
    """The process's only reader of live entries.

    Requests that arrive during a round trip share the next one. A thousand streams then cost one round trip instead of
    a thousand, and a busier process puts more requests into each.

    Invariant: each answer comes from a read that began after its request. Otherwise a reader could miss the change that
    woke it.
    """

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey
        self._script = valkey.client.register_script(READ)
        self._requests: dict[TokensPosition, asyncio.Future[TokenBatch]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def tokens(self, position: TokensPosition) -> TokenBatch:
        """Returns the entries after a position, or from the beginning if the stream's epoch has changed."""
        answer = self._requests.get(position)
        if answer is None:
            answer = self._requests[position] = asyncio.get_running_loop().create_future()
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
        # Canceling one reader must not cancel the shared answer.
        return await asyncio.shield(answer)

    async def _read(self) -> None:
        """Answers all open requests, including those that arrive during a round trip."""
        await asyncio.sleep(0)  # All readers woken by one message add their requests in this loop iteration.
        while self._requests:
            requests = dict(islice(self._requests.items(), _POSITIONS_AT_ONCE))
            for position in requests:
                del self._requests[position]
            try:
                rows = await self._valkey.attempt(partial(self._round_trip, list(requests)))
            except BaseException as error:
                for answer in requests.values():
                    _fail_read(answer, error)
                if not isinstance(error, Exception):
                    raise  # The process is ending.
                continue
            for answer, found in zip(requests.values(), rows or [None] * len(requests), strict=True):
                try:
                    batch = _parse_batch(found)
                except Exception as error:  # A foreign entry must not block the other readers.
                    _fail_read(answer, error)
                    continue
                if not answer.done():
                    answer.set_result(batch)

    async def _round_trip(self, positions: Sequence[TokensPosition]) -> list[Any]:
        try:
            return await self._read_positions(positions)
        except NoScriptError:  # Valkey was restarted, or its scripts were flushed.
            await self._valkey.client.script_load(READ)
            return await self._read_positions(positions)

    async def _read_positions(self, positions: Sequence[TokensPosition]) -> list[Any]:
        async with self._valkey.client.pipeline(transaction=False) as pipe:
            for tenant_id, conversation_id, epoch, entry_id in positions:
                keys = stream_and_epoch(tenant_id, conversation_id)
                bounds = str(_BATCH_ENTRIES), str(_BATCH_BYTES)
                pipe.evalsha(self._script.sha, len(keys), *keys, epoch, entry_id, *bounds)
            answers: list[Any] = await pipe.execute()
            return answers


def _fail_read(answer: "asyncio.Future[TokenBatch]", error: BaseException) -> None:
    if not isinstance(error, Exception):
        answer.cancel()
    elif not answer.done():
        answer.set_exception(error)
        answer.exception()  # Marks the error as retrieved, so that asyncio does not log it if no reader is left.


def _parse_batch(answer: Any) -> TokenBatch:
    if not answer:
        return TokenBatch(None)
    epoch, rows, more = answer
    entries = [_parse_entry(entry_id, dict(zip(flat[::2], flat[1::2], strict=True))) for entry_id, flat in rows]
    return TokenBatch(epoch, entries, more=bool(more))


async def read_marks(
    valkey: Valkey, tenant_id: str, conversation_id: str, cursor: Cursor, keys: Sequence[CallKey]
) -> Marks:
    """Returns the live stream's marks of these calls at `cursor`. Calls that the stream does not know are left out.

    Raises: the errors of the Valkey driver.
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
            found[key] = StreamMark(int(attempt), 0, chained_from == "0", begun=False)
        elif entry_order(first) < kept_from:
            # The beginning was trimmed: a reader may have reached this position without it.
            continue
        elif entry_order(last) <= at:
            found[key] = StreamMark(int(attempt), int(end), chained_from == "0", thought=int(thought or 0) > 0)
        else:
            # The reader was behind: its position is in the middle of this call, most often close to the cursor.
            rows = cast(_Rows, await valkey.client.xrevrange(stream, cursor.entry_id, "-", count=_SEARCH_ENTRIES))
            mark = next((_parse_mark(fields) for _, fields in rows if (fields["t"], fields["c"]) == key), None)
            if mark is not None:
                found[key] = mark
    return found


def _parse_entry(entry_id: str, fields: Mapping[str, str]) -> TokenEntry:
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


def _parse_mark(fields: Mapping[str, str]) -> StreamMark:
    thought = "y" in fields or int(fields.get("h", 0)) > 0
    return StreamMark(
        int(fields["a"]), int(fields["s"]) + len(fields.get("x", "")), fields["f"] == "0", thought=thought
    )


class AppendResult(StrEnum):
    """The result of an append."""

    ACCEPTED = "accepted"
    STALE = "stale"
    """A later attempt of this call has taken over; the caller must give up."""
    STOPPED = "stopped"
    """The turn was asked to stop; the caller ends the call and keeps the text so far."""
    DEGRADED = "degraded"
    """Valkey is unavailable; the caller continues, and readers get the stored text instead."""


class LiveTokens:
    """The live side of the event streams."""

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey
        self._reader = LiveReader(valkey)

    @classmethod
    def connect(cls, url: str) -> "LiveTokens":
        """Returns the live side for this address. It connects on first use."""
        return cls(Valkey.connect(url))

    async def close(self) -> None:
        """Closes the connection that `connect` created."""
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
    ) -> AppendResult:
        """Sends the next piece of a call's answer to its readers, or of its reasoning if `thinking` is set.

        `epoch` is the attempt that claimed the call. `sequence` is the number of characters of the answer before
        `text`, and `thought` the number of characters of the reasoning before it.

        A repeated piece is shown once. If a piece of the answer is missing, readers wait for the stored text.
        """
        if not text:
            return AppendResult.ACCEPTED
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
        keys = stream, epoch_key, fence, stop
        answer = await self._valkey.attempt(lambda: self._valkey.run_script(APPEND, keys, arguments))
        return AppendResult.DEGRADED if answer is None else AppendResult(answer)

    async def stop(self, address: TurnAddress) -> None:
        """Stops the live text of this turn: its next append returns `STOPPED`, and its worker is notified."""
        stream, _ = stream_and_epoch(address.tenant_id, address.conversation_id)
        key = stop_of(stream, address.turn_id)
        await self._valkey.attempt(lambda: self._valkey.client.set(key, "1", ex=LIVE_SECONDS))
        self._valkey.send("PUBLISH", STOP_CHANNEL, address.turn_id)

    async def forget(self, tenant_id: str, conversation_ids: Sequence[str]) -> None:
        """Deletes the live tokens of these conversations without disturbing their readers. If Valkey is unavailable,
        the tokens expire one hour after the last one."""
        for start in range(0, len(conversation_ids), _FORGOTTEN_AT_ONCE):
            keys = [stream_and_epoch(tenant_id, each) for each in conversation_ids[start : start + _FORGOTTEN_AT_ONCE]]
            await self._valkey.attempt(partial(self._valkey.client.unlink, *chain.from_iterable(keys)))

    def wake(self, conversation_id: str) -> None:
        """Notifies the readers of a conversation that durable events were committed. Nothing waits for the
        notification: a reader that it does not reach looks within a second."""
        self._valkey.send("PUBLISH", channel(conversation_id), WOKEN_BY_EVENTS)

    async def tokens(self, tenant_id: str, conversation_id: str, epoch: str, entry_id: str) -> TokenBatch:
        """Returns the entries after `entry_id`, or from the beginning if the stream's epoch is not `epoch`."""
        return await self._reader.tokens((tenant_id, conversation_id, epoch, entry_id))

    async def marks(self, tenant_id: str, conversation_id: str, cursor: Cursor, keys: Sequence[CallKey]) -> Marks:
        """Returns the stream's marks of these calls at `cursor`. Calls that the stream does not know are left out."""
        if not keys:
            return {}
        answer = await self._valkey.attempt(lambda: read_marks(self._valkey, tenant_id, conversation_id, cursor, keys))
        return answer or {}


STOP_CHANNEL = "perdure:stops"
"""Each message is a turn's id."""


async def stop_signals(valkey: Valkey) -> AsyncGenerator[str, None]:
    """Yields the ids of turns when they are asked to stop.

    A lost signal delays the stop by a second, because the turn's wake signal follows.

    Raises: RedisError, OSError or TimeoutError if the subscription is lost.
    """
    async with subscribe(valkey, STOP_CHANNEL) as subscription:
        async for message in read_messages(subscription):
            yield str(message["data"])
