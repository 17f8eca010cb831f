-- One page of jobs, in enqueue order.
--
-- KEYS  data, then per queue: list, leases
-- ARGV  now, 'newest' | 'oldest', seq to go on behind ('' for the start), most to examine, most to give, sections (their numbers),
--       which of the section of live jobs: signs of 'w' waiting and due, 's' scheduled, 'r' running ('' for all),
--       '1' for records without payloads and results
-- Returns {now, '1' when that was all, seq of the last one examined, the ids of entries that were dropped because they
--       have no record, per job what get.lua gives}. Nothing else is ever written here.

local data = KEYS[1]
local now = clock(ARGV[1])
local newest, behind = ARGV[2] == 'newest', ARGV[3]
local most, limit, sections, wanted = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]
local lean = ARGV[8] == '1'
local entries, orphans = {}, {}

local function drop_orphan(list, leases, id)
  call('ZREM', list, 'h' .. id)
  call('ZREM', leases, 'h' .. id)
  forget(data, id)
  orphans[#orphans + 1] = id
end

local function add_section(list, leases, section)
  local base = tonumber(section) * SECTION
  local first, beyond, found = text(base), '(' .. text(base + SECTION), nil
  if newest then
    local top = behind ~= '' and '(' .. text(base + tonumber(behind)) or beyond
    found = call('ZREVRANGEBYSCORE', list, top, first, 'WITHSCORES', 'LIMIT', 0, most)
  else
    local from = behind ~= '' and '(' .. text(base + tonumber(behind)) or first
    found = call('ZRANGEBYSCORE', list, from, beyond, 'WITHSCORES', 'LIMIT', 0, most)
  end
  for i = 1, #found, 2 do
    entries[#entries + 1] = { tonumber(found[i + 1]) - base, string.sub(found[i], 2), list, leases }
  end
end

-- There are usually few running jobs: then scanning their leases is faster.
local function add_leases(list, leases)
  for _, field in ipairs(call('ZRANGE', leases, 0, -1)) do
    local head = call('HGET', data, field)
    local seq = head and unpack_from('>I8', head, 24)
    if not head then
      drop_orphan(list, leases, string.sub(field, 2))
    elseif behind == '' or (newest and seq < tonumber(behind)) or (not newest and seq > tonumber(behind)) then
      entries[#entries + 1] = { seq, string.sub(field, 2), list, leases }
    end
  end
end

for queue = 2, #KEYS, 2 do
  for section in string.gmatch(sections, '.') do
    if section == '0' and wanted == 'r' and call('ZCARD', KEYS[queue + 1]) <= most then
      add_leases(KEYS[queue], KEYS[queue + 1])
    else
      add_section(KEYS[queue], KEYS[queue + 1], section)
    end
  end
end
table.sort(entries, function(one, other)
  if newest then
    return one[1] > other[1]
  end
  return one[1] < other[1]
end)

local function fits(head)
  local state, flags = string.byte(head, 1, 2)
  if band(flags, COPY) ~= 0 then
    return false
  end
  if wanted == '' or state ~= WAITING and state ~= RUNNING then
    return true
  end
  local sign = 'r'
  if state == WAITING then
    sign = unpack_from('>I8', head, 40) - 1 > now and 's' or 'w'
  end
  return string.find(wanted, sign, 1, true) ~= nil
end

local reply = { text(now), '1', '', '' }
local given = 0
for i, entry in ipairs(entries) do
  if i > most or given == limit then
    reply[2] = '0'
    break
  end
  local id = entry[2]
  local record = record_parts(data, id, lean)
  reply[3] = text(entry[1])
  if not record then
    drop_orphan(entry[3], entry[4], id)
  elseif fits(record[2]) then
    given = given + 1
    reply[#reply + 1] = record
  end
end
if #entries >= most then
  reply[2] = '0'
end
reply[4] = table.concat(orphans)
return reply
