-- Enqueues one plain job: a fast path of enqueue.lua. No prelude: for a single enqueue the overhead is most of
-- the cost, so every command counts. Repeats `new_record` in model/transitions.py for a plain job.
--
-- KEYS  data, list, ready, wake, look from
-- ARGV  epoch, queue, line, front of the entry (line and rank), front of the head (state to version), id, body, now
-- Returns when it was created, or 0 if nothing was done and enqueue.lua must be called

local call, pack = redis.call, struct.pack
local data, id = KEYS[1], ARGV[6]
local field = 'h' .. id
local known = call('HMGET', data, 'e', field, 'Q' .. ARGV[2], 'n', 'R*', 'R' .. ARGV[2])
local lines = known[3]
if known[1] ~= ARGV[1] or known[2] or not lines or not known[4] then
  return 0
end
for i = 5, 6 do
  if known[i] and cmsgpack.unpack(known[i])[3] then
    return 0 -- an enqueue rate
  end
end
local now, seq = tonumber(ARGV[8]), known[4] + 1
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
call('HSET', data, 'n', seq, field, ARGV[5] .. pack('>I8I8I8I8I8', now, 0, seq, now, 0), 'b' .. id, ARGV[7])
if not string.find(lines, '\1' .. ARGV[3], 1, true) then
  call('HSET', data, 'Q' .. ARGV[2], lines .. '\1' .. ARGV[3]) -- a claim found the line empty and struck it out
  call('ZADD', KEYS[5], '0', ARGV[2])
end
call('ZADD', KEYS[2], seq, field)
call('ZADD', KEYS[3], '0', ARGV[4] .. pack('>I8I8', now, seq) .. id)
if call('LLEN', KEYS[4]) == 0 then
  call('LPUSH', KEYS[4], '1')
end
return now
