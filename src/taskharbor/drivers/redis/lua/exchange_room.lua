-- Part 4 of 5 of the script exchange: what is asked for, why nothing can be claimed, and how many jobs there is room for.

local claimed_queues, limit, lease_us = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
local worker, token, has_rates = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5] == '1'
local worker_rate = ARGV[at + 6] ~= '' and { tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7]) }
local swept, further, parts = ARGV[at + 8], tonumber(ARGV[at + 9]), tonumber(ARGV[at + 10])
local is_of_many, lane_count = ARGV[at + 11] == '1', tonumber(ARGV[at + 12])
local types
if ARGV[at + 13 + lane_count] then
  types = {}
  for i = at + 13 + lane_count, #ARGV do
    types[ARGV[i]] = true
  end
end
local beyond = 4 + queue_count * 6 -- the last key of the queues

if known[owed_place] and swept ~= '2' and tonumber(known[owed_place]) <= now then
  reply[size + 1] = 'owed'
  return reply
end
if harbor and harbor[MAX_RUNNING] and not further then
  reply[size + 1] = 'leases'
  return reply
end
for queue = 1, claimed_queues do
  local own = rules[queue]
  if own and own[PARTS] then
    if not further and (own[MAX_RUNNING] or own[EXECUTE_RATE]) then
      reply[size + 1] = 'leases'
      return reply
    elseif own[PARTS] > (parts or 0) then
      reply[size + 1] = 'parts'
      return reply
    end
  end
  if not has_rates and (own and own[EXECUTE_RATE] or harbor and harbor[EXECUTE_RATE]) then
    reply[size + 1] = 'rates'
    return reply
  end
  if swept == '' and #call('ZRANGEBYSCORE', key_of(queue, LEASES), '-inf', text(now), 'LIMIT', 0, 1) > 0 then
    reply[size + 1] = 'expired'
    return reply
  end
end

-- The lines of each queue with the changes of this step, which are written at its end.
local lines_in = {}
for queue = 1, claimed_queues do
  lines_in[queue] = known[2 + 2 * queue] or ''
end

-- Due jobs move without change: `later` and `ready` have the same members.
local function promote(queue)
  local later = key_of(queue, LATER)
  local moved = call('ZRANGEBYSCORE', later, '-inf', text(now), 'LIMIT', 0, 1000)
  if #moved == 0 then
    return
  end
  local entries, more = {}, {}
  for i, entry in ipairs(moved) do
    entries[2 * i - 1] = '0'
    entries[2 * i] = entry
    more[sub(entry, 1, -34)] = true
  end
  call('ZREM', later, unpack(moved))
  call('ZADD', key_of(queue, READY), unpack(entries))
  lines_in[queue] = with_lines(lines_in[queue], more)
end

-- Unexpired leases of one key.
local function running(key)
  return call('ZCOUNT', key, '(' .. text(now), '+inf')
end

local function running_of_harbor()
  local count, behind = 0, beyond + (has_rates and queue_count + 2 or 0)
  for i = behind + 1, behind + further do
    count = count + running(KEYS[i])
  end
  for queue = 1, queue_count do
    count = count + running(key_of(queue, LEASES))
  end
  return count
end

local function budgets(queue)
  local found = {}
  if rules[queue] and rules[queue][EXECUTE_RATE] then
    found[#found + 1] = { KEYS[beyond + queue], rules[queue][EXECUTE_RATE] }
  end
  if harbor and harbor[EXECUTE_RATE] then
    found[#found + 1] = { KEYS[beyond + queue_count + 1], harbor[EXECUTE_RATE] }
  end
  if worker_rate then
    found[#found + 1] = { KEYS[beyond + queue_count + 2], worker_rate }
  end
  return found
end

-- How many jobs of a queue may be handed out now, `left` at most. Repeats `Gates.room` in drivers/memory/gates.py.
local function room_of(queue, left)
  local own, room = rules[queue], left
  if (own and own[PAUSED]) or (harbor and harbor[PAUSED]) then
    return 0
  end
  if own and own[MAX_RUNNING] then
    room = math.min(room, own[MAX_RUNNING] - running(key_of(queue, LEASES)))
  end
  if harbor and harbor[MAX_RUNNING] then
    room = math.min(room, harbor[MAX_RUNNING] - running_of_harbor())
  end
  for _, budget in ipairs(budgets(queue)) do
    room = math.min(room, rate_room(budget[1], budget[2], now))
  end
  return room
end
