-- Takes jobs in: all of them, or none. Jobs that meet others of their key are left to commit.lua.
--
-- KEYS  data, queues; then per queue: list, ready, lines, later, wake; then, when asked for, the enqueue rates of
--       each queue and of the harbor
-- ARGV  epoch, now, first seq ('' for the store's own count), whether the rates are there ('1'), number of queues,
--       their names; then per job: queue, id, line, rank, '' | 'a' run_at | 'd' delay, body, key, idempotency key
-- Gives {now} when every job was created; when nothing was done {now, 'epoch'}, {now, 'care'} (a ledger must
--       decide), {now, 'rates'} (ask again with them), {now, 'never', queue, count} or {now, 'wait', queue,
--       microseconds}; else {now, 'some', then per job: id, version plus 1 (0: created)}

local data, now = KEYS[1], clock(ARGV[2])
local has_rates, queue_count = ARGV[4] == '1', tonumber(ARGV[5])
local first, width = 6 + queue_count, 8
local job_count = (#ARGV - first + 1) / width
local LIST, READY, LINES, LATER, WAKE = 1, 2, 3, 4, 5
local function key_of(queue, part)
  return KEYS[2 + (queue - 1) * 5 + part]
end

-- ------------------------------------------------------------------ look

local fields = { 'e', 'R*' }
for queue = 1, queue_count do
  fields[1 + 2 * queue] = 'R' .. ARGV[5 + queue]
  fields[2 + 2 * queue] = 'Q' .. ARGV[5 + queue]
end
local before = 2 + 2 * queue_count
for i = 1, job_count do
  fields[before + i] = 'h' .. ARGV[first + (i - 1) * width + 1]
end
local known
if before + job_count <= 3000 then
  known = call('HMGET', data, unpack(fields))
else
  known = {}
  for from = 1, before + job_count, 3000 do
    local part = call('HMGET', data, unpack(fields, from, math.min(from + 2999, before + job_count)))
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

local answers, new, new_count, came, seen_ids, seen_keys, seen_remembered = {}, {}, 0, {}, {}, {}, {}
for i = 1, job_count do
  local at = first + (i - 1) * width
  local id, key, remembered = ARGV[at + 1], ARGV[at + 6], ARGV[at + 7]
  local queue = tonumber(ARGV[at])
  local answer = false
  if known[before + i] then
    answer = duplicate(id, known[before + i])
  elseif seen_ids[id] then
    answer = { id, 1 }
  elseif remembered ~= '' then
    local name = ARGV[5 + queue] .. '\0' .. remembered
    local entry = call('HGET', data, 'i' .. name)
    if entry then
      local ends = unpack_from('>I8', entry, 17)
      if ends ~= 0 and ends <= now then
        return { text(now), 'care' }
      end
      local target = sub(entry, 1, 16)
      answer = duplicate(target, call('HGET', data, 'h' .. target))
    elseif seen_remembered[name] then
      answer = { seen_remembered[name], 1 }
    else
      seen_remembered[name] = id
    end
  end
  if not answer then
    if key ~= '' then
      local name = ARGV[5 + queue] .. '\0' .. key
      if seen_keys[name] or call('HEXISTS', data, 'k' .. name) == 1 then
        return { text(now), 'care' }
      end
      seen_keys[name] = true
    end
    seen_ids[id] = true
    new_count = new_count + 1
    new[new_count] = at
    came[queue] = (came[queue] or 0) + 1
  end
  answers[i] = answer
end

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
      return { text(now), 'never', is_harbor and 0 or queue, count }
    end
    spends[#spends + 1] = { KEYS[2 + queue_count * 5 + queue], rate, count, is_harbor and 0 or queue }
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
if new_count > 0 then
  local seq
  if ARGV[3] ~= '' then
    seq = tonumber(ARGV[3]) - 1
  else
    seq = call('HINCRBY', data, 'n', new_count) - new_count
  end
  local writes, w = {}, 0
  local sets = {}
  for queue in pairs(came) do
    sets[queue] = { list = {}, l = 0, ready = {}, r = 0, later = {}, t = 0, lines = {} }
  end
  local now8 = us(now)
  for i = 1, new_count do
    local at = new[i]
    local queue, id, line, rank, when = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
    local key, remembered = ARGV[at + 6], ARGV[at + 7]
    local set, flags = sets[queue], 0
    seq = seq + 1
    if key ~= '' then
      local name = ARGV[5 + queue] .. '\0' .. key
      flags = KEYED
      writes[w + 1], writes[w + 2], writes[w + 3], writes[w + 4] = 'K' .. id, name, 'k' .. name, 'w' .. id
      w = w + 4
    end
    if remembered ~= '' then
      local name = ARGV[5 + queue] .. '\0' .. remembered
      flags = flags + REMEMBERED
      writes[w + 1], writes[w + 2] = 'i' .. name, id .. us(0)
      writes[w + 3], writes[w + 4] = 'I' .. id, pack('>Hc0', #name, name)
      w = w + 4
    end
    local run_at, seq8, eligible8 = -1, us(seq), now8
    if when ~= '' then
      run_at = tonumber(sub(when, 2)) + (sub(when, 1, 1) == 'd' and now or 0)
      eligible8 = us(run_at)
    end
    writes[w + 1] = 'h' .. id
    writes[w + 2] = pack('>BBBI4I8I8', WAITING, flags, rank, 1, now, 0) .. seq8 .. now8 .. us(run_at + 1)
    writes[w + 3] = 'b' .. id
    writes[w + 4] = ARGV[at + 5]
    w = w + 4
    set.list[set.l + 1], set.list[set.l + 2] = '0', 'l' .. seq8 .. id
    set.l = set.l + 2
    local entry = line .. string.char(rank) .. eligible8 .. seq8 .. id
    if run_at > now then
      set.later[set.t + 1], set.later[set.t + 2] = text(run_at), entry
      set.t = set.t + 2
    else
      set.ready[set.r + 1], set.ready[set.r + 2] = '0', entry
      set.r = set.r + 2
      set.lines[line] = (set.lines[line] or 0) + 1
    end
  end
  each_part('HSET', data, writes, w)
  for queue, set in pairs(sets) do
    if not known[2 + 2 * queue] then
      call('SADD', KEYS[2], ARGV[5 + queue])
      call('HSET', data, 'Q' .. ARGV[5 + queue], '1')
    end
    each_part('ZADD', key_of(queue, LIST), set.list, set.l)
    if set.t > 0 then
      local later = key_of(queue, LATER)
      local earliest = call('ZRANGE', later, 0, 0)[1]
      each_part('ZADD', later, set.later, set.t)
      -- Who waits for a due time must hear of an earlier one.
      if call('ZRANGE', later, 0, 0)[1] ~= earliest then
        wake(key_of(queue, WAKE))
      end
    end
    if set.r > 0 then
      each_part('ZADD', key_of(queue, READY), set.ready, set.r)
      for line, count in pairs(set.lines) do
        call('HINCRBY', key_of(queue, LINES), line, count)
      end
      wake(key_of(queue, WAKE))
    end
  end
end

if new_count == job_count then
  return { text(now) }
end
local reply = { text(now), 'some' }
for i = 1, job_count do
  local answer = answers[i]
  reply[2 * i + 1] = answer and answer[1] or ARGV[first + (i - 1) * width + 1]
  reply[2 * i + 2] = answer and answer[2] + 1 or 0
end
return reply
