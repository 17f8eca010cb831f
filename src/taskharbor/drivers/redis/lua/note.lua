-- Keeps notes of running jobs. Repeats `note_one` in drivers/family_verbs.py and `with_notes` in model/family_steps.py for
-- a lease that holds, a new name and notes that fit.
--
-- KEYS  data
-- ARGV  epoch, now, most notes and most bytes of a job, then per note: id, token, worker ('' if not given), name, data
-- Returns {now, 'epoch'} when nothing was done; else {now, per note: version | 'S' a unit of work must decide}

local data, now = KEYS[1], clock(ARGV[2])
if call('HGET', data, 'e') ~= ARGV[1] then
  return { text(now), 'epoch' }
end
local most, most_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local reply = { text(now) }

local function keep(id, token, worker_id, name, value)
  local head, sizes, known = unpack(call('HMGET', data, 'h' .. id, 'N' .. id, 'M' .. id .. name))
  if known or not is_held(head, token, worker_id, now) then
    return 'S'
  end
  local state, flags, rank, version = unpack_from('>BBBI4', head)
  local count, size = unpack_from('>I4I4', sizes or '\0\0\0\0\0\0\0\0')
  if band(flags, KEYED) ~= 0 or count >= most or size + #value > most_bytes then
    return 'S'
  end
  state = state < FAMILY and state + FAMILY or state
  call('HSET', data, 'h' .. id, pack('>BBBI4I8I8', state, flags, rank, version + 1, now, 0) .. sub(head, 24),
    'N' .. id, pack('>I4I4', count + 1, size + #value), 'N' .. id .. pack('>I4', count + 1), name,
    'M' .. id .. name, us(now) .. value)
  return version + 1
end

for at = 5, #ARGV, 5 do
  reply[#reply + 1] = keep(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
end
return reply
