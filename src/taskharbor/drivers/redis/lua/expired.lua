-- The oldest expired leases.
--
-- KEYS  data, then per queue: leases, list
-- ARGV  now, limit
-- Returns {now, the ids of leases that were dropped because no job holds them, then per lease: when it expired, its seq
--       (8 bytes), its id}: in a queue oldest first. Leases that expired at one instant may be more than the limit: the
--       caller takes those of the lowest seq.

local data, now, limit = KEYS[1], clock(ARGV[1]), tonumber(ARGV[2])
local reply, orphans = { text(now), '' }, {}

-- The head of a running job; an entry without one is dropped, with what is left of the job.
local function running_head(leases, list, field)
  local head = call('HGET', data, field)
  local is_lost = not head or call('HEXISTS', data, 'b' .. sub(field, 2)) == 0
  if not is_lost and state_of(head) == RUNNING then
    return head
  end
  call('ZREM', leases, field)
  if is_lost then
    call('ZREM', list, field)
    forget(data, sub(field, 2), true)
  end
  orphans[#orphans + 1] = sub(field, 2)
end

local function add(leases, list, when, field)
  local head = running_head(leases, list, field)
  if head then
    local size = #reply
    reply[size + 1], reply[size + 2], reply[size + 3] = when, sub(head, 24, 31), sub(field, 2)
  end
end

-- Adds the oldest of a queue; returns whether there may be more.
local function add_oldest(leases, list)
  local found = call('ZRANGEBYSCORE', leases, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, limit)
  local last = found[#found]
  for i = 1, #found, 2 do
    if #found < 2 * limit or found[i + 1] ~= last then
      add(leases, list, found[i + 1], found[i])
    end
  end
  if #found == 2 * limit then -- a claim's leases end together, and among those the seq decides
    for _, field in ipairs(call('ZRANGEBYSCORE', leases, last, last)) do
      add(leases, list, last, field)
    end
  end
  return #found == 2 * limit
end

for queue = 2, #KEYS, 2 do
  local size, rounds = #reply, 0
  -- Dropped entries must not hide the ones after them.
  repeat
    local before = #orphans
    for i = #reply, size + 1, -1 do
      reply[i] = nil
    end
    local has_more = add_oldest(KEYS[queue], KEYS[queue + 1])
    rounds = rounds + 1
  until #orphans == before or not has_more or rounds == 100
end
reply[2] = table.concat(orphans)
return reply
