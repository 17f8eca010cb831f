-- Part 5 of 5 of the script exchange: takes the best jobs of each queue that this worker may run.

-- The ready entries of some lines, best first. Numbers are compared, never strings: those follow the locale.
local function best_first(ready, lines, chunk, on_empty)
  local heads = {}
  local function fill(head)
    head.entries = call('ZRANGEBYLEX', ready, head.from, head.to, 'LIMIT', 0, chunk)
    head.place, head.size = 0, #head.entries
  end
  local function step(head)
    if head.place == head.size and head.size == chunk then
      head.from = '(' .. head.entries[head.size]
      fill(head)
    end
    head.place = head.place + 1
    head.entry = head.entries[head.place]
    if head.entry and #lines > 1 then
      head.rank, head.eligible, head.seq = unpack_from('>BI8I8', head.entry, #head.line + 1)
    end
  end
  for _, line in ipairs(lines) do
    local head = { line = line, from = '[' .. line, to = '(' .. sub(line, 1, -2) .. '\1' }
    fill(head)
    if head.size == 0 then
      on_empty(line)
    else
      step(head)
      heads[#heads + 1] = head
    end
  end
  if #heads == 0 then
    return nil
  end
  if #heads == 1 then
    local only = heads[1]
    return function()
      local entry = only.entry
      if entry then
        step(only)
      end
      return entry
    end, true
  end
  return function()
    local best
    for _, head in ipairs(heads) do
      if head.entry and (not best or head.rank < best.rank or (head.rank == best.rank and (head.eligible < best.eligible
          or (head.eligible == best.eligible and head.seq < best.seq)))) then
        best = head
      end
    end
    if best then
      local entry = best.entry
      step(best)
      return entry
    end
  end
end

local function lines_of(queue, lane)
  local found = {}
  for line in string.gmatch(lines_in[queue], '\1([^\1]*)') do
    if sub(line, 1, #lane + 1) == lane .. '\0' and (not types or types[sub(line, #lane + 2, -2)]) then
      found[#found + 1] = line
    end
  end
  return found
end

-- A copy can be claimed only while its original runs, and not by the same worker: `may_take` in model/speculation.py.
-- `v` holds that worker, an instant or 0, and slower workers, which must wait until that instant.
local function may_copy(id)
  local original = call('HGET', data, 'h' .. (call('HGET', data, 'o' .. id) or ''))
  if not original or state_of(original) ~= RUNNING or sub(original, 93, 92 + byte(original, 92)) == worker then
    return false
  end
  local packed = call('HGET', data, 'v' .. id)
  if not packed then
    return true
  end
  local never, from, slower = unpack(cmsgpack.unpack(packed))
  if now < from then
    for _, name in ipairs(slower) do
      if name == worker then
        return false
      end
    end
  end
  return never ~= worker
end

-- `may_run` in drivers/families.py: it is in time, and its parent is not being stopped.
local stop_of = {}
local function may_run(parent, family)
  local bonds = family and family[1] or ''
  local flags = bonds ~= '' and byte(bonds, 1) or 0
  if band(flags, HAS_DEADLINE) ~= 0 and unpack_from('>I8', bonds, 2) <= now then
    return false
  end
  if not parent then
    return true
  end
  if stop_of[parent] == nil then
    local stored = call('HGET', data, 'f' .. parent)
    stop_of[parent] = stored and byte(stored, 1) or 0
  end
  local stop = stop_of[parent]
  return band(stop, IS_STOPPING) == 0 or (band(stop, SPARES) ~= 0 and band(flags, IS_SPARED) ~= 0)
end

local expires = now + lease_us
local expires_text = text(expires)
local lease_tail = us(expires) .. token .. string.char(#worker) .. worker
local first_lease = pack('>I4I8I8', 1, now, now) .. lease_tail

local taken_count, more_of, more_count = 0, {}, 0
local orphans, MOST_ORPHANS = {}, 10000 -- per claim, so that none of them takes long
local MOST_PASSED = 10000 -- jobs of families that may not run now

-- Drops an entry without a waiting job, which no claim could take, and what is left of the job.
local function drop_orphan(queue, entry, is_lost)
  local id = sub(entry, -16)
  call('ZREM', key_of(queue, READY), entry)
  if is_lost then
    call('ZREM', key_of(queue, LIST), 'h' .. id)
    forget(data, id, true)
  end
  orphans[#orphans + 1] = id
end

-- Claims up to `count` jobs of one lane of a queue; returns how many. Repeats `claimed` in model/transitions.py.
local function take(queue, lane, count)
  local lines = lines_of(queue, lane)
  if #lines == 0 then
    return 0
  end
  local name = ARGV[3 + queue]
  local ready = key_of(queue, READY)
  local next_entry, is_one_line = best_first(ready, lines, math.min(math.ceil(count / #lines) + 1, 1000), function(line)
    local from, to = string.find(lines_in[queue], '\1' .. line, 1, true)
    lines_in[queue] = sub(lines_in[queue], 1, from - 1) .. sub(lines_in[queue], to + 1)
  end)
  if not next_entry then
    return 0
  end
  local writes, w, drops, entries, leases, taken = {}, 0, {}, {}, {}, 0
  local is_first_part = is_one_line -- and nothing in between was left
  local front, new_front, flags, kind, passed, first_back = '', '', 0, 0, 0, first_lease .. name
  local relation, parent, size_before = '', nil, 47 -- the size of a head before the first start
  local function look_at_relation(head)
    relation = size_before > 47 and sub(head, -32) or ''
    parent = size_before > 47 and sub(relation, 17) or nil
    first_back = first_lease .. name .. relation
  end
  while taken < count and #orphans < MOST_ORPHANS and passed < MOST_PASSED do
    local wanted, ids, asked, found_count = {}, {}, {}, 0
    local most = math.min(count - taken, 1000)
    while found_count < most do
      local entry = next_entry()
      if not entry then
        break
      end
      found_count = found_count + 1
      local id = sub(entry, -16)
      wanted[found_count], ids[found_count] = entry, id
      asked[2 * found_count - 1], asked[2 * found_count] = 'h' .. id, 'b' .. id
    end
    if found_count == 0 then
      break
    end
    local found = call('HMGET', data, unpack(asked))
    for i = 1, found_count do
      local id, head, entry = ids[i], found[2 * i - 1], wanted[i]
      local is_lost = not (head and found[2 * i])
      if not is_lost and sub(head, 1, 15) ~= front then -- jobs of one enqueue share this part, decoded once
        front = sub(head, 1, 15)
        local state, rank, version
        state, flags, rank, version = unpack_from('>BBBI4', front)
        kind = band(state, CHILD + FAMILY)
        size_before = kind % FAMILY == CHILD and 79 or 47
        new_front = state == WAITING + kind
          and pack('>BBBI4I8', RUNNING + kind, band(flags, 255 - PROGRESS), rank, version + 1, now)
      end
      local run_at8 = head and sub(head, 40, 47)
      local of_family = kind >= FAMILY and head and family_fields(data, id, true)
      if head and (size_before > 47 and sub(head, -32) or '') ~= relation then
        look_at_relation(head)
      end
      if is_lost or not new_front then
        drop_orphan(queue, entry, is_lost)
      elseif run_at8 ~= '\0\0\0\0\0\0\0\0' and unpack_from('>I8', run_at8) - 1 > now then
        -- The clock went back: due jobs wait again.
        call('ZREM', ready, entry)
        call('ZADD', key_of(queue, LATER), text(unpack_from('>I8', run_at8) - 1), entry)
      elseif kind ~= 0 and not may_run(parent, of_family) then
        is_first_part, passed = false, passed + 1
      elseif band(flags, COPY) == 0 or may_copy(id) then
        local after
        if #head == size_before then
          after = new_front .. sub(head, 16, 47) .. first_back
        else
          local starts, fence = unpack_from('>I4I8', head, 48)
          local lease = pack('>I4I8I8', starts + 1, math.max(fence + 1, now), now) .. lease_tail
          after = new_front .. sub(head, 16, 47) .. lease .. name .. relation
        end
        taken = taken + 1
        taken_count = taken_count + 1
        if flags ~= 0 or of_family then
          if band(flags, PROGRESS) ~= 0 then
            drops[#drops + 1] = 'p' .. id
          end
          local key = band(flags, KEYED) ~= 0 and call('HGET', data, 'K' .. id)
          local story = band(flags, STORY) ~= 0 and call('HGET', data, 's' .. id)
          if key then
            writes[w + 1], writes[w + 2] = 'k' .. key, 'r' .. id
            w = w + 2
          end
          if story or key or of_family then
            more_of[more_count + 1], more_of[more_count + 2], more_of[more_count + 3] = taken_count, story or '', key or ''
            more_of[more_count + 4] = of_family or ''
            more_count = more_count + 4
          end
        end
        writes[w + 1], writes[w + 2] = asked[2 * i - 1], after
        w = w + 2
        entries[taken] = entry
        leases[2 * taken - 1], leases[2 * taken] = expires_text, asked[2 * i - 1]
        reply[size + 1], reply[size + 2], reply[size + 3] = id, (flags ~= 0 or of_family or #head > size_before) and after or head, found[2 * i]
        size = size + 3
      else
        is_first_part = false
      end
    end
  end
  each_part('HSET', data, writes, w)
  each_part('HDEL', data, drops, #drops)
  if is_first_part and taken > 1 then
    call('ZREMRANGEBYLEX', ready, '[' .. entries[1], '[' .. entries[taken])
  else
    each_part('ZREM', ready, entries, taken)
  end
  each_part('ZADD', key_of(queue, LEASES), leases, 2 * taken)
  return taken
end

-- From when on a claim may find something in this queue: now, or when a job is due or a lease ends.
local function note_when_to_look(queue)
  if lines_in[queue] ~= '' then
    call('ZADD', KEYS[4], '0', ARGV[3 + queue])
    return
  end
  local due = call('ZRANGE', key_of(queue, LATER), 0, 0, 'WITHSCORES')[2]
  local ends = call('ZRANGE', key_of(queue, LEASES), 0, 0, 'WITHSCORES')[2]
  if due or ends then
    call('ZADD', KEYS[4], (not ends or due and tonumber(due) < tonumber(ends)) and due or ends, ARGV[3 + queue])
  else
    call('ZREM', KEYS[4], ARGV[3 + queue])
  end
end

reply[size + 1] = 'jobs'
size = size + 3
local count_place = size - 1
reply[count_place], reply[size] = 0, ''
local left = limit
for queue = 1, claimed_queues do
  promote(queue)
  local room, taken = room_of(queue, left), 0
  for i = at + 13, at + 12 + lane_count do
    if taken < room then
      taken = taken + take(queue, ARGV[i], room - taken)
    end
  end
  if taken > 0 or #orphans > 0 then
    for _, budget in ipairs(taken > 0 and budgets(queue) or {}) do
      rate_spend(budget[1], taken, now)
    end
    -- A handle that was woken wakes the next one if more is ready than it could take.
    if call('ZCARD', key_of(queue, READY)) > 0 then
      wake(key_of(queue, WAKE))
    else
      call('DEL', key_of(queue, WAKE))
    end
  end
  if lines_in[queue] ~= (known[2 + 2 * queue] or '') then
    call('HSET', data, 'Q' .. ARGV[3 + queue], lines_in[queue])
  end
  if is_of_many then
    note_when_to_look(queue)
  end
  left = left - taken
end
reply[count_place], reply[count_place + 1] = taken_count, table.concat(orphans)
for i = 1, more_count do
  reply[size + i] = more_of[i]
end
return reply
