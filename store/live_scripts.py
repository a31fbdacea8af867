"""The Lua that Valkey runs: each script is one atomic step.

Keys of a conversation: its stream, its epoch, and for each call a fence {epoch, attempt, end, from, first, last}: the
attempt that may speak, how many characters of its answer it has sent, from which of them on this epoch's stream has
them without a gap, and the ids of the attempt's first and latest entry; and `thought`, the characters of its reasoning.
An entry has t(urn), c(all), a(ttempt), s(tart), f(rom), (t)h(ought before), and x, text of the answer, or y, text of
the reasoning; an entry without either begins a new attempt.
"""

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
