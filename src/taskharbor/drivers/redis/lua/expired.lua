-- The oldest leases that have run out.
--
-- KEYS  data, then the leases of each queue
-- ARGV  now, limit
-- Gives {now, then per lease: when it ran out, its seq (8 bytes), its id}: in a queue oldest first. Leases that ran out
--       at one instant may be more than the limit: the caller takes those of the lowest seq.

local data, now, limit = KEYS[1], clock(ARGV[1]), tonumber(ARGV[2])
local reply = { text(now) }

local function tell(when, field)
  local head = call('HGET', data, field)
  local size = #reply
  reply[size + 1], reply[size + 2], reply[size + 3] = when, sub(head, 24, 31), sub(field, 2)
end

for queue = 2, #KEYS do
  local leases = KEYS[queue]
  local found = call('ZRANGEBYSCORE', leases, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, limit)
  local last = found[#found]
  for i = 1, #found, 2 do
    if #found < 2 * limit or found[i + 1] ~= last then
      tell(found[i + 1], found[i])
    end
  end
  if #found == 2 * limit then -- a claim's leases end together, and among those the seq decides
    for _, field in ipairs(call('ZRANGEBYSCORE', leases, last, last)) do
      tell(last, field)
    end
  end
end
return reply
