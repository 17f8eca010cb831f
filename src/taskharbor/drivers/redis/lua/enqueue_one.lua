-- Takes one plain job in: what enqueue.lua does, for the case that needs nothing of the rest. Without a prelude,
-- because a single enqueue is mostly what surrounds it.
--
-- KEYS  data, list, ready, lines, wake
-- ARGV  epoch, now, queue, id, line, rank, body
-- Gives when it was created, or '' when nothing was done and enqueue.lua must look

local call, pack = redis.call, struct.pack
local data, id = KEYS[1], ARGV[4]
local known = call('HMGET', data, 'e', 'R*', 'R' .. ARGV[3], 'Q' .. ARGV[3], 'h' .. id)
local function has_rate(rules)
  return rules and cmsgpack.unpack(rules)[3]
end
if known[1] ~= ARGV[1] or not known[4] or known[5] or has_rate(known[2]) or has_rate(known[3]) then
  return ''
end
local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local now8, seq8 = pack('>I8', now), pack('>I8', call('HINCRBY', data, 'n', 1))
call('HSET', data, 'h' .. id, pack('>BBBI4I8I8', 0, 0, ARGV[6], 1, now, 0) .. seq8 .. now8 .. '\0\0\0\0\0\0\0\0',
  'b' .. id, ARGV[7])
call('ZADD', KEYS[2], '0', 'l' .. seq8 .. id)
call('ZADD', KEYS[3], '0', ARGV[5] .. string.char(ARGV[6]) .. now8 .. seq8 .. id)
call('HINCRBY', KEYS[4], ARGV[5], 1)
if call('LLEN', KEYS[5]) == 0 then
  call('LPUSH', KEYS[5], '1')
end
return string.format('%.0f', now)
