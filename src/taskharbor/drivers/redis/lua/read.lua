-- Reads jobs with everything that a step could touch, as one snapshot.
--
-- KEYS  data, relatives, deadlines, owed
-- ARGV  now, how many new seqs to issue ('0': none), then 'j' id | 'k' scoped key | 'i' scoped idempotency key | '>c' '>o'
--       '>v' '>d' id seq: children, open children, open events, dependents behind that seq | '>e' id: whether it has children |
--       '>t' jobs that missed their deadline | '>w' what is owed
-- Returns {now, first new seq, then field, value …}: the fields of each job and of the job that an alias leads to,
--       of the jobs of its key, of its copy, of its original, of its parents, and its idempotency entries; for a '>' the
--       same text as field, and the seqs and ids of the jobs, or numbers, one behind the other, with the fields of the jobs

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

local PAGE, MOST_EXAMINED = 100, 20000

local function answer(ask, value)
  if read[ask] == nil then
    read[ask] = value
    reply[#reply + 1] = ask
    reply[#reply + 1] = value
  end
end

-- The places (seq, id) of relatives behind a place, all of them or those that are not over. A page without enough open
-- children is filled up with the last that were looked at, so that the caller goes on behind them.
local function page_of(sign, id, seq8, only_open)
  local prefix, from, places, over, examined = sign .. id, seq8 .. string.rep('\255', 16), {}, {}, 0
  while #places < PAGE do
    local size = only_open and 500 or PAGE
    local found = call('ZRANGEBYLEX', KEYS[2], '(' .. prefix .. from, '(' .. prefix .. string.rep('\255', 24), 'LIMIT', 0, size)
    for _, member in ipairs(found) do
      from = sub(member, 18)
      local head = only_open and call('HGET', data, 'h' .. sub(member, 26))
      examined = examined + 1
      if not head or state_of(head) < COMPLETED then
        places[#places + 1] = from
        if #places == PAGE then
          return places
        end
      else
        over[#over + 1] = from
      end
    end
    if #found < size then
      return places
    end
    if examined >= MOST_EXAMINED then
      for i = #over - PAGE + #places + 1, #over do
        places[#places + 1] = over[i]
      end
      table.sort(places, function(one, other) return unpack_from('>I8', one) < unpack_from('>I8', other) end)
      return places
    end
  end
  return places
end

local read_job
local function read_page(ask)
  if read[ask] ~= nil then
    return
  end
  local sign = sub(ask, 2, 2)
  local places = page_of(sign == 'o' and 'c' or sign, sub(ask, 3, 18), sub(ask, 19), sign == 'o')
  answer(ask, table.concat(places))
  for _, place in ipairs(places) do
    read_job(sub(place, 9), false, true)
  end
end

local function read_has_children(id)
  local prefix = 'c' .. id
  local found = call('ZRANGEBYLEX', KEYS[2], '[' .. prefix, '(' .. prefix .. string.rep('\255', 24), 'LIMIT', 0, 1)
  answer('>e' .. id, found[1] and '1' or '')
end

local function read_notes(id)
  local sizes = get('N' .. id)
  for i = 1, sizes and unpack_from('>I4', sizes) or 0 do
    get('M' .. id .. get('N' .. id .. pack('>I4', i)))
  end
end

-- What a job with the bit FAMILY has besides. The jobs that come after it are read
-- only if it may end in this step: of a relative (`is_far`) when they are asked for, or one end would read a whole chain.
local function read_family(id, state, with_notes, is_far)
  local family, open = get('f' .. id), get('O' .. id)
  get('B' .. id)
  get('r' .. id)
  if state == BLOCKED then get('P' .. id) end
  if with_notes then read_notes(id) end
  if not is_far and family and unpack_from('>I4', family, 22) > 0 and tonumber(open or 0) <= 1 then
    read_page('>d' .. id .. us(0))
  end
  if open then read_has_children(id) end
end

local read_jobs_of_key
function read_job(id, with_notes, is_far)
  if read['h' .. id] ~= nil then
    if with_notes and read['h' .. id] and read['f' .. id] ~= nil then read_notes(id) end
    return
  end
  local head = get('h' .. id)
  if not head then
    return
  end
  local flags = byte(head, 2)
  local state, has_fields = state_of(head)
  if state == ALIAS then
    return read_job(sub(head, 2), with_notes, is_far)
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
    read_jobs_of_key('k' .. (get('K' .. id) or ''))
  end
  if band(flags, COPIED) ~= 0 then
    local copy = get('c' .. id)
    if copy then read_job(sub(copy, 1, 16), true) end -- behind it: the fence of the run that got it
  end
  if band(flags, COPY) ~= 0 then
    read_job(get('o' .. id) or '', true)
  end
  if has_fields then
    read_family(id, state, with_notes, is_far)
  end
  local parent = parent_in(head)
  if parent then read_job(parent) end -- it counts the end of its child
end

local function read_owed()
  local numbers = call('ZRANGE', KEYS[4], 0, 19)
  answer('>w', table.concat(numbers))
  for _, number in ipairs(numbers) do
    get('w' .. number)
  end
end

local function read_late()
  local late = call('ZRANGEBYSCORE', KEYS[3], '-inf', text(now), 'LIMIT', 0, PAGE)
  for _, place in ipairs(late) do
    read_job(sub(place, 9))
  end
  answer('>t', table.concat(late))
end

function read_jobs_of_key(field)
  local slot = get(field) or ''
  for from = 2, #slot, 17 do
    read_job(sub(slot, from, from + 15))
  end
end

for i = 3, #ARGV do
  local kind = sub(ARGV[i], 1, 1)
  if kind == 'k' then
    read_jobs_of_key(ARGV[i])
  elseif kind == 'i' then
    read_job(sub(get(ARGV[i]) or '', 1, 16), true)
  elseif ARGV[i] == '>w' then
    read_owed()
  elseif ARGV[i] == '>t' then
    read_late()
  elseif sub(ARGV[i], 1, 2) == '>e' then
    read_has_children(sub(ARGV[i], 3))
  elseif kind == '>' then
    read_page(ARGV[i])
  else
    read_job(sub(ARGV[i], 2), true)
  end
end
return reply
