-- The oldest leases that have run out.
--
-- KEYS  the leases of each queue
-- ARGV  now, limit
-- Gives {now, then per lease: when it ran out, its place (seq and id)}: oldest first within a queue

local now = clock(ARGV[1])
local reply = { text(now) }
for _, leases in ipairs(KEYS) do
  local found = call('ZRANGEBYSCORE', leases, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[2]))
  for i = 1, #found, 2 do
    reply[#reply + 1] = found[i + 1]
    reply[#reply + 1] = found[i]
  end
end
return reply
