"""Wrong passwords, counted in Valkey by all API processes together; while Valkey is away each process counts alone."""

import time
from collections import OrderedDict
from collections.abc import Sequence

from contracts.digests import sha256_hex
from policy.guessing import Pace, Tally
from store.valkey import Valkey

Key = tuple[Pace, str]
"""What is counted, and for whom."""
_PREFIX = "perdure:guesses"
_MOST_ALONE = 20_000
"""Keys of one process without Valkey; the ones that were used least recently go."""
# A guess is counted before it is looked at, and only if nothing was counted since the tallies were read: of many
# guesses at once no more get through than one after the other.
_COUNT = """
for i, key in ipairs(KEYS) do
  if tonumber(redis.call('HGET', key, 'failures') or 0) ~= tonumber(ARGV[3 * i - 2]) then return 0 end
end
local now = redis.call('TIME')
for i, key in ipairs(KEYS) do
  local failures = redis.call('HINCRBY', key, 'failures', 1)
  redis.call('HSET', key, 'last', now[1] .. '.' .. string.format('%06d', now[2]))
  if failures == 1 or ARGV[3 * i] == '0' then redis.call('EXPIRE', key, ARGV[3 * i - 1]) end
end
return 1
"""
_TAKE_BACK = """
for _, key in ipairs(KEYS) do
  if tonumber(redis.call('HGET', key, 'failures') or 0) > 1 then
    redis.call('HINCRBY', key, 'failures', -1)
  else
    redis.call('DEL', key)
  end
end
"""


class Guesses:
    """The tallies."""

    def __init__(self, valkey: Valkey) -> None:
        self._valkey = valkey
        self._alone: OrderedDict[str, Tally] = OrderedDict()

    async def read(self, keys: Sequence[Key]) -> tuple[float, list[Tally]]:
        """The time now, by the clock that counts, and what is counted under each key."""
        names = [_name(key) for key in keys]

        async def work() -> tuple[float, list[Tally]]:
            async with self._valkey.client.pipeline(transaction=False) as pipeline:
                pipeline.time()
                for name in names:
                    pipeline.hmget(name, "failures", "last")
                (seconds, micros), *found = await pipeline.execute()
            return float(seconds) + micros / 1e6, [Tally(int(each[0] or 0), float(each[1] or 0)) for each in found]

        shared = await self._valkey.attempt(work)
        if shared is not None:
            return shared
        now = time.time()
        return now, [self._alone_of(key, now) for key in keys]

    async def count(self, keys: Sequence[Key], seen: Sequence[Tally]) -> bool:
        """Count one wrong guess under each key; false if another one was counted since `seen` was read."""
        names = [_name(key) for key in keys]
        given = [
            str(each)
            for (pace, _), tally in zip(keys, seen, strict=True)
            for each in (tally.failures, pace.kept_seconds, int(pace.is_window))
        ]

        async def work() -> int:
            answer: int = await self._valkey.client.eval(_COUNT, len(names), *names, *given)
            return answer

        shared = await self._valkey.attempt(work)
        if shared is not None:
            return bool(shared)
        now = time.time()
        for key, name in zip(keys, names, strict=True):
            self._alone[name] = Tally(self._alone_of(key, now).failures + 1, now)
            self._alone.move_to_end(name)
        while len(self._alone) > _MOST_ALONE:
            self._alone.popitem(last=False)
        return True

    def _alone_of(self, key: Key, now: float) -> Tally:
        tally = self._alone.get(_name(key), Tally())
        return tally if now - tally.last_at < key[0].kept_seconds else Tally()

    async def take_back(self, keys: Sequence[Key]) -> None:
        """The guess that was counted was right, or was never looked at."""
        names = [_name(key) for key in keys]

        async def work() -> bool:
            await self._valkey.client.eval(_TAKE_BACK, len(names), *names)
            return True

        await self._valkey.attempt(work)
        for name in names:
            tally = self._alone.get(name)
            if tally is not None:
                self._alone[name] = Tally(max(0, tally.failures - 1), tally.last_at)

    async def forget(self, keys: Sequence[Key]) -> None:
        """Start anew under these keys."""
        names = [_name(key) for key in keys]

        async def work() -> bool:
            await self._valkey.client.delete(*names)
            return True

        await self._valkey.attempt(work)
        for name in names:
            self._alone.pop(name, None)


def _name(key: Key) -> str:
    """Without the account's name: it is what a caller typed, which may have been a password."""
    pace, of = key
    return f"{_PREFIX}:{pace.name}:{sha256_hex(of)[:32]}"
