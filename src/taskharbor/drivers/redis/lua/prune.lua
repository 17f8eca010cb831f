-- Forgets finished jobs whose retention is over, with the ids that stood for them; and old idempotency keys.
--
-- KEYS  data, idempotency ends, then per queue: list, done
-- ARGV  now, limit, the names of the queues
-- Gives how many jobs

local data = KEYS[1]
local now, left = clock(ARGV[1]), tonumber(ARGV[2])
local harbor = rules_in(call('HGET', data, 'R*'))
local HOUR = 3600000000
local DEFAULT = { HOUR, 14 * 24 * HOUR, 14 * 24 * HOUR }
local pruned = 0

local function forget(id)
  local fields = {}
  for prefix in string.gmatch('hbsrpKIAcov', '.') do
    fields[#fields + 1] = prefix .. id
  end
  local followers = call('HGET', data, 'A' .. id) or ''
  for from = 1, #followers, 16 do
    fields[#fields + 1] = 'h' .. string.sub(followers, from, from + 15)
  end
  each_part('HDEL', data, fields, #fields)
end

for at = 3, #KEYS, 2 do
  local list, done, own = KEYS[at], KEYS[at + 1], rules_in(call('HGET', data, 'R' .. ARGV[2 + (at - 1) / 2]))
  local kept = own and own[RETENTION] or harbor and harbor[RETENTION] or DEFAULT
  for i, shelf in ipairs({ 'c', 'f', 'x' }) do
    if kept[i] >= 0 and left > pruned and now - kept[i] >= 0 then
      local last = '(' .. shelf .. us(now - kept[i] + 1)
      local over = call('ZRANGEBYLEX', done, '[' .. shelf, last, 'LIMIT', 0, left - pruned)
      local listed = {}
      for j, entry in ipairs(over) do
        local place = string.sub(entry, -24)
        listed[j] = shelf .. place
        forget(string.sub(place, -16))
      end
      each_part('ZREM', done, over, #over)
      each_part('ZREM', list, listed, #listed)
      pruned = pruned + #over
    end
  end
end

local old = call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', 0, left)
for i, key in ipairs(old) do
  call('HDEL', data, 'i' .. key)
end
each_part('ZREM', KEYS[2], old, #old)
return pruned
