-- Ends attempts that succeeded and concern nobody else, then hands out jobs: one step.
--
-- KEYS  data, idempotency ends; then per queue: list, ready, lines, later, leases, done, wake; then, when asked for,
--       the execute rates of each queue, of the harbor and of the worker; then the leases of further queues, which
--       only the harbor's max_running needs
-- ARGV  epoch, now, number of queues, their names; number of acks, then per ack: queue, id, token, claimed_by
--       ('' when not said), '' | 'r' result; then nothing more, or a claim: number of queues (the first ones),
--       limit, lease in us, worker, token, whether the rates are there ('1'), rate count ('' for none), rate per,
--       whether expired leases were dealt with ('1'), number of further leases ('' when they are not there), number
--       of lanes, lanes, types
-- Gives {now, 'epoch'} when nothing was done; else {now, per ack: version | 'N' not running | 'M' another token
--       | 'E' run out | 'S' a ledger must decide, then why nothing was handed out: 'later' (an ack was left over),
--       'expired', 'rates', 'leases' (ask again with them); or 'jobs' and per job: id, head, body,
--       '' | {story, scoped key}}
-- An ack that is left over, and an expired lease, keep the claim from being made: they come first.

local data, now = KEYS[1], clock(ARGV[2])
local queue_count = tonumber(ARGV[3])
local at = 4 + queue_count
local ack_count = tonumber(ARGV[at])
at = at + 1
local reply, size = { text(now) }, 1
local now8 = us(now)
local LIST, READY, LINES, LATER, LEASES, DONE, WAKE = 1, 2, 3, 4, 5, 6, 7
local function key_of(queue, part)
  return KEYS[2 + (queue - 1) * 7 + part]
end

-- ------------------------------------------------------------------ look

local fields = { 'e', 'R*' }
for queue = 1, queue_count do
  fields[2 + queue] = 'R' .. ARGV[3 + queue]
end
local before = 2 + queue_count
for i = 1, ack_count do
  fields[before + i] = 'h' .. ARGV[at + (i - 1) * 5 + 1]
end
local known = {}
for from = 1, before + ack_count, 3000 do
  local part = call('HMGET', data, unpack(fields, from, math.min(from + 2999, before + ack_count)))
  for i = 1, #part do
    known[from + i - 1] = part[i]
  end
end
if known[1] ~= ARGV[1] then
  return { text(now), 'epoch' }
end
local harbor, rules = rules_in(known[2]) or false, {}
for queue = 1, queue_count do
  rules[queue] = rules_in(known[2 + queue]) or false
end

-- ------------------------------------------------------------------ acks

local sets, s, deletes, d, ends = {}, 0, {}, 0, {}
local by_queue, seen = {}, {}
local has_left_over = false

-- The keys of an idempotent job are remembered for a day from now on.
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

local function unusual(head, queue, id, flags, forget)
  if band(flags, COPY + CANCEL + COPIED) ~= 0 or (forget and band(flags, ALIASED) ~= 0) then
    return true
  end
  if band(flags, KEYED) ~= 0 then
    local slot = 'k' .. call('HGET', data, 'K' .. id)
    if #call('HGET', data, slot) > 17 then
      return true -- somebody is blocked behind it
    end
    deletes[d + 1] = slot
    d = d + 1
  end
  if band(flags, REMEMBERED) ~= 0 then
    remember_for_a_day(id)
  end
  return false
end

local last_until8, last_until
local function ack(head, queue, id, token, claimed_by, result)
  if not head or byte(head, 1) ~= RUNNING then
    return 'N'
  end
  local worker_end = 92 + byte(head, 92)
  if sub(head, 76, 91) ~= token or (claimed_by ~= '' and claimed_by ~= sub(head, 93, worker_end)) then
    return 'M'
  end
  local until8 = sub(head, 68, 75)
  if until8 ~= last_until8 then
    last_until8, last_until = until8, unpack_from('>I8', until8)
  end
  if last_until <= now then
    return 'E'
  end
  local set = by_queue[queue]
  if not set then
    local kept = rules[queue] and rules[queue][RETENTION] or harbor and harbor[RETENTION]
    set = { unleased = {}, unlisted = {}, listed = {}, done = {}, n = 0, forget = kept and kept[1] == 0 }
    by_queue[queue] = set
  end
  local flags = byte(head, 2)
  if seen[id] or sub(head, 48, 51) ~= '\0\0\0\1' or sub(head, worker_end + 1) ~= ARGV[3 + queue]
    or (flags ~= 0 and unusual(head, queue, id, flags, set.forget)) then
    return 'S'
  end
  seen[id] = true
  local version = unpack_from('>I4', head, 4) + 1
  local place = sub(head, 24, 31) .. id
  local n = set.n + 1
  set.n = n
  set.unleased[n] = place
  set.unlisted[n] = 'l' .. place
  if set.forget then
    deletes[d + 1], deletes[d + 2], deletes[d + 3] = 'h' .. id, 'b' .. id, 's' .. id
    deletes[d + 4], deletes[d + 5], deletes[d + 6] = 'p' .. id, 'K' .. id, 'I' .. id
    d = d + 6
    return version
  end
  sets[s + 1] = 'h' .. id
  sets[s + 2] = pack('>BBBI4I8', COMPLETED, flags, byte(head, 3), version, now) .. sub(head, 16, 67) .. now8 .. token .. '\0'
  s = s + 2
  if result ~= '' then
    sets[s + 1], sets[s + 2] = 'r' .. id, sub(result, 2)
    s = s + 2
  end
  set.listed[2 * n - 1], set.listed[2 * n] = '0', 'c' .. place
  set.done[2 * n - 1], set.done[2 * n] = '0', 'c' .. now8 .. place
  return version
end

if ack_count > 0 then
  for i = 1, ack_count do
    local answer = ack(known[before + i], tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
    if answer == 'S' then
      has_left_over = true
    end
    reply[1 + i] = answer
    at = at + 5
  end
  size = 1 + ack_count
  each_part('HSET', data, sets, s)
  each_part('HDEL', data, deletes, d)
  each_part('ZADD', KEYS[2], ends, #ends)
  for queue, set in pairs(by_queue) do
    each_part('ZREM', key_of(queue, LEASES), set.unleased, set.n)
    each_part('ZREM', key_of(queue, LIST), set.unlisted, set.n)
    each_part('ZADD', key_of(queue, LIST), set.listed, #set.listed)
    each_part('ZADD', key_of(queue, DONE), set.done, #set.done)
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
local expired_is_done, further, lane_count = ARGV[at + 8] == '1', tonumber(ARGV[at + 9]), tonumber(ARGV[at + 10])
local types
if ARGV[at + 11 + lane_count] then
  types = {}
  for i = at + 11 + lane_count, #ARGV do
    types[ARGV[i]] = true
  end
end
local beyond = 2 + queue_count * 7 -- the last key of the queues

if harbor and harbor[MAX_RUNNING] and not further then
  reply[size + 1] = 'leases'
  return reply
end
for queue = 1, claimed_queues do
  if not has_rates and (rules[queue] and rules[queue][EXECUTE_RATE] or harbor and harbor[EXECUTE_RATE]) then
    reply[size + 1] = 'rates'
    return reply
  end
  if not expired_is_done and #call('ZRANGEBYSCORE', key_of(queue, LEASES), '-inf', text(now), 'LIMIT', 0, 1) > 0 then
    reply[size + 1] = 'expired'
    return reply
  end
end

-- Due jobs move over as they are: what stands in `later` is what stands in `ready`.
local function promote(queue)
  local later = key_of(queue, LATER)
  local due = call('ZRANGEBYSCORE', later, '-inf', text(now), 'LIMIT', 0, 1000)
  if #due == 0 then
    return
  end
  local entries, lines = {}, {}
  for i, entry in ipairs(due) do
    entries[2 * i - 1] = '0'
    entries[2 * i] = entry
    local line = sub(entry, 1, -34)
    lines[line] = (lines[line] or 0) + 1
  end
  call('ZREM', later, unpack(due))
  call('ZADD', key_of(queue, READY), unpack(entries))
  for line, count in pairs(lines) do
    call('HINCRBY', key_of(queue, LINES), line, count)
  end
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
local function best_first(ready, lines, chunk)
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
    step(head)
    heads[#heads + 1] = head
  end
  if #heads == 1 then
    local only = heads[1]
    return function()
      local entry = only.entry
      if entry then
        step(only)
      end
      return entry, only.line
    end
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
      local entry, line = best.entry, best.line
      step(best)
      return entry, line
    end
  end
end

local function lines_of(queue, lane)
  local found = {}
  for _, line in ipairs(call('HKEYS', key_of(queue, LINES))) do
    if sub(line, 1, #lane + 1) == lane .. '\0' and (not types or types[sub(line, #lane + 2, -2)]) then
      found[#found + 1] = line
    end
  end
  return found
end

-- A copy runs only beside its running original, and never for a worker that runs that one.
local function may_copy(id)
  local original = call('HGET', data, 'h' .. call('HGET', data, 'o' .. id))
  return original and byte(original, 1) == RUNNING
    and sub(original, 93, 92 + byte(original, 92)) ~= worker and call('HGET', data, 'v' .. id) ~= worker
end

local expires = now + lease_us
local expires_text = text(expires)
local lease_tail = us(expires) .. token .. string.char(#worker) .. worker
local first_lease = pack('>I4I8I8', 1, now, now) .. lease_tail

-- Hands out up to `count` jobs of one lane of a queue; says how many.
local function take(queue, lane, count)
  local lines = lines_of(queue, lane)
  if #lines == 0 then
    return 0
  end
  local name = ARGV[3 + queue]
  local ready = key_of(queue, READY)
  local next_entry = best_first(ready, lines, math.min(math.ceil(count / #lines) + 1, 1000))
  local writes, w, drops, entries, leases, from_line, taken = {}, 0, {}, {}, {}, {}, 0
  while taken < count do
    local wanted, its_line, ids, asked, found_count = {}, {}, {}, {}, 0
    local most = math.min(count - taken, 1000)
    while found_count < most do
      local entry, line = next_entry()
      if not entry then
        break
      end
      found_count = found_count + 1
      local id = sub(entry, -16)
      wanted[found_count], its_line[found_count], ids[found_count] = entry, line, id
      asked[2 * found_count - 1], asked[2 * found_count] = 'h' .. id, 'b' .. id
    end
    if found_count == 0 then
      break
    end
    local found = call('HMGET', data, unpack(asked))
    for i = 1, found_count do
      local id, head, line, entry = ids[i], found[2 * i - 1], its_line[i], wanted[i]
      local _, flags, rank, version = unpack_from('>BBBI4', head)
      local run_at8 = sub(head, 40, 47)
      if run_at8 ~= '\0\0\0\0\0\0\0\0' and unpack_from('>I8', run_at8) - 1 > now then
        -- The clock went back: what was due waits again.
        call('ZREM', ready, entry)
        call('ZADD', key_of(queue, LATER), text(unpack_from('>I8', run_at8) - 1), entry)
        from_line[line] = (from_line[line] or 0) + 1
      elseif band(flags, COPY) == 0 or may_copy(id) then
        local lease, more = first_lease, ''
        if #head > 47 then
          local starts, fence = unpack_from('>I4I8', head, 48)
          lease = pack('>I4I8I8', starts + 1, math.max(fence + 1, now), now) .. lease_tail
        end
        if flags ~= 0 then
          if band(flags, PROGRESS) ~= 0 then
            flags = flags - PROGRESS
            drops[#drops + 1] = 'p' .. id
          end
          local key = band(flags, KEYED) ~= 0 and call('HGET', data, 'K' .. id)
          local story = band(flags, STORY) ~= 0 and call('HGET', data, 's' .. id)
          if key then
            writes[w + 1], writes[w + 2] = 'k' .. key, 'r' .. id
            w = w + 2
          end
          more = (story or key) and { story or '', key or '' } or ''
        end
        head = pack('>BBBI4I8', RUNNING, flags, rank, version + 1, now) .. sub(head, 16, 47) .. lease .. name
        writes[w + 1], writes[w + 2] = 'h' .. id, head
        w = w + 2
        taken = taken + 1
        entries[taken] = entry
        leases[2 * taken - 1], leases[2 * taken] = expires_text, sub(head, 24, 31) .. id
        from_line[line] = (from_line[line] or 0) + 1
        reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = id, head, found[2 * i], more
        size = size + 4
      end
    end
  end
  each_part('HSET', data, writes, w)
  each_part('HDEL', data, drops, #drops)
  each_part('ZREM', ready, entries, taken)
  each_part('ZADD', key_of(queue, LEASES), leases, 2 * taken)
  for line, number in pairs(from_line) do
    if call('HINCRBY', key_of(queue, LINES), line, -number) <= 0 then
      call('HDEL', key_of(queue, LINES), line)
    end
  end
  return taken
end

reply[size + 1] = 'jobs'
size = size + 1
local left = limit
for queue = 1, claimed_queues do
  promote(queue)
  local room, taken = room_of(queue, left), 0
  for i = at + 11, at + 10 + lane_count do
    if taken < room then
      taken = taken + take(queue, ARGV[i], room - taken)
    end
  end
  if taken > 0 then
    for _, budget in ipairs(budgets(queue)) do
      rate_spend(budget[1], taken, now)
    end
    -- Whoever was woken wakes the next one when there is more than it could take.
    if call('ZCARD', key_of(queue, READY)) > 0 then
      wake(key_of(queue, WAKE))
    else
      call('DEL', key_of(queue, WAKE))
    end
  end
  left = left - taken
end
return reply
