-- Counts the jobs of some queues. A job that is due is ready: `shown` in model/transitions.py.
--
-- KEYS  data, then per queue: list, ready, later, leases, copies, execute rate
-- ARGV  now, '1' to include the oldest ready job and a used-up rate, the names of the queues
-- Returns {now, per queue: {scheduled, ready, blocked, running, completed, failed, cancelled, oldest ready ('' none),
--       throttled until ('' it is not), rules ('' none)}}

local data = KEYS[1]
local now = clock(ARGV[1])
local reply = { text(now) }

local function section(list, number)
  return call('ZCOUNT', list, text(number * SECTION), '(' .. text((number + 1) * SECTION))
end

-- Copies are not counted: how many of them run, and how many wait for a time.
local function copies_of(key)
  local running, scheduled = 0, 0
  for _, id in ipairs(call('SMEMBERS', key)) do
    local head = call('HGET', data, 'h' .. id)
    local state = head and state_of(head)
    if state == RUNNING then
      running = running + 1
    elseif state == WAITING and unpack_from('>I8', head, 40) - 1 > now then
      scheduled = scheduled + 1
    end
  end
  return running, scheduled
end

-- The first job of every priority of every line, and due jobs not promoted yet.
local function oldest_ready(ready, lines, later)
  local oldest
  local function consider(at)
    oldest = math.min(oldest or at, at)
  end
  for line in string.gmatch(lines or '', '\1([^\1]*)') do
    local beyond = '(' .. string.sub(line, 1, -2) .. '\1'
    local from = '[' .. line
    while true do
      local entry = call('ZRANGEBYLEX', ready, from, beyond, 'LIMIT', 0, 1)[1]
      if not entry then
        break
      end
      local rank, at = unpack_from('>BI8', entry, #line + 1)
      consider(at)
      from = '[' .. line .. string.char(rank + 1)
    end
  end
  local due = call('ZRANGEBYSCORE', later, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, 1)
  if due[2] then
    consider(tonumber(due[2]))
  end
  return oldest and text(oldest) or ''
end

local function throttled_until(rules, key)
  local rate = rules and rules[EXECUTE_RATE]
  if not rate then
    return ''
  end
  local since = '(' .. text(now - rate[2])
  local missing = call('ZCOUNT', key, since, '+inf') - rate[1] + 1
  if missing <= 0 then
    return ''
  end
  local last = call('ZRANGEBYSCORE', key, since, '+inf', 'WITHSCORES', 'LIMIT', missing - 1, 1)
  return text(tonumber(last[2]) + rate[2])
end

for at = 2, #KEYS, 6 do
  local list, ready, later = KEYS[at], KEYS[at + 1], KEYS[at + 2]
  local copies_running, copies_scheduled = copies_of(KEYS[at + 4])
  local running = call('ZCARD', KEYS[at + 3]) - copies_running
  local scheduled = call('ZCOUNT', later, '(' .. text(now), '+inf') - copies_scheduled
  local name = ARGV[2 + (at + 4) / 6]
  local packed, lines = unpack(call('HMGET', data, 'R' .. name, 'Q' .. name))
  local rules = rules_in(packed)
  local wants_more = ARGV[2] == '1'
  reply[#reply + 1] = {
    scheduled,
    math.max(section(list, 0) - running - scheduled, 0), -- entries without a record may be in one and not in the other
    section(list, 1),
    running,
    section(list, 2),
    section(list, 3),
    section(list, 4),
    wants_more and oldest_ready(ready, lines, later) or '',
    wants_more and throttled_until(rules, KEYS[at + 5]) or '',
    packed or '',
  }
end
return reply
