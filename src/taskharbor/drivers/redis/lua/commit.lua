-- Writes what a unit of work decided, if everything it has read is unchanged: all of it, or nothing.
--
-- KEYS  data, then whatever the guards and the writes name by number
-- ARGV  epoch, now; number of guards, per guard: key, field, '' absent | 'v' value | 'm' change: the
--       number there must stay above 0 with this change;
--       number of rates to spend, per rate: key, count, per, how many;
--       then per write: number of parts, command, key, arguments; besides the server's own commands there are
--       WAKE (a wake list), ENTER and LEAVE (a ready set), UNDONE (of a child), UNNOTE (a job), OWE, PAID and DUE (what is owed)
-- Returns 'done', 'epoch', 'changed' on a conflict, or {'wait', rate, microseconds}

if call('HGET', KEYS[1], 'e') ~= ARGV[1] then
  return 'epoch'
end
local at = 4
for _ = 1, tonumber(ARGV[3]) do
  local found = call('HGET', KEYS[tonumber(ARGV[at])], ARGV[at + 1])
  local expected = ARGV[at + 2]
  if sub(expected, 1, 1) == 'm' then
    if tonumber(found or 0) + tonumber(sub(expected, 2)) <= 0 then
      return 'changed'
    end
  elseif (found and 'v' .. found or '') ~= expected then
    return 'changed'
  end
  at = at + 3
end
local now = clock(ARGV[2])
local rates = {}
for i = 1, tonumber(ARGV[at]) do
  local key, rate = KEYS[tonumber(ARGV[at + 1])], { tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]) }
  local wait = rate_wait(key, rate, tonumber(ARGV[at + 4]), now)
  if wait > 0 then
    return { 'wait', i, text(wait) }
  end
  rates[i] = { key, tonumber(ARGV[at + 4]) }
  at = at + 4
end
at = at + 1

local function undone(done, front, field)
  if call('ZREM', done, front .. field) == 1 then
    return
  end
  for _, entry in ipairs(call('ZRANGEBYLEX', done, '[' .. front, '(' .. front .. '\255')) do
    local from = string.find(entry, field, 10, true)
    while from and (from - 10) % 17 ~= 0 do
      from = string.find(entry, field, from + 1, true)
    end
    if from then
      call('ZREM', done, entry)
      call('ZADD', done, '0', sub(entry, 1, from - 1) .. sub(entry, from + 17))
      return
    end
  end
end

for _, rate in ipairs(rates) do
  rate_spend(rate[1], rate[2], now)
end
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  local command, key = ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])]
  if command == 'WAKE' then
    wake(key)
  elseif command == 'ENTER' then -- ready; queue, entry, line
    local field = 'Q' .. ARGV[at + 3]
    local lines, is_changed = with_lines(call('HGET', KEYS[1], field), { [ARGV[at + 5]] = true })
    call('ZADD', key, '0', ARGV[at + 4])
    if is_changed then
      call('HSET', KEYS[1], field, lines)
    end
  elseif command == 'LEAVE' then -- ready; later, entry: it waits in one of the two
    if call('ZREM', key, ARGV[at + 4]) == 0 then
      call('ZREM', KEYS[tonumber(ARGV[at + 3])], ARGV[at + 4])
    end
  elseif command == 'UNDONE' then -- done; sign and when, name of the head: it may be listed with others
    undone(key, ARGV[at + 3], ARGV[at + 4])
  elseif command == 'UNNOTE' then -- data; id
    forget_notes(key, ARGV[at + 3])
  elseif command == 'OWE' then -- owed; what
    local number = us(call('HINCRBY', KEYS[1], 'W', 1))
    call('ZADD', key, '0', number)
    call('HSET', KEYS[1], 'w' .. number, ARGV[at + 3])
  elseif command == 'PAID' then -- owed; number
    call('ZREM', key, ARGV[at + 3])
    call('HDEL', KEYS[1], 'w' .. ARGV[at + 3])
  elseif command == 'DUE' then -- owed; deadlines: when a claim must look for what is owed or late
    local first = call('ZRANGE', KEYS[tonumber(ARGV[at + 3])], 0, 0, 'WITHSCORES')
    local due = call('ZCARD', key) > 0 and '0' or first[2]
    if due then
      call('HSET', KEYS[1], 't', due)
    else
      call('HDEL', KEYS[1], 't')
    end
  else
    call(command, key, unpack(ARGV, at + 3, last))
  end
  at = last + 1
end
return 'done'
