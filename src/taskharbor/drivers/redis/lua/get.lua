-- Whole records as stored.
--
-- KEYS  data
-- ARGV  now, '1' for records without payloads, results and notes, then ids
-- Returns {now, per id: {id, head, body, story, result, progress, scoped key, what `family_fields` returns if it is of a family} | ''}, each part '' when there is none

local data, lean = KEYS[1], ARGV[2] == '1'
local reply = { text(clock(ARGV[1])) }
for i = 3, #ARGV do
  local id = ARGV[i]
  local head = call('HGET', data, 'h' .. id)
  if head and byte(head, 1) == ALIAS then
    id = sub(head, 2)
  end
  reply[i - 1] = record_parts(data, id, lean, lean) or ''
end
return reply
