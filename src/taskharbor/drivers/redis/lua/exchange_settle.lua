-- Part 3 of 5 of the script exchange: retries, releases and failures, what ends do to families, and all writes.

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

-- Whether a job of this queue that fails changes nothing but itself: it has no failure job, and is kept.
local function fails_alone(queue)
  local own = rules[queue]
  local kept = own and own[RETENTION] or harbor and harbor[RETENTION]
  return not (own and own[FAIL_QUEUE] or harbor and harbor[FAIL_QUEUE]) and not (kept and kept[2] == 0)
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
    call('ZADD', KEYS[4], 'LT', call('ZRANGE', key_of(queue, LATER), 0, 0, 'WITHSCORES')[2], ARGV[3 + queue])
    wake(key_of(queue, WAKE)) -- listeners that wait for a due time must learn of an earlier one
  end
  if set.r > 0 then
    local lines, is_changed = with_lines(known[2 + 2 * queue], set.lines)
    if is_changed then
      call('HSET', data, 'Q' .. ARGV[3 + queue], lines)
      call('ZADD', KEYS[4], '0', ARGV[3 + queue])
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
  over[#over + 1] = { job.id, head, without_payload(job.body), job.bonds or '', job.family }
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
    if set.r > 0 and rules[queue] and rules[queue][PARTS] == IS_PART and not set.is_woken then
      set.is_woken, woken[#woken + 1] = true, ARGV[3 + queue] -- its workers wait in another slot
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
    if over[1] or woken[1] then
      reply[1] = { reply[1], over, woken }
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
