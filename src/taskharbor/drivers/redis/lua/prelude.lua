-- What every script starts with: how a record is packed, and the clock. See packing.py for the same in Python.
--
-- A job is fields of the data hash: h<id> where it stands, b<id> what it is, and only when there are any:
-- r<id> its result, p<id> its progress, s<id> its story (errors, history, flags), K<id> its scoped key, I<id> its
-- scoped idempotency keys, A<id> the ids that stand for it, c<id> its copy; of a copy o<id> its original and
-- v<id> the worker that it must not meet. A key is scoped by its queue: <queue>\0<key>.
-- Besides: h<id> of an id that stands for another job is a 9 and that one's id; k<scoped key> the jobs of a key
-- ('w' waiting, 'r' running, 'b' blocked, each with its id); i<scoped key> the job of an idempotency key and when
-- that is forgotten (8 bytes of zero: not yet); R<queue> the settings of a queue, R* of the harbor; Q<queue> is
-- there when the queue is listed; n the last seq; e the epoch.
--
-- A head: 1 state, 2 flags, 3 rank, 4 version, 8 updated, 16 attempts, 20 stalls, 24 seq, 32 created, 40 run_at
-- (plus 1, so that 0 means none); when it was ever started or is over: 48 starts, 52 fence, 60 started, 68 until
-- (the lease, or the end), 76 token, 92 length of the worker's name, 93 the worker, then its queue.
-- Numbers are packed as integers and never go through a text with an exponent: microseconds stay exact.

local WAITING, BLOCKED, RUNNING, COMPLETED, ALIAS = 0, 1, 2, 3, 9
local KEYED, REMEMBERED, COPY, CANCEL, COPIED, PROGRESS, ALIASED, STORY = 1, 2, 4, 8, 16, 32, 64, 128
local call, pack, unpack_from, sub, byte = redis.call, struct.pack, struct.unpack, string.sub, string.byte
local band = bit.band

-- The deciding clock: what the caller says, else the server's.
local function clock(said)
  if said ~= '' then
    return tonumber(said)
  end
  local now = call('TIME')
  return tonumber(now[1]) * 1000000 + tonumber(now[2])
end

local function us(number)
  return pack('>I8', number)
end

local function text(number)
  return string.format('%.0f', number)
end

-- Commands take only so many arguments from a Lua table at a time.
local function each_part(command, key, arguments, count)
  for first = 1, count, 3000 do
    call(command, key, unpack(arguments, first, math.min(first + 2999, count)))
  end
end

-- Settings of one level (see rules.py), or nil when nothing is set.
local function rules_in(packed)
  return packed and cmsgpack.unpack(packed)
end
local PAUSED, MAX_RUNNING, ENQUEUE_RATE, EXECUTE_RATE, FAIL_QUEUE, RETENTION = 1, 2, 3, 4, 5, 6

local function wake(key)
  if call('LLEN', key) == 0 then
    call('LPUSH', key, '1')
  end
end
