-- Enqueues jobs: all of them, or none. Jobs whose key is in use are left to commit.lua, and those that come after others.
-- Repeats `enqueue_one` and `admit` in drivers/lifecycle.py for jobs that meet no other one, and `Arrival` in
-- drivers/family_enqueue.py for children of stored jobs.
--
-- KEYS  data, queues, look from; then per queue: list, ready, later, wake; then, when asked for, the enqueue rates of each queue
--       and of the harbor; then, if there are children, relatives
-- ARGV  epoch, now, first seq ('' for the store's own count), whether the rates are there ('1'), number of queues,
--       their names, number of jobs, whether an id comes twice ('1'), number of kinds, '' | id, token and worker of the lease that vouches for
--       children; per kind: queue, line, rank, '' | 'a' run_at | 'd' delay, '1' if there are keys | parent and other bonds of
--       children | ''; the kind of each job, counted from 0 (one byte each, two if there are more than 256, nothing if there is
--       one), the ids ('h' before each), the bodies, and per job of a kind with keys its key and its idempotency key
-- Returns {now} when every job was created; when nothing was done {now, 'epoch'}, {now, 'care'} (use a unit of
--       work), {now, 'rates'} (call again with their keys), {now, 'never', queue, count, the rate's count and
--       microseconds} or {now, 'wait', queue, microseconds}; else {now, 'some', then per job: id, version plus 1
--       (0: created)}

local data, now = KEYS[1], clock(ARGV[2])
local has_rates, queue_count = ARGV[4] == '1', tonumber(ARGV[5])
local job_count, kind_count = tonumber(ARGV[6 + queue_count]), tonumber(ARGV[8 + queue_count])
local has_twins = ARGV[7 + queue_count] == '1'
local LIST, READY, LATER, WAKE = 1, 2, 3, 4
local function key_of(queue, part)
  return KEYS[3 + (queue - 1) * 4 + part]
end

-- ------------------------------------------------------------------ read

local fields = { 'e', 'R*' }
for queue = 1, queue_count do
  fields[1 + 2 * queue] = 'R' .. ARGV[5 + queue]
  fields[2 + 2 * queue] = 'Q' .. ARGV[5 + queue]
end
local before = 2 + 2 * queue_count
local by, at = ARGV[9 + queue_count], 9 + queue_count
local kinds = {}
for k = 1, kind_count do
  kinds[k] = { queue = tonumber(ARGV[at + 1]), line = ARGV[at + 2], rank = tonumber(ARGV[at + 3]), when = ARGV[at + 4],
    has_keys = ARGV[at + 5] == '1' }
  if #ARGV[at + 5] >= 16 then
    kinds[k].parent, kinds[k].bonds = sub(ARGV[at + 5], 1, 16), #ARGV[at + 5] > 16 and sub(ARGV[at + 5], 17)
  end
  at = at + 5
end
local kind_of, ids, bodies = ARGV[at + 1], ARGV[at + 2], at + 2
local keys = bodies + job_count -- behind this place: the keys of the jobs that have any
for i = 1, job_count do
  fields[before + i] = sub(ids, 17 * i - 16, 17 * i)
end
local seen_jobs = before + job_count

-- The kind of a job.
local function kind_at(i)
  if kind_count == 1 then
    return kinds[1]
  elseif kind_count <= 256 then
    return kinds[byte(kind_of, i) + 1]
  end
  return kinds[256 * byte(kind_of, 2 * i - 1) + byte(kind_of, 2 * i) + 1]
end

local known
if seen_jobs <= 3000 then
  known = call('HMGET', data, unpack(fields))
else
  known = {}
  for from = 1, seen_jobs, 3000 do
    local part = call('HMGET', data, unpack(fields, from, math.min(from + 2999, seen_jobs)))
    for i = 1, #part do
      known[from + i - 1] = part[i]
    end
  end
end
if known[1] ~= ARGV[1] then
  return { text(now), 'epoch' }
end

local function duplicate(id, head)
  if head and byte(head, 1) == ALIAS then
    id = sub(head, 2)
    head = call('HGET', data, 'h' .. id)
  end
  return { id, head and unpack_from('>I4', head, 4) or 0 }
end

local answers, old_count, came, seen_fields, seen_keys, seen_remembered = {}, 0, {}, {}, {}, {}

-- The existing job for a known id or idempotency key; false if the job is new, nil if a unit of work must decide.
-- `at`: the place before its keys.
local function answer_of(kind, place, at)
  local field = fields[place]
  if known[place] then
    return duplicate(sub(field, 2), known[place])
  elseif seen_fields[field] then
    return { sub(field, 2), 1 }
  end
  if kind.has_keys then
    local queue = ARGV[5 + kind.queue] .. '\0'
    local key, remembered = ARGV[at + 1], ARGV[at + 2]
    if remembered ~= '' then
      local name = queue .. remembered
      local entry = call('HGET', data, 'i' .. name)
      if entry then
        local ends = unpack_from('>I8', entry, 17)
        if ends ~= 0 and ends <= now then
          return nil
        end
        local target = sub(entry, 1, 16)
        local head = call('HGET', data, 'h' .. target)
        if ends == 0 and not head then
          return nil -- its job is not over, and not there: lost
        end
        return duplicate(target, head)
      elseif seen_remembered[name] then
        return { sub(seen_remembered[name], 2), 1 }
      end
      seen_remembered[name] = field
    end
    if key ~= '' then
      if seen_keys[queue .. key] or call('HEXISTS', data, 'k' .. queue .. key) == 1 then
        return nil
      end
      seen_keys[queue .. key] = true
    end
  end
  if has_twins then
    seen_fields[field] = true
  end
  return false
end

-- A parent that takes children: `Arrival._check_parent`. Nil when a unit of work must decide.
local MAX_DEPTH = 16 -- in model/bonds.py
local parents, vouching, parent_of_vouching = {}, nil, nil
local function parent_of(id)
  local head, family = unpack(call('HMGET', data, 'h' .. id, 'f' .. id))
  if not head or call('HEXISTS', data, 'b' .. id) == 0 or state_of(head) >= COMPLETED
    or band(byte(head, 2), KEYED + COPY + CANCEL) ~= 0 or (family and band(byte(family, 1), IS_STOPPING) ~= 0) then
    return nil
  end
  local above, depth = parent_in(head), 1
  if vouching and vouching ~= id and vouching ~= above and parent_of_vouching ~= id then
    return nil
  end
  local relation = (above and sub(head, -32, -17) or id) .. id
  while above do
    local found = call('HGET', data, 'h' .. above)
    above, depth = found and parent_in(found), depth + 1
  end
  return depth <= MAX_DEPTH and { head = head, family = family, relation = relation, count = 0 } or nil
end

-- Counts one new child; false when a unit of work must decide.
local function has_come(parent)
  parents[parent] = parents[parent] or parent_of(parent)
  if not parents[parent] then
    return false
  end
  parents[parent].count = parents[parent].count + 1
  return true
end

if by ~= '' then
  vouching = sub(by, 1, 16)
  local head = call('HGET', data, 'h' .. vouching)
  if not is_held(head, sub(by, 17, 32), sub(by, 33), now) then
    return { text(now), 'care' }
  end
  parent_of_vouching = parent_in(head)
end

local keys_at = keys
for i = 1, job_count do
  local kind, place = kind_at(i), before + i
  local answer = false
  if known[place] or has_twins or kind.has_keys then
    answer = answer_of(kind, place, keys_at)
  end
  if answer == nil or (not answer and kind.parent and not has_come(kind.parent)) then
    return { text(now), 'care' }
  end
  if answer then
    answers[place] = answer
    old_count = old_count + 1
  else
    came[kind.queue] = (came[kind.queue] or 0) + 1
  end
  if kind.has_keys then
    keys_at = keys_at + 2
  end
end
local new_count = job_count - old_count

-- ------------------------------------------------------------------ rates

local spends = {}
for queue = 1, queue_count + 1 do
  local is_harbor = queue > queue_count
  local count = is_harbor and new_count or came[queue] or 0
  local rules = count > 0 and rules_in(known[is_harbor and 2 or 1 + 2 * queue])
  local rate = rules and rules[ENQUEUE_RATE]
  if rate then
    if not has_rates then
      return { text(now), 'rates' }
    end
    if count > rate[1] then
      return { text(now), 'never', is_harbor and 0 or queue, count, rate[1], rate[2] }
    end
    spends[#spends + 1] = { KEYS[3 + queue_count * 4 + queue], rate, count, is_harbor and 0 or queue }
  end
end
for _, spend in ipairs(spends) do
  local wait = rate_wait(spend[1], spend[2], spend[3], now)
  if wait > 0 then
    return { text(now), 'wait', spend[4], text(wait) }
  end
end

-- ------------------------------------------------------------------ write

for _, spend in ipairs(spends) do
  rate_spend(spend[1], spend[3], now)
end
local seq, writes, w, sets, related = 0, {}, 0, {}, {}
local now8 = us(now)

local function write_keys(kind, id, at)
  local queue, flags = ARGV[5 + kind.queue] .. '\0', 0
  local key, remembered = ARGV[at + 1], ARGV[at + 2]
  if key ~= '' then
    local name = queue .. key
    flags = KEYED
    writes[w + 1], writes[w + 2], writes[w + 3], writes[w + 4] = 'K' .. id, name, 'k' .. name, 'w' .. id
    w = w + 4
  end
  if remembered ~= '' then
    local name = queue .. remembered
    flags = flags + REMEMBERED
    writes[w + 1], writes[w + 2] = 'i' .. name, id .. us(0)
    writes[w + 3], writes[w + 4] = 'I' .. id, pack('>Hc0', #name, name)
    w = w + 4
  end
  return flags
end

-- What all new jobs of a kind share. Repeats `new_record` in model/transitions.py.
local function prepare(kind)
  local when, run_at, set = kind.when, -1, sets[kind.queue]
  if not set then
    set = { list = { n = 0 }, ready = { n = 0 }, later = { n = 0 }, lines = {} }
    sets[kind.queue] = set
  end
  if when ~= '' then
    run_at = tonumber(sub(when, 2)) + (byte(when) == 100 and now or 0) -- 'd'
  end
  local relation = kind.parent and parents[kind.parent].relation or ''
  local state = WAITING + (kind.bonds and CHILD + FAMILY or kind.parent and CHILD or 0)
  kind.front, kind.tail = pack('>BBBI4I8I8', state, 0, kind.rank, 1, now, 0), now8 .. us(run_at + 1) .. relation
  kind.entry = kind.line .. string.char(kind.rank) .. us(run_at < 0 and now or run_at)
  kind.list, kind.score, kind.entries = set.list, '0', set.ready
  if run_at > now then
    kind.score, kind.entries = text(run_at), set.later
  else
    set.lines[kind.line] = true
  end
end

local function write(kind, place, body, keys_at)
  local field, front = fields[place], kind.front
  local id = sub(field, 2)
  if kind.has_keys then
    front = pack('>BBBI4I8I8', WAITING, write_keys(kind, id, keys_at), kind.rank, 1, now, 0)
  end
  seq = seq + 1
  local seq8 = pack('>I8', seq)
  writes[w + 1], writes[w + 2], writes[w + 3], writes[w + 4] = field, front .. seq8 .. kind.tail, 'b' .. id, body
  w = w + 4
  local list, entries = kind.list, kind.entries
  local l, e = list.n, entries.n
  list[l + 1], list[l + 2] = seq, field
  entries[e + 1], entries[e + 2] = kind.score, kind.entry .. seq8 .. id
  list.n, entries.n = l + 2, e + 2
  if kind.parent then
    related[#related + 1], related[#related + 2] = '0', 'c' .. kind.parent .. seq8 .. id
  end
  if kind.bonds then
    writes[w + 1], writes[w + 2] = 'B' .. id, kind.bonds
    w = w + 2
  end
end

-- Repeats `with_child` in model/family_steps.py.
local function count_children(id, parent)
  local family = parent.family or pack('>BI4I4I4I4I4I4', SPARES, 0, 0, 0, 0, 0, 0)
  local total = unpack_from('>I4', family, 6) + parent.count
  writes[w + 1], writes[w + 2] = 'f' .. id, sub(family, 1, 5) .. pack('>I4', total) .. sub(family, 10)
  w = w + 2
  if byte(parent.head, 1) < FAMILY then
    writes[w + 1], writes[w + 2] = 'h' .. id, string.char(byte(parent.head, 1) + FAMILY) .. sub(parent.head, 2)
    w = w + 2
  end
  call('HINCRBY', data, 'O' .. id, parent.count)
end

if new_count > 0 then
  if ARGV[3] ~= '' then
    seq = tonumber(ARGV[3]) - 1
  else
    seq = call('HINCRBY', data, 'n', new_count) - new_count
  end
  keys_at = keys
  for i = 1, job_count do
    local kind, place = kind_at(i), before + i
    if not answers[place] then
      if not kind.front then
        prepare(kind)
      end
      write(kind, place, ARGV[bodies + i], keys_at)
    end
    if kind.has_keys then
      keys_at = keys_at + 2
    end
  end
  for queue, set in pairs(sets) do
    local lines, is_changed = with_lines(known[2 + 2 * queue], set.lines)
    if is_changed then
      writes[w + 1], writes[w + 2] = 'Q' .. ARGV[5 + queue], lines
      w = w + 2
      call('ZADD', KEYS[3], '0', ARGV[5 + queue])
    end
  end
  for id, parent in pairs(parents) do
    count_children(id, parent)
  end
  each_part('ZADD', KEYS[#KEYS], related, #related)
  each_part('HSET', data, writes, w)
  for queue, set in pairs(sets) do
    if not known[2 + 2 * queue] then
      call('SADD', KEYS[2], ARGV[5 + queue])
    end
    each_part('ZADD', key_of(queue, LIST), set.list, set.list.n)
    if set.later.n > 0 then
      local later = key_of(queue, LATER)
      local earliest = call('ZRANGE', later, 0, 0)[1]
      each_part('ZADD', later, set.later, set.later.n)
      -- Listeners that wait for a due time must learn of an earlier one.
      local first = call('ZRANGE', later, 0, 0, 'WITHSCORES')
      if first[1] ~= earliest then
        call('ZADD', KEYS[3], 'LT', first[2], ARGV[5 + queue])
        wake(key_of(queue, WAKE))
      end
    end
    if set.ready.n > 0 then
      each_part('ZADD', key_of(queue, READY), set.ready, set.ready.n)
      wake(key_of(queue, WAKE))
    end
  end
end

if old_count == 0 then
  return { text(now) }
end
local reply = { text(now), 'some' }
for i = 1, job_count do
  local answer = answers[before + i]
  reply[2 * i + 1] = answer and answer[1] or sub(fields[before + i], 2)
  reply[2 * i + 2] = answer and answer[2] + 1 or 0
end
return reply
