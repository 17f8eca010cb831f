-- Reads jobs with everything that a step could touch, as one snapshot.
--
-- KEYS  data
-- ARGV  now, how many new seqs to issue ('0': none), then 'j' id | 'k' scoped key | 'i' scoped idempotency key
-- Returns {now, first new seq, then field, value …}: the fields of each job and of the job that an alias leads to,
--       of the jobs of its key, of its copy, of its original, and its idempotency entries

local data = KEYS[1]
local now = clock(ARGV[1])
local seqs = tonumber(ARGV[2])
local reply = { text(now), seqs > 0 and call('HINCRBY', data, 'n', seqs) - seqs + 1 or 0 }
local read = {}

local function get(field)
  if read[field] == nil then
    read[field] = call('HGET', data, field)
    if read[field] then
      reply[#reply + 1] = field
      reply[#reply + 1] = read[field]
    end
  end
  return read[field]
end

local read_slot
local function read_job(id)
  if read['h' .. id] ~= nil then
    return
  end
  local head = get('h' .. id)
  if not head then
    return
  end
  local state, flags = byte(head, 1, 2)
  if state == ALIAS then
    return read_job(sub(head, 2))
  end
  get('b' .. id)
  if band(flags, STORY) ~= 0 then get('s' .. id) end
  if state == COMPLETED then get('r' .. id) end
  if band(flags, PROGRESS) ~= 0 then get('p' .. id) end
  if band(flags, ALIASED) ~= 0 then get('A' .. id) end
  if band(flags, REMEMBERED) ~= 0 then
    local packed, from = get('I' .. id) or '', 1
    while from <= #packed do
      local key
      key, from = unpack_from('>Hc0', packed, from)
      get('i' .. key)
    end
  end
  if band(flags, KEYED) ~= 0 then
    read_slot('k' .. (get('K' .. id) or ''))
  end
  if band(flags, COPIED) ~= 0 then
    local copy = get('c' .. id)
    if copy then read_job(sub(copy, 1, 16)) end -- behind it: the fence of the run that got it
  end
  if band(flags, COPY) ~= 0 then
    read_job(get('o' .. id) or '')
  end
end

function read_slot(field)
  local slot = get(field) or ''
  for from = 2, #slot, 17 do
    read_job(sub(slot, from, from + 15))
  end
end

for i = 3, #ARGV do
  local kind = sub(ARGV[i], 1, 1)
  if kind == 'k' then
    read_slot(ARGV[i])
  elseif kind == 'i' then
    read_job(sub(get(ARGV[i]) or '', 1, 16))
  else
    read_job(sub(ARGV[i], 2))
  end
end
return reply
