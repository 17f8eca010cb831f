-- One page of jobs, by enqueue or by end.
--
-- Every shelf of every queue is a source that is read a little at a time; the sources are merged, so that the work is
-- that of the jobs looked at, however many there are.
--
-- KEYS  data, then per queue: list, leases, done; or for the children of a job: data, relatives
-- ARGV  now, 'newest' | 'oldest', 'seq' | 'ended', seq to go on behind ('' for the start), the end to go on behind, most to examine,
--       most to give, sections (their numbers),
--       which of the section of live jobs: signs of 'w' waiting and due, 's' scheduled, 'r' running ('' for all),
--       '1' for records without payloads and results, type ('' for all), only those that ended after this ('' for all),
--       key ('' for all), the id of their parent ('' for all), '1' where nothing may be written: then no entry is dropped
-- Returns {now, '1' when that was all, seq of the last one examined, its end, how many were examined, the ids of entries that
--       were dropped because they have no record, per job what get.lua gives}. Nothing else is ever written here.

local data = KEYS[1]
local now = clock(ARGV[1])
local newest, by_end, behind, behind_end = ARGV[2] == 'newest', ARGV[3] == 'ended', tonumber(ARGV[4]), tonumber(ARGV[5])
local most, limit, sections, wanted = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9]
local lean, type_name, ended_after, key, parent = ARGV[10] == '1', ARGV[11], tonumber(ARGV[12]), ARGV[13], ARGV[14]
local SIGNS = { ['2'] = 'c', ['3'] = 'f', ['4'] = 'x' }
local MOST_LEASES, CHUNK = 4000, 64
local first_chunk = CHUNK
local heap, orphans = {}, {}

local function drop_orphan(source, id)
  if ARGV[15] == '1' then
    return
  end
  if parent ~= '' then
    call('ZREM', source.list, source.prefix .. us(source.seq) .. id)
    forget(data, id, true)
    orphans[#orphans + 1] = id
    return
  end
  call('ZREM', source.list, 'h' .. id)
  call('ZREM', source.leases, 'h' .. id)
  forget(data, id, true)
  orphans[#orphans + 1] = id
end

-- ---------------------------------------------------------------- sources: each has the place of its next job in `at` and `seq`

-- The next jobs of one section of a list, by seq.
local function read_list(source)
  local base, found = source.base, nil
  local chunk = source.chunk
  source.chunk = math.min(chunk * 4, CHUNK)
  if newest then
    found = call('ZREVRANGEBYSCORE', source.list, source.from, text(base), 'WITHSCORES', 'LIMIT', 0, chunk)
  else
    found = call('ZRANGEBYSCORE', source.list, source.from, '(' .. text(base + SECTION), 'WITHSCORES', 'LIMIT', 0, chunk)
  end
  local jobs = {}
  for i = 1, #found, 2 do
    jobs[#jobs + 1] = { 0, tonumber(found[i + 1]) - base, sub(found[i], 2) }
  end
  if #jobs > 0 then
    source.from = '(' .. text(base + jobs[#jobs][2])
  end
  source.is_read = #jobs < chunk
  return jobs
end

-- The next children of a job, by seq.
local function read_children(source)
  local prefix, found = source.prefix, nil
  if newest then
    found = call('ZREVRANGEBYLEX', source.list, source.from, '[' .. prefix, 'LIMIT', 0, CHUNK)
  else
    found = call('ZRANGEBYLEX', source.list, source.from, '(' .. prefix .. string.rep('\255', 24), 'LIMIT', 0, CHUNK)
  end
  local jobs = {}
  for i, member in ipairs(found) do
    jobs[i] = { 0, unpack_from('>I8', member, 18), sub(member, 26) }
    source.from = '(' .. member
  end
  source.is_read = #jobs < CHUNK
  return jobs
end

local function is_behind(at, seq)
  if not behind then
    return true
  elseif at ~= behind_end then
    return (at < behind_end) == newest
  end
  return seq ~= behind and (seq < behind) == newest
end

local function in_order(one, other)
  if newest then
    one, other = other, one
  end
  return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2])
end

-- All running jobs of a queue: there are few, and no shelf of their own.
local function read_leases(source)
  local jobs = {}
  for _, field in ipairs(call('ZRANGE', source.leases, 0, -1)) do
    local head = call('HGET', data, field)
    local seq = head and unpack_from('>I8', head, 24)
    if not head then
      drop_orphan(source, sub(field, 2))
    elseif is_behind(0, seq) then
      jobs[#jobs + 1] = { 0, seq, sub(field, 2) }
    end
  end
  source.is_read = true
  table.sort(jobs, in_order)
  return jobs
end

-- The next instant at which jobs ended, in the place of its jobs. Many may share it, and of most shelves a page needs none:
-- `read_instant` reads them once they are next.
local function read_done(source)
  local sign, found = source.sign, nil
  if newest then
    found = call('ZREVRANGEBYLEX', source.done, source.from, '[' .. sign, 'LIMIT', 0, 1)
  else
    found = call('ZRANGEBYLEX', source.done, source.from, '(' .. string.char(byte(sign) + 1), 'LIMIT', 0, 1)
  end
  local at = found[1] and unpack_from('>I8', found[1], 2)
  if not at or (ended_after and newest and at <= ended_after) then
    source.is_read = true
    return {}
  end
  source.from = newest and '(' .. sign .. us(at) or '[' .. sign .. us(at + 1)
  return { { at, newest and math.huge or -1 } } -- before all that ended then
end

-- The jobs of that instant; an entry that is no longer true is left out.
local function read_instant(source)
  local at, sign = source.at, source.sign
  local at8, jobs, fields, seen = us(at), {}, {}, {}
  for _, entry in ipairs(call('ZRANGEBYLEX', source.done, '[' .. sign .. at8, '(' .. sign .. us(at + 1))) do
    for from = 10, #entry, 17 do
      local field = sub(entry, from, from + 16)
      if not seen[field] then
        seen[field] = true
        fields[#fields + 1] = field
      end
    end
  end
  for first = 1, #fields, 3000 do
    for i, head in ipairs(call('HMGET', data, unpack(fields, first, math.min(first + 2999, #fields)))) do
      if head and state_of(head) == source.state and sub(head, 68, 75) == at8 then
        local seq = unpack_from('>I8', head, 24)
        if is_behind(at, seq) then
          jobs[#jobs + 1] = { at, seq, sub(fields[first + i - 1], 2) }
        end
      end
    end
  end
  table.sort(jobs, in_order)
  source.jobs, source.place = jobs, 0
end

-- Go on to the next job of a source; false when there is none.
local function advance(source)
  source.place = source.place + 1
  while source.place > #source.jobs do
    if source.is_read then
      return false
    end
    source.jobs, source.place = source.read(source), 1
  end
  local job = source.jobs[source.place]
  source.at, source.seq = job[1], job[2]
  return true
end

-- ---------------------------------------------------------------- a heap of sources, the one with the next job first

local function is_before(one, other)
  if newest then
    return one.at > other.at or (one.at == other.at and one.seq > other.seq)
  end
  return one.at < other.at or (one.at == other.at and one.seq < other.seq)
end

local function sift_down(from)
  local source, size = heap[from], #heap
  while true do
    local child = from * 2
    if child > size then
      break
    end
    if child < size and is_before(heap[child + 1], heap[child]) then
      child = child + 1
    end
    if not is_before(heap[child], source) then
      break
    end
    heap[from], from = heap[child], child
  end
  heap[from] = source
end

local function add(source)
  source.jobs, source.place = {}, 0
  if advance(source) then
    heap[#heap + 1] = source
  end
end

local running = 0
if wanted == 'r' and not by_end and parent == '' then
  for queue = 2, #KEYS, 3 do
    running = running + call('ZCARD', KEYS[queue + 1])
  end
end
if parent ~= '' then
  local source = { read = read_children, list = KEYS[2], prefix = 'c' .. parent }
  if newest then
    source.from = '(' .. source.prefix .. (behind and us(behind) or string.rep('\255', 24))
  else
    source.from = '(' .. source.prefix .. us((behind or -1) + 1)
  end
  add(source)
end
-- With many shelves little of each is needed.
first_chunk = math.max(2, math.min(CHUNK, math.ceil(3 * limit / (#sections * (#KEYS - 1) / 3))))

-- The jobs of one section that are over, by their end: those of families have a sign of their own.
local function add_ended(source, section, sign)
  source.read, source.sign, source.state = read_done, sign, COMPLETED + tonumber(section) - 2
  local from = not newest and math.max(behind and behind_end or 0, ended_after and ended_after + 1 or 0)
  if newest then
    source.from = '(' .. (behind and sign .. us(behind_end + 1) or string.char(byte(sign) + 1))
  else
    source.from = '[' .. sign .. us(from)
  end
  add(source)
end

local function add_listed(source, section)
  if section == '0' and wanted == 'r' and running <= MOST_LEASES then
    source.read = read_leases
  else
    local base = tonumber(section) * SECTION
    source.read, source.base, source.chunk = read_list, base, first_chunk
    if behind then
      source.from = '(' .. text(base + behind)
    else
      source.from = newest and '(' .. text(base + SECTION) or text(base)
    end
  end
  add(source)
end

for queue = 2, parent == '' and #KEYS or 0, 3 do
  local function source()
    return { list = KEYS[queue], leases = KEYS[queue + 1], done = KEYS[queue + 2] }
  end
  for section in string.gmatch(sections, '.') do
    if by_end then
      add_ended(source(), section, SIGNS[section])
      add_ended(source(), section, string.upper(SIGNS[section]))
    else
      add_listed(source(), section)
    end
  end
end
for place = math.floor(#heap / 2), 1, -1 do
  sift_down(place)
end

-- ---------------------------------------------------------------- the jobs

local SECTION_OF = { [WAITING] = '0', [RUNNING] = '0', [BLOCKED] = '1', [3] = '2', [4] = '3', [5] = '4' }

local function fits(head)
  local state, flags = state_of(head), byte(head, 2)
  if band(flags, COPY) ~= 0 then
    return false
  end
  if parent ~= '' and not string.find(sections, SECTION_OF[state], 1, true) then
    return false
  end
  if ended_after and (state < COMPLETED or unpack_from('>I8', head, 68) <= ended_after) then
    return false
  end
  if wanted == '' or state ~= WAITING and state ~= RUNNING then
    return true
  end
  local sign = 'r'
  if state == WAITING then -- ready or scheduled: `shown` in model/transitions.py
    sign = unpack_from('>I8', head, 40) - 1 > now and 's' or 'w'
  end
  return string.find(wanted, sign, 1, true) ~= nil
end

-- Whether a body (MessagePack: an array of queue, type ...) is of this type.
local function is_of_type(body)
  local sign = byte(body, 2)
  local at = 2 + (sign == 0xd9 and 2 + byte(body, 3) or 1 + sign - 0xa0)
  sign = byte(body, at)
  if sign == 0xd9 then
    return byte(body, at + 1) == #type_name and sub(body, at + 2, at + 1 + #type_name) == type_name
  end
  return sign - 0xa0 == #type_name and sub(body, at + 1, at + #type_name) == type_name
end

-- The record of an id: nil when there is none, false when it is not asked for, which takes little to find out.
local function asked_for(id)
  if type_name ~= '' then
    local body = call('HGET', data, 'b' .. id)
    if body and not is_of_type(body) then
      return false
    end
  end
  local head = call('HGET', data, 'h' .. id)
  if not head then
    return nil
  elseif not fits(head) then
    return false
  end
  if key ~= '' then
    local scoped = band(byte(head, 2), KEYED) ~= 0 and call('HGET', data, 'K' .. id)
    if not scoped or sub(scoped, string.find(scoped, '\0', 1, true) + 1) ~= key then
      return false
    end
  end
  return record_parts(data, id, lean, true)
end

local reply = { text(now), '1', '', '', 0, '' }
local given, examined = 0, 0
while #heap > 0 do
  if examined == most or given == limit then
    reply[2] = '0'
    break
  end
  local source = heap[1]
  local id = source.jobs[source.place][3]
  if id then
    local record = asked_for(id)
    examined = examined + 1
    reply[3], reply[4] = text(source.seq), text(source.at)
    if record == nil then
      drop_orphan(source, id)
    elseif record then
      given = given + 1
      reply[#reply + 1] = record
    end
  else
    read_instant(source)
  end
  if not advance(source) then
    heap[1] = heap[#heap]
    heap[#heap] = nil
  end
  if #heap > 1 then
    sift_down(1)
  end
end
reply[5] = examined
reply[6] = table.concat(orphans)
return reply
