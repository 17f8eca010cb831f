-- Settles attempts that concern no other job, then claims jobs: one step.
--
-- KEYS  data, idempotency ends, relatives; then per queue: list, ready, later, leases, done, wake; then, when asked for, the
--       execute rates of each queue, of the harbor and of the worker; then the leases of further queues, which
--       only the harbor's max_running needs
-- ARGV  epoch, now, number of queues, their names; number of groups of acks and of other settlements, no id twice, '1' if the
--       caller settles more than these; per group:
--       queue, token, worker ('' if not given), number of results, the ids ('h' before each), the results ('' |
--       'r' result: of each, or none at all); per other settlement what settlements.py sends: queue, token, worker, 'h' id, state
--       that the job will have, attempts ('+' how many more | number), '' | 'k' its run_at is kept | 'a' run_at | 'd' delay, end of
--       the attempt's entry in the history, the rest of the story ('' keeps it), and behind the instant of this step more of it;
--       then nothing more, or a claim: number of queues (the first ones),
--       limit, lease in us, worker, token, whether the rates are there ('1'), rate count ('' for none), rate per,
--       whether expired leases were dealt with ('1'), and what families owe, too ('2'), number of further leases ('' when they are not there), how many
--       parts of the queue in other slots the caller knows ('' for none), number of lanes, lanes, types
-- Returns {now, 'epoch'} when nothing was done; else {now | {now, per job that is over with its last child {id, head, body,
--       bonds or '', family}, the queues with jobs that may run now whose workers wait in another slot}, per settlement: 8 times its version and 0 ready, 1 scheduled, 3 completed
--       or 4 failed | 'N' not running | 'M' another token
--       | 'E' expired | 'S' a unit of work must decide, then why nothing was claimed: 'later' (one was left over),
--       'expired', 'owed' (consequences of families come first), 'rates', 'leases' (call again with their keys), 'parts' (this queue
--       of a cluster has jobs in other slots that the caller does not know); or 'jobs', how many, the ids of entries that were dropped
--       because they have no record, and per job: id, head, body; then per job with more to it: its number, story,
--       scoped key, and '' or what `family_fields` returns. The head of a job that never ran and has no flags is the one before this step.
-- With a settlement left over or an expired lease nothing is claimed: those come first.
-- Repeats for speed: `settle_one` and `end` in drivers/lifecycle.py for jobs alone, `claimed` in
-- model/transitions.py, `may_take` in model/speculation.py.

local data, now = KEYS[1], clock(ARGV[2])
local queue_count = tonumber(ARGV[3])
local at = 4 + queue_count
local group_count, other_count, has_more = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2] == '1'
at = at + 3
local reply, size = { text(now) }, 1
local now8 = us(now)
local LIST, READY, LATER, LEASES, DONE, WAKE = 1, 2, 3, 4, 5, 6
local function key_of(queue, part)
  return KEYS[3 + (queue - 1) * 6 + part]
end

-- ------------------------------------------------------------------ read

local fields = { 'e', 'R*' }
for queue = 1, queue_count do
  fields[1 + 2 * queue] = 'R' .. ARGV[3 + queue]
  fields[2 + 2 * queue] = 'Q' .. ARGV[3 + queue]
end
local before = 3 + 2 * queue_count
fields[before] = 't'
local due = before
local groups, last = {}, before
for g = 1, group_count do
  local results, heads = tonumber(ARGV[at + 3]), ARGV[at + 4]
  local group = { queue = tonumber(ARGV[at]), token = ARGV[at + 1], worker_id = ARGV[at + 2], first = last,
    count = #heads / 17, results = results > 0 and at + 4 }
  for i = 1, group.count do
    fields[last + i] = sub(heads, 17 * i - 16, 17 * i)
  end
  last = last + group.count
  groups[g] = group
  at = at + 5 + results
end
local others, first_other = at, last
for i = 1, other_count do
  fields[last + i] = ARGV[at + 3]
  at = at + 10
end
last = last + other_count
local known
if last <= 3000 then
  known = call('HMGET', data, unpack(fields))
else
  known = {}
  for from = 1, last, 3000 do
    local part = call('HMGET', data, unpack(fields, from, math.min(from + 2999, last)))
    for i = 1, #part do
      known[from + i - 1] = part[i]
    end
  end
end
if known[1] ~= ARGV[1] then
  return { text(now), 'epoch' }
end
local harbor, rules = rules_in(known[2]) or false, {}
for queue = 1, queue_count do
  rules[queue] = rules_in(known[1 + 2 * queue]) or false
end

-- ------------------------------------------------------------------ settlements

local sets, s, deletes, d, ends, strangers = {}, 0, {}, 0, {}, {}
local by_queue = {}
local has_left_over = false

-- Idempotency keys are remembered for a day after the job finished: `end` in drivers/lifecycle.py.
local function remember_for_a_day(id)
  local packed, from = call('HGET', data, 'I' .. id) or '', 1
  local until_ = now + 86400000000
  while from <= #packed do
    local name
    name, from = unpack_from('>Hc0', packed, from)
    local entry = call('HGET', data, 'i' .. name)
    if entry and sub(entry, 1, 16) == id then
      sets[s + 1], sets[s + 2] = 'i' .. name, id .. us(until_)
      s = s + 2
      ends[#ends + 1] = text(until_)
      ends[#ends + 1] = name
    end
  end
end

local function set_of(queue)
  local set = by_queue[queue]
  if not set then
    local kept = rules[queue] and rules[queue][RETENTION] or harbor and harbor[RETENTION]
    set = { places = {}, listed = {}, n = 0, forget = kept and kept[1] == 0, children = {} }
    by_queue[queue] = set
  end
  return set
end

local function number_of(name)
  for queue = 1, queue_count do
    if ARGV[3 + queue] == name then
      return queue
    end
  end
end

local function keeps(queue)
  return not set_of(queue).forget
end

-- What ends in this call beside acks, and does more to others than a script knows, comes before what follows from acks.
local function is_mixed()
  for i = 1, other_count do
    local head, after = known[first_other + i], ARGV[others + 10 * (i - 1) + 4]
    if head and byte(head, 1) >= CHILD and tonumber(after) ~= WAITING then
      return true
    end
  end
  return has_more
end

-- Whether the end of a job of a family is left to a unit of work.
local ends_of_families, told, woken = nil, {}, {}
local function left_over(field, flags, kind, parent)
  if band(flags, 255 - PROGRESS - STORY) ~= 0 then
    return true
  end
  ends_of_families = ends_of_families or family_ends(data, KEYS[3], now, number_of, keeps, is_mixed())
  return not ends_of_families.add(sub(field, 2), kind >= FAMILY, parent)
end

-- Whether `settle_one` in drivers/lifecycle.py must decide: more than this job changes.
local function unusual(id, flags, forget)
  if band(flags, COPY + CANCEL + COPIED) ~= 0 or (forget and band(flags, ALIASED) ~= 0) then
    return true
  end
  if band(flags, KEYED) ~= 0 then
    local slot = 'k' .. (call('HGET', data, 'K' .. id) or '')
    if #(call('HGET', data, slot) or '') > 17 then
      return true -- a job is blocked behind it
    end
    deletes[d + 1] = slot
    d = d + 1
  end
  if band(flags, REMEMBERED) ~= 0 then
    remember_for_a_day(id)
  end
  return false
end

local COMPLETED_TAIL = '\169completed\192\192' -- MessagePack: the outcome, no error, no class

-- Jobs of one claim share the start and the end of their heads, which are decoded once.
local function ack_group(group)
  local queue, set = group.queue, set_of(group.queue)
  local token, worker_id, name = group.token, group.worker_id, ARGV[3 + queue]
  local places, listed, n, forget, children = set.places, set.listed, set.n, set.forget, set.children
  local front, new_front, version, flags, back, new_back, refusal, kind, parent, is_later_run

  -- Repeats `settled` in model/transitions.py for an Ack.
  local function look_at_front(head)
    front = sub(head, 1, 15)
    local state, rank
    state, flags, rank, version = unpack_from('>BBBI4', front)
    version = version + 1
    kind = band(state, CHILD + FAMILY)
    new_front = state == RUNNING + kind and pack('>BBBI4I8', COMPLETED + kind, flags, rank, version, now)
  end

  -- Checks the lease: nil if it is valid, else the answer, as `lease_error` in model/transitions.py.
  local function look_at_back(head)
    back = sub(head, 48)
    local worker_end = 45 + byte(back, 45)
    local relation = kind % FAMILY == CHILD and sub(back, -32) or ''
    parent = relation ~= '' and sub(relation, 17)
    new_back, is_later_run = sub(back, 1, 20) .. now8 .. token .. '\0' .. relation, sub(back, 1, 4) ~= '\0\0\0\1'
    if sub(back, 29, 44) ~= token or (worker_id ~= '' and worker_id ~= sub(back, 46, worker_end)) then
      return 'M'
    elseif unpack_from('>I8', back, 21) <= now then
      return 'E'
    elseif sub(back, worker_end + 1, -1 - #relation) ~= name then
      return 'S'
    end
  end

  local function ack(field, head, result)
    if not head then
      return 'N'
    end
    if sub(head, 1, 15) ~= front then
      look_at_front(head)
    end
    if not new_front then
      return 'N'
    end
    if sub(head, 48) ~= back then
      refusal = look_at_back(head)
    end
    if refusal then
      return refusal
    end
    if is_later_run and band(flags, STORY) == 0 then
      return 'S' -- it has no history yet
    end
    if kind ~= 0 then
      if (forget and kind ~= CHILD) or left_over(field, flags, kind, parent) then
        return 'S'
      elseif forget then
        strangers[#strangers + 1] = 'c' .. parent .. sub(head, 24, 31) .. sub(field, 2)
      elseif parent then
        children[#children + 1] = field
      end
    elseif flags ~= 0 and unusual(sub(field, 2), flags, forget) then
      return 'S'
    end
    n = n + 1
    places[n] = field
    if forget then
      local id = sub(field, 2)
      deletes[d + 1], deletes[d + 2] = field, 'b' .. id
      d = d + 2
      if flags ~= 0 then
        deletes[d + 1], deletes[d + 2], deletes[d + 3], deletes[d + 4] = 's' .. id, 'p' .. id, 'K' .. id, 'I' .. id
        d = d + 4
      end
      return 8 * version + COMPLETED
    end
    if is_later_run then
      local name = 's' .. sub(field, 2)
      sets[s + 1], sets[s + 2] = name, story_with(call('HGET', data, name), head, now8, COMPLETED_TAIL, '')
      s = s + 2
    end
    sets[s + 1], sets[s + 2] = field, new_front .. sub(head, 16, 47) .. new_back
    s = s + 2
    if result ~= '' then
      sets[s + 1], sets[s + 2] = 'r' .. sub(field, 2), sub(result, 2)
      s = s + 2
    end
    listed[2 * n - 1], listed[2 * n] = 2 * SECTION + unpack_from('>I8', head, 24), field
    return 8 * version + COMPLETED
  end

  local first, results = group.first, group.results
  for i = 1, group.count do
    local answer = ack(fields[first + i], known[first + i], results and ARGV[results + i] or '')
    if answer == 'S' then
      has_left_over = true
    end
    size = size + 1
    reply[size] = answer
  end
  set.n = n
end

-- Lists jobs that ended together under one sign.
local function list_ends(done, sign, places, n)
  for from = 1, n, 500 do
    call('ZADD', done, '0', sign .. now8 .. table.concat(places, '', from, math.min(from + 499, n)))
  end
end

-- Those of them that have no parent.
local function without_children(set)
  local is_child, rest = {}, {}
  for _, field in ipairs(set.children) do
    is_child[field] = true
  end
  for _, field in ipairs(set.places) do
    if not is_child[field] then
      rest[#rest + 1] = field
    end
  end
  return rest
end

-- Whether the end of a failed job of this queue is more than its own.
local function fails_alone(queue)
  local own = rules[queue]
  local kept = own and own[RETENTION] or harbor and harbor[RETENTION]
  return not (own and own[FAIL_QUEUE] or harbor and harbor[FAIL_QUEUE]) and not (kept and kept[2] == 0)
end

-- The slot of a job's key; nil when it has none, false when a job is blocked behind it.
local function slot_of(id, flags)
  if band(flags, KEYED) == 0 then
    return nil
  end
  local slot = 'k' .. (call('HGET', data, 'K' .. id) or '')
  return #(call('HGET', data, slot) or '') <= 17 and slot
end

-- What jobs that wait again add to a queue; written once for all of them.
local again = {}
local function again_in(queue)
  local set = again[queue]
  if not set then
    set = { left = {}, ready = {}, later = {}, lines = {}, n = 0, r = 0, t = 0 }
    again[queue] = set
  end
  return set
end

-- A job that waits again: its entry is that of `entry_of` in keys.py.
local function enter(set, line, entry, since)
  if since > now then
    set.later[set.t + 1], set.later[set.t + 2] = text(since), entry
    set.t = set.t + 2
  else
    set.ready[set.r + 1], set.ready[set.r + 2] = '0', entry
    set.r = set.r + 2
    set.lines[line] = true
  end
end

local function write_again(queue, set)
  each_part('ZREM', key_of(queue, LEASES), set.left, set.n)
  if set.t > 0 then
    each_part('ZADD', key_of(queue, LATER), set.later, set.t)
    wake(key_of(queue, WAKE)) -- listeners that wait for a due time must learn of an earlier one
  end
  if set.r > 0 then
    local lines, is_changed = with_lines(known[2 + 2 * queue], set.lines)
    if is_changed then
      call('HSET', data, 'Q' .. ARGV[3 + queue], lines)
      known[2 + 2 * queue] = lines
    end
    each_part('ZADD', key_of(queue, READY), set.ready, set.r)
    wake(key_of(queue, WAKE))
  end
end

-- A Retry, Release or Fail. What it does to any job comes decided by `settled` in model/transitions.py; this adds what only the
-- record can say, as `settled` does, and repeats `lease_error` in model/transitions.py.
local function settle_other(from, head)
  local queue, token, worker_id, field = tonumber(ARGV[from]), ARGV[from + 1], ARGV[from + 2], ARGV[from + 3]
  if not head or byte(head) == ALIAS then
    return 'N'
  end
  local state, flags, rank, version, _, attempts = unpack_from('>BBBI4I8I4', head)
  local kind, relation = band(state, CHILD + FAMILY), parent_in(head) and sub(head, -32) or ''
  if state ~= RUNNING + kind then
    return 'N'
  end
  local worker_end = 92 + byte(head, 92)
  if sub(head, 76, 91) ~= token or (worker_id ~= '' and worker_id ~= sub(head, 93, worker_end)) then
    return 'M'
  elseif unpack_from('>I8', head, 68) <= now then
    return 'E'
  elseif band(flags, COPY + CANCEL + COPIED) ~= 0 or sub(head, worker_end + 1, -1 - #relation) ~= ARGV[3 + queue] then
    return 'S'
  end
  local after, more, when = tonumber(ARGV[from + 4]), ARGV[from + 5], ARGV[from + 6]
  local id, is_over = sub(field, 2), after ~= WAITING
  if is_over and kind ~= 0 then
    return 'S'
  end
  local slot = slot_of(id, flags)
  if slot == false or (is_over and not fails_alone(queue)) then
    return 'S'
  end
  local body, story = unpack(call('HMGET', data, 'b' .. id, 's' .. id))
  if not body then
    return 'S'
  end

  attempts = sub(more, 1, 1) == '+' and attempts + tonumber(sub(more, 2)) or tonumber(more)
  local run_at = unpack_from('>I8', head, 40) - 1
  if not is_over and when ~= 'k' then
    run_at = when == '' and -1 or tonumber(sub(when, 2)) + (byte(when) == 100 and now or 0) -- 'd'
  end
  local rest, behind = ARGV[from + 8], ARGV[from + 9]
  if behind ~= '' then
    rest = rest .. '\207' .. now8 .. behind
  end
  sets[s + 1], sets[s + 2] = 's' .. id, story_with(story, head, now8, ARGV[from + 7], rest)
  sets[s + 3], sets[s + 4] = field, pack('>BBBI4I8I4', after + kind, bit.bor(flags, STORY), rank, version + 1, now, attempts)
    .. sub(head, 20, 39) .. us(run_at + 1) .. sub(head, 48, 67) .. us(is_over and now or 0) .. token .. '\0' .. relation
  s = s + 4
  local set = again_in(queue)
  set.n = set.n + 1
  set.left[set.n] = field
  if is_over then
    if slot then
      deletes[d + 1] = slot
      d = d + 1
    end
    if band(flags, REMEMBERED) ~= 0 then
      remember_for_a_day(id)
    end
    call('ZADD', key_of(queue, LIST), 3 * SECTION + unpack_from('>I8', head, 24), field)
    call('ZADD', key_of(queue, DONE), '0', 'f' .. now8 .. field)
    return 8 * (version + 1) + after
  end
  if slot then
    sets[s + 1], sets[s + 2] = slot, 'w' .. id
    s = s + 2
  end
  local line, since = line_in(body), run_at >= 0 and run_at or unpack_from('>I8', head, 32)
  enter(set, line, line .. string.char(rank) .. us(since) .. sub(head, 24, 31) .. id, since)
  return 8 * (version + 1) + (run_at > now and 1 or 0)
end

-- A parent that is over by its last child, listed with the jobs that ended.
local function finish(job)
  local set, field, head = set_of(job.queue), 'h' .. job.id, finished_head(job.head, now)
  local n = set.n + 1
  set.n, set.places[n] = n, field
  set.listed[2 * n - 1], set.listed[2 * n] = 2 * SECTION + unpack_from('>I8', head, 24), field
  if parent_in(head) then
    set.children[#set.children + 1] = field
  end
  sets[s + 1], sets[s + 2] = field, head
  s = s + 2
  told[#told + 1] = { job.id, head, without_payload(job.body), job.bonds or '', job.family }
end

-- What the ends of jobs of families did to others, who are over or may run now.
local function release()
  for _, job in ipairs(ends_of_families.finished) do
    finish(job)
  end
  ends_of_families.write(function(field, value)
    sets[s + 1], sets[s + 2] = field, value
    s = s + 2
  end, function(field)
    deletes[d + 1] = field
    d = d + 1
  end, function(queue, line, since, entry, seq, field)
    local set = again_in(queue)
    call('ZADD', key_of(queue, LIST), text(seq), field)
    enter(set, line, entry, since)
    if set.r > 0 and rules[queue] and rules[queue][PARTS] == IS_PART and not set.is_told then
      set.is_told, woken[#woken + 1] = true, ARGV[3 + queue] -- its workers wait in another slot
    end
  end)
end

if last > before then
  for g = 1, group_count do
    ack_group(groups[g])
  end
  for i = 1, other_count do
    local answer = settle_other(others + 10 * (i - 1), known[first_other + i])
    if answer == 'S' then
      has_left_over = true
    end
    size = size + 1
    reply[size] = answer
  end
  if ends_of_families then
    release()
    if told[1] or woken[1] then
      reply[1] = { reply[1], told, woken }
    end
  end
  each_part('HSET', data, sets, s)
  each_part('HDEL', data, deletes, d)
  each_part('ZADD', KEYS[2], ends, #ends)
  each_part('ZREM', KEYS[3], strangers, #strangers)
  for queue, set in pairs(again) do
    write_again(queue, set)
  end
  for queue, set in pairs(by_queue) do
    each_part('ZREM', key_of(queue, LEASES), set.places, set.n)
    if set.forget then
      each_part('ZREM', key_of(queue, LIST), set.places, set.n)
    else
      each_part('ZADD', key_of(queue, LIST), set.listed, 2 * set.n)
      -- Children have a sign of their own: they go with their root.
      local places, count = set.places, #set.children
      list_ends(key_of(queue, DONE), 'C', set.children, count)
      if count > 0 and count < set.n then
        places = without_children(set)
      end
      list_ends(key_of(queue, DONE), 'c', places, set.n - count)
    end
  end
end

if not ARGV[at] then
  return reply
end
if has_left_over then
  reply[size + 1] = 'later'
  return reply
end

-- ------------------------------------------------------------------ the claim

local claimed_queues, limit, lease_us = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
local worker, token, has_rates = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5] == '1'
local worker_rate = ARGV[at + 6] ~= '' and { tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7]) }
local swept, further, parts, lane_count = ARGV[at + 8], tonumber(ARGV[at + 9]), tonumber(ARGV[at + 10]), tonumber(ARGV[at + 11])
local types
if ARGV[at + 12 + lane_count] then
  types = {}
  for i = at + 12 + lane_count, #ARGV do
    types[ARGV[i]] = true
  end
end
local beyond = 3 + queue_count * 6 -- the last key of the queues

if known[due] and swept ~= '2' and tonumber(known[due]) <= now then
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
  local due = call('ZRANGEBYSCORE', later, '-inf', text(now), 'LIMIT', 0, 1000)
  if #due == 0 then
    return
  end
  local entries, more = {}, {}
  for i, entry in ipairs(due) do
    entries[2 * i - 1] = '0'
    entries[2 * i] = entry
    more[sub(entry, 1, -34)] = true
  end
  call('ZREM', later, unpack(due))
  call('ZADD', key_of(queue, READY), unpack(entries))
  lines_in[queue] = with_lines(lines_in[queue], more)
end

-- Unexpired leases of one key.
local function running(key)
  return call('ZCOUNT', key, '(' .. text(now), '+inf')
end

local function running_of_harbor()
  local count, last = 0, beyond + (has_rates and queue_count + 2 or 0)
  for i = last + 1, last + further do
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
local function may_run(parent, fields)
  local bonds = fields and fields[1] or ''
  local flags = bonds ~= '' and byte(bonds, 1) or 0
  if band(flags, HAS_DEADLINE) ~= 0 and unpack_from('>I8', bonds, 2) <= now then
    return false
  end
  if not parent then
    return true
  end
  if stop_of[parent] == nil then
    local family = call('HGET', data, 'f' .. parent)
    stop_of[parent] = family and byte(family, 1) or 0
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

reply[size + 1] = 'jobs'
size = size + 3
local count_place = size - 1
reply[count_place], reply[size] = 0, ''
local left = limit
for queue = 1, claimed_queues do
  promote(queue)
  local room, taken = room_of(queue, left), 0
  for i = at + 12, at + 11 + lane_count do
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
  left = left - taken
end
reply[count_place], reply[count_place + 1] = taken_count, table.concat(orphans)
for i = 1, more_count do
  reply[size + i] = more_of[i]
end
return reply
