-- Deletes finished jobs past their retention, with their aliases, and expired idempotency keys. Repeats `retention_of` in
-- model/queue.py.
--
-- KEYS  data, idempotency ends, then per queue: list, done
-- ARGV  now, limit, the names of the queues
-- Returns {how many jobs, the ids of jobs of families, which a unit of work must prune}

local data = KEYS[1]
local now, left = clock(ARGV[1]), tonumber(ARGV[2])
local harbor = rules_in(call('HGET', data, 'R*'))
local HOUR = 3600000000 -- the defaults of `Retention` in model/queue.py
local DEFAULT = { HOUR, 14 * 24 * HOUR, 14 * 24 * HOUR }
local pruned, of_families, MOST = 0, {}, 1000

-- The jobs of one entry of `done`, up to the limit; the rest stays.
local function prune(list, done, entry, state)
  local at, listed, kept = 10, {}, {}
  while at < #entry and left > pruned do
    local field = string.sub(entry, at, at + 16)
    local head = call('HGET', data, field)
    -- Skip jobs that were requeued or deleted since.
    local is_due = head and state_of(head) == state and sub(head, 68, 75) == sub(entry, 2, 9)
    if is_due and byte(head, 1) ~= state then
      kept[#kept + 1] = field
    elseif is_due then
      forget(data, string.sub(field, 2))
      listed[#listed + 1] = field
      pruned = pruned + 1
    elseif not head then
      listed[#listed + 1] = field -- deleted, or lost: then the listing still has it
    end
    at = at + 17
  end
  each_part('ZREM', list, listed, #listed)
  call('ZREM', done, entry)
  for _, field in ipairs(kept) do
    of_families[#of_families + 1] = sub(field, 2)
    call('ZADD', done, '0', sub(entry, 1, 9) .. field)
  end
  if at < #entry then
    call('ZADD', done, '0', string.sub(entry, 1, 9) .. string.sub(entry, at))
  end
end

for at = 3, #KEYS, 2 do
  local list, done, own = KEYS[at], KEYS[at + 1], rules_in(call('HGET', data, 'R' .. ARGV[2 + (at - 1) / 2]))
  local kept = own and own[RETENTION] or harbor and harbor[RETENTION] or DEFAULT
  for i, sign in ipairs({ 'c', 'f', 'x' }) do
    local over = kept[i] >= 0 and now - kept[i] >= 0 and { '' } or {}
    local from = '[' .. sign
    while left > pruned and #over > 0 and #of_families < MOST do
      local last = '(' .. sign .. us(now - kept[i] + 1)
      over = call('ZRANGEBYLEX', done, from, last, 'LIMIT', 0, math.min(left - pruned, 100))
      for _, entry in ipairs(over) do
        if left > pruned then
          prune(list, done, entry, COMPLETED + i - 1)
          from = '(' .. entry -- what was kept stays in front
        end
      end
    end
  end
end

local old = call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', 0, left)
for i, key in ipairs(old) do
  call('HDEL', data, 'i' .. key)
end
each_part('ZREM', KEYS[2], old, #old)
return { pruned, table.concat(of_families) }
