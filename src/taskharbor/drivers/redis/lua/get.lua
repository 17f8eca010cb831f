-- Whole records, as they are stored.
--
-- KEYS  data
-- ARGV  now, then ids
-- Gives {now, per id: {id, head, body, story, result, progress, scoped key} | ''}, each part '' when there is none

local data = KEYS[1]
local reply = { text(clock(ARGV[1])) }
for i = 2, #ARGV do
  local id = ARGV[i]
  local head = call('HGET', data, 'h' .. id)
  if head and byte(head, 1) == ALIAS then
    id = sub(head, 2)
  end
  local parts = call('HMGET', data, 'h' .. id, 'b' .. id, 's' .. id, 'r' .. id, 'p' .. id, 'K' .. id)
  if parts[1] and parts[2] then
    reply[i] = { id, parts[1], parts[2], parts[3] or '', parts[4] and 'r' .. parts[4] or '', parts[5] or '', parts[6] or '' }
  else
    reply[i] = ''
  end
end
return reply
