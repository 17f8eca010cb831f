-- Due jobs become ready, oldest first; somebody is woken for them.
--
-- KEYS  per queue: later, ready, lines, wake
-- ARGV  now, limit
-- Gives how many

local now, left, moved = clock(ARGV[1]), tonumber(ARGV[2]), 0
for at = 1, #KEYS, 4 do
  while left > 0 do
    local due = call('ZRANGEBYSCORE', KEYS[at], '-inf', text(now), 'LIMIT', 0, math.min(left, 1000))
    if #due == 0 then
      break
    end
    local entries, lines = {}, {}
    for i, entry in ipairs(due) do
      entries[2 * i - 1] = 0
      entries[2 * i] = entry
      local line = string.sub(entry, 1, -34)
      lines[line] = (lines[line] or 0) + 1
    end
    call('ZREM', KEYS[at], unpack(due))
    call('ZADD', KEYS[at + 1], unpack(entries))
    for line, count in pairs(lines) do
      call('HINCRBY', KEYS[at + 2], line, count)
    end
    wake(KEYS[at + 3])
    left = left - #due
    moved = moved + #due
  end
end
return moved
