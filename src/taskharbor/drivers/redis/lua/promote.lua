-- Due jobs become ready, oldest first; one listener is woken.
--
-- KEYS  data, then per queue: later, ready, wake
-- ARGV  now, limit, the names of the queues
-- Returns how many

local now, left, moved = clock(ARGV[1]), tonumber(ARGV[2]), 0
for at = 2, #KEYS, 3 do
  while left > 0 do
    local due = call('ZRANGEBYSCORE', KEYS[at], '-inf', text(now), 'LIMIT', 0, math.min(left, 1000))
    if #due == 0 then
      break
    end
    local entries, more, field = {}, {}, 'Q' .. ARGV[2 + (at + 1) / 3]
    for i, entry in ipairs(due) do
      entries[2 * i - 1] = '0'
      entries[2 * i] = entry
      more[string.sub(entry, 1, -34)] = true
    end
    local lines, is_changed = with_lines(call('HGET', KEYS[1], field), more)
    call('ZREM', KEYS[at], unpack(due))
    call('ZADD', KEYS[at + 1], unpack(entries))
    if is_changed then
      call('HSET', KEYS[1], field, lines)
    end
    wake(KEYS[at + 2])
    left = left - #due
    moved = moved + #due
  end
end
return moved
