-- Part 2 of 5 of the script exchange: the acks, group by group. What they change is kept, and written in exchange_settle.lua.

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
local ends_of_families, over, woken = nil, {}, {}
local function left_over(field, flags, kind, parent)
  if band(flags, 255 - PROGRESS - STORY) ~= 0 then
    return true
  end
  ends_of_families = ends_of_families or family_ends(data, KEYS[3], now, number_of, keeps, is_mixed())
  return not ends_of_families.add(sub(field, 2), kind >= FAMILY, parent)
end

-- The slot of a job's key; nil when it has none, false when a job is blocked behind it.
local function slot_of(id, flags)
  if band(flags, KEYED) == 0 then
    return nil
  end
  local slot = 'k' .. (call('HGET', data, 'K' .. id) or '')
  return #(call('HGET', data, slot) or '') <= 17 and slot
end

-- Whether `settle_one` in drivers/lifecycle.py must decide: more than this job changes. If not, what its key and its
-- idempotency keys become is kept to be written.
local function unusual(id, flags, forget)
  if band(flags, COPY + CANCEL + COPIED) ~= 0 or (forget and band(flags, ALIASED) ~= 0) then
    return true
  end
  local slot = slot_of(id, flags)
  if slot == false then
    return true
  elseif slot then
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
